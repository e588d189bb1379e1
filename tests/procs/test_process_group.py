"""Groups of nodes as groups of torch.distributed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ding_lite.parallel.address import Address
from ding_lite.parallel.group import _host_of
from tests.procs.programs import run

pytestmark = pytest.mark.deadline(60.0)  # several processes that import PyTorch at a time

MEAN = """
import torch.distributed
from ding_lite.distributed import World

def main():
    world = World.current()
    learners = world.group("learner")
    if not learners.is_member:
        return None
    group = learners.process_group()
    gradient = torch.full((3,), float(world.node_id))
    torch.distributed.all_reduce(gradient, group=group)
    learners.barrier()
    torch.distributed.destroy_process_group()
    return learners.rank, (gradient / len(learners)).tolist()

if __name__ == "__main__":
    roles = ["collector", "learner", "learner"]
    print(Parallel.runner(3, topology="mesh", roles=roles)(main))
"""


def test_the_learners_of_a_job_average_their_gradients(folder: Path) -> None:
    assert run(folder, MEAN) == (0, "[None, (0, [1.5, 1.5, 1.5]), (1, [1.5, 1.5, 1.5])]\n")


ALONE = """
import torch.distributed
from ding_lite.distributed import World

def main():
    both = World.current().group("node.*")
    group = both.process_group(timeout=1.0)
    gave_up = False
    if both.rank == 0:
        try:
            torch.distributed.all_reduce(torch.zeros(3), group=group)
        except RuntimeError:
            gave_up = True
    both.barrier()
    torch.distributed.destroy_process_group()
    return gave_up

if __name__ == "__main__":
    print(Parallel.runner(2)(main))
"""


def test_who_waits_for_a_member_that_does_something_else_gives_up_in_time(folder: Path) -> None:
    assert run(folder, ALONE) == (0, "[True, False]\n")


def test_a_group_meets_where_its_first_member_listens() -> None:
    assert _host_of("tcp://10.0.0.7:50515") == "10.0.0.7"
    for address in (None, "ipc:///run/job/node-0", "tcp://0.0.0.0:50515"):
        assert Address("tcp", _host_of(address), 1).place == "127.0.0.1"

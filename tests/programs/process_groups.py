"""Nodes as a group of torch.distributed: all members come, or one does not."""

import pytest
import torch.distributed

from ding_lite import Parallel
from ding_lite.distributed import World
from ding_lite.errors import ConfigError
from tests.programs.given import given


def mean():
    world = World.current()
    learners = world.group("learner")
    if not learners.is_member:
        return None
    group = learners.process_group()
    gradient = torch.full((3,), float(world.node_id))
    torch.distributed.all_reduce(gradient, group=group)
    with pytest.raises(ConfigError, match="already in a default group"):
        learners.process_group()
    learners.barrier()
    torch.distributed.destroy_process_group()
    return learners.rank, (gradient / len(learners)).tolist()


def one_waits():
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
    if given.all_come:
        roles = ["collector", "learner", "learner"]
        print(Parallel.runner(3, topology="mesh", roles=roles)(mean))
    else:
        print(Parallel.runner(2)(one_waits))

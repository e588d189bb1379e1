"""A node fails on its way to a barrier, where the others wait."""

from pathlib import Path

from ding_lite import Parallel
from ding_lite.distributed import World
from tests.programs.given import given


def main():
    node = World.current()
    if node.node_id == 2 and not Path("failed").exists():
        Path("failed").touch()
        raise ZeroDivisionError("on the way to the barrier")
    group = node.group([0, 1, 2])
    group.barrier(timeout=15.0)
    return group.all_gather(node.node_id)


if __name__ == "__main__":
    print(Parallel.runner(3, "star", auto_recover=given.recover)(main))

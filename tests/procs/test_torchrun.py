"""Learners that torchrun starts, and starts again from a checkpoint when one was killed."""

from __future__ import annotations

import pytest

from tests.procs.shells import Type

TORCHRUN = "python -m torch.distributed.run --standalone --max-restarts 1 --nproc-per-node"


@pytest.mark.slow  # five interpreters import torch; test_launchers.py restarts ranks without it
def test_learners_go_on_from_the_checkpoint_after_one_was_killed(type_line: Type) -> None:
    output = type_line(f"{TORCHRUN} 2 train.py", program="gang").result()
    words = [line.split() for line in output.splitlines()]
    # Else one of them may abort a process that has done all its work.
    assert {w[-1] for w in words if w[:1] == ["threads"]} == {"0"}, output
    begun = [tuple(map(int, w[1:4])) for w in words if w[:1] == ["training"]]
    assert sorted(begun)[:2] == [(0, 0, 1), (0, 1, 1)], output
    # Where rank 0 is asked to end before it misses the other one, it saves at its last update.
    assert sorted(begun)[2:] in [[(1, 0, done + 1), (1, 1, done + 1)] for done in (20, 25)], output
    ended = [w[3] for w in words if w[:1] == ["ended"]]
    assert len(ended) == 2, output
    assert len(set(ended)) == 1, output

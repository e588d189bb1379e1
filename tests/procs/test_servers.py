"""A model server between processes: whole versions in order, through kill -9 of the publisher."""

from __future__ import annotations

import os
import signal

import pytest


@pytest.mark.parametrize(
    "half",
    [
        pytest.param(False, id="full precision"),
        pytest.param(True, id="half", marks=pytest.mark.slow),
    ],
)
def test_a_reader_fetches_whole_versions_in_order_also_of_a_publisher_that_was_killed(
    fork_learner, half
):
    with fork_learner("models", half=half) as program:
        pids = program.pids(2)
        program.line("reads")
        os.kill(pids[0], signal.SIGKILL)
        pids[2] = program.pids(1)[0]
        code, output = program.end()
        assert (code, output.splitlines()[-1]) == (0, "(True, 2)"), output
        program.leaves_nothing(*pids.values())

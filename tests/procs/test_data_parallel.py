"""Several learners of one policy: the same weights, and no hang when one dies."""

from __future__ import annotations

import os
import signal

from tests.procs.conftest import Fork, RunForked


def test_learners_take_the_step_of_one_and_average_and_are_a_group(run_learner: RunForked) -> None:
    found = "{'sum': [3.0, 3.0, 3.0], 'means': [5.5, 5.5], 'waits in vain': True}"
    assert run_learner("data_parallel").splitlines() == [
        "built-in equal: True",
        "built-in as of one: True",
        "with an optimiser more equal: True",
        "with an optimiser more as of one: True",
        "with a user's network equal: True",
        "None",
        found,
        found,
    ]


def test_a_learner_that_waits_for_another_which_has_left_ends_with_the_job(
    run_learner: RunForked,
) -> None:
    output = run_learner("learners", ends="always")
    assert output.splitlines()[-1] == "ended None", output


def test_the_death_of_a_learner_restarts_all_of_them_where_that_was_asked_for(
    fork_learner: Fork,
) -> None:
    with fork_learner("learners", ends="later") as job:
        pids = job.pids(3)
        job.line("training 1")
        os.kill(pids[1], signal.SIGKILL)
        code, output = job.end()
    assert (code, output.splitlines()[-1]) == (0, "ended None"), output
    assert output.count("up 0 ") == output.count("up 1 ") == 2, output

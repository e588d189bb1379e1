"""Several learners of one policy: the same weights, and no hang when one dies."""

from __future__ import annotations

import os
import signal

import pytest

from tests.procs.conftest import Fork, RunForked


@pytest.mark.parametrize("main", ["learn", "further"])
def test_learners_take_the_step_that_one_would_take_with_all_their_batches(
    run_learner: RunForked, main: str
) -> None:
    assert run_learner("data_parallel", main=main) == "True True\n"


def test_small_and_large_gradients_of_several_policies_are_averaged(
    run_learner: RunForked,
) -> None:
    output = "[[5.5, 5.5], [5.5, 5.5]]\n"
    assert run_learner("data_parallel", main="average") == output


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


# -- networks of users --------------------------------------------------------------------


def test_collectors_act_by_the_published_network_and_its_running_means(
    run_learner: RunForked,
) -> None:
    output = run_learner("own_network", what="publish")
    assert output.splitlines()[-1] == "True True True", output


def test_two_learners_of_a_users_network_stay_equal(run_learner: RunForked) -> None:
    output = run_learner("own_network", what="learn together")
    assert output.splitlines()[-1] == "10 True", output

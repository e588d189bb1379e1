"""Networks of users on several nodes: published with their buffers, and learned together."""

from __future__ import annotations

from pathlib import Path

from tests.procs.programs import run_job


def test_collectors_act_by_the_published_network_and_its_running_means(folder: Path) -> None:
    code, said = run_job(folder, "own_network", what="publish")
    assert code == 0, said
    assert said.splitlines()[-1] == "True True True", said


def test_two_learners_of_a_users_network_stay_equal(folder: Path) -> None:
    code, said = run_job(folder, "own_network", what="learn together")
    assert code == 0, said
    assert said.splitlines()[-1] == "10 True", said

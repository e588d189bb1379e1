"""Networks of users on several nodes: published with their buffers, and learned together."""

from __future__ import annotations

from tests.procs.conftest import RunForked


def test_collectors_act_by_the_published_network_and_its_running_means(
    run_forked: RunForked,
) -> None:
    code, said = run_forked("own_network", what="publish")
    assert code == 0, said
    assert said.splitlines()[-1] == "True True True", said


def test_two_learners_of_a_users_network_stay_equal(run_forked: RunForked) -> None:
    code, said = run_forked("own_network", what="learn together")
    assert code == 0, said
    assert said.splitlines()[-1] == "10 True", said

"""Former names of middleware factories."""

from __future__ import annotations

import pytest

from ding_lite import middleware as mw

FORMER = {
    "checkpoint_together": "checkpoint",
    "evaluate_together": "evaluate",
    "keep_best_agent": "keep_best",
    "keep_champion": "keep_best",
    "keep_pace": "rate_limit",
    "measure": "throughput",
    "recall": "replay_trajectories",
    "resume_together": "resume",
    "stay_within": "env_step_budget",
    "tally": "count_collected",
}


@pytest.mark.parametrize(("former", "present"), FORMER.items())
def test_a_former_name_warns_and_is_the_present_factory(former: str, present: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"middleware.{former}` is now .*{present}"):
        assert getattr(mw, former) is getattr(mw, present)


def test_programs_of_populations_keep_their_name_of_evaluate() -> None:
    assert mw.evaluate_population is mw.evaluate

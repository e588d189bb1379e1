"""Former names of middleware factories, and of parts in checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from ding_lite import middleware as mw
from ding_lite.errors import CheckpointError
from ding_lite.middleware.checkpoints.description import check_fits, describe
from ding_lite.rl.checkpoint.save_load import save_checkpoint

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


def test_a_part_saved_under_its_former_class_name_is_resumed(tmp_path: Path) -> None:
    part = mw.count_collected()
    about = {**describe(part), "kind": "_Tally"}
    state = {"counts": {"env_step": 7, "episodes": 2}}
    save_checkpoint(tmp_path, state, meta={"total_step": 3, "parts": {"counts": about}})
    assert mw.resume({"counts": part}, tmp_path) == {"total_step": 3}
    assert part.state_dict() == state["counts"] | {"collectors": {}}  # type: ignore[attr-defined]


def test_a_collector_saved_under_its_former_class_name_fits() -> None:
    saved, wanted = {"collect": {"kind": "CollectUnroll"}}, {"collect": {"kind": "CollectRollout"}}
    check_fits(saved, wanted, {})
    with pytest.raises(CheckpointError, match="this program has"):
        check_fits({"collect": {"kind": "CollectUnrolls"}}, wanted, {})

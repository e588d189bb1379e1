"""Former names of middleware factories, and of parts in checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ding_lite import middleware as mw
from ding_lite.errors import CheckpointError
from ding_lite.evolution import Population
from ding_lite.middleware.checkpoints.description import describe
from ding_lite.rl import A2C, DQN, Envs
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


FORMER_KINDS: dict[str, Callable[[Envs, Path], Any]] = {
    "Budget": lambda envs, folder: mw.env_step_budget(9, every=1),
    "Champion": lambda envs, folder: mw.keep_best(Population.of(DQN, envs.spec, size=1), folder),
    "CollectUnroll": lambda envs, folder: mw.collect(A2C(envs.spec), envs, unroll=2),
    "_Recall": lambda envs, folder: mw.replay_trajectories(2),
    "_Tally": lambda envs, folder: mw.count_collected(),
}


@pytest.mark.parametrize("former", FORMER_KINDS)
def test_a_part_saved_under_its_former_class_name_is_resumed(
    envs: Envs, tmp_path: Path, former: str
) -> None:
    part = FORMER_KINDS[former](envs, tmp_path)
    for kind in (former, f"{former}s"):
        meta = {"total_step": 3, "parts": {"part": {**describe(part), "kind": kind}}}
        save_checkpoint(tmp_path, {"part": part.state_dict()}, meta=meta)
        if kind == former:
            assert mw.resume({"part": part}, tmp_path) == {"total_step": 3}
    with pytest.raises(CheckpointError, match="this program has"):
        mw.resume({"part": part}, tmp_path)


def test_counts_of_an_earlier_version_go_on() -> None:
    counts: Any = mw.count_collected()
    counts.load_state_dict({"env_step": 7, "episodes": 2})
    assert counts.state_dict() == {"env_step": 7, "episodes": 2, "collectors": {}}

"""The best policy is kept beside the newest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ding_lite import middleware as mw
from ding_lite.middleware.checkpoints.description import described_policy
from ding_lite.rl import DQN, load_checkpoint
from ding_lite.runtime import Context, Middleware, Task
from tests.middleware.running import run_steps


def learn(policy: DQN, values: Sequence[float | None], *, begun: int = 0) -> Middleware:
    """Change the weights in each step, and claim what an evaluation has found, if there is one."""

    def _learn(ctx: Context) -> None:
        step = ctx.total_step
        ctx.env_step, ctx.train_iter = 8 * (step + 1), step + 1
        policy.load_weights({k: torch.full_like(v, step) for k, v in policy.weights().items()})
        value = values[step - begun]
        if value is not None:
            ctx.eval_value = value

    return _learn


def run(policy: DQN, best: Path, values: Sequence[float | None]) -> None:
    run_steps(learn(policy, values), mw.keep_best(policy, best), steps=len(values))


def kept(policy: DQN, best: Path) -> float:
    """Return in which step the weights were what was kept."""
    other = policy.clone()
    other.load_state_dict(load_checkpoint(best).state)
    return float(next(iter(other.weights().values())).flatten()[0])


def test_the_policy_of_the_best_evaluation_is_kept(policy: DQN, tmp_path: Path) -> None:
    run(policy, tmp_path / "best", [None, 5.0, None, 9.0, None, 7.0, 9.0])
    meta = load_checkpoint(tmp_path / "best").meta
    assert kept(policy, tmp_path / "best") == 3.0  # of equals the first
    assert (meta["env_step"], meta["train_iter"], meta["eval_value"]) == (32, 4, 9)
    assert described_policy(meta)[1]["kind"] == "DQN"


def test_a_resumed_run_remembers_the_best_evaluation_if_there_is_one(policy: DQN, tmp_path) -> None:
    best, begun, state = tmp_path / "best", 0, None
    for values, step in (([None, None], None), ([-3.0, 9.0], 3), ([8.0], 3), ([10.0, 9.5], 5)):
        with Task() as task:
            task.use(learn(policy, values, begun=begun)).use(mw.keep_best(policy, best))
            if state is not None:
                task.load_state_dict(state)
            task.run(max_step=len(values))
        begun, state = begun + len(values), task.state_dict()
        assert (kept(policy, best) if best.exists() else None) == step


@pytest.mark.parametrize("values", [[5.0, 9.0], [None, None]])
def test_it_says_when_it_has_seen_no_evaluation(policy, tmp_path, caplog, values) -> None:
    with caplog.at_level("INFO", logger="ding_lite"):
        run_steps(mw.keep_best(policy, tmp_path / "best"), learn(policy, values), steps=2)
    [record] = [r for r in caplog.records if "keep_best" in r.getMessage()]
    assert "place it after `evaluate`" in record.getMessage()
    assert record.levelname == ("INFO" if values[0] is None else "WARNING")

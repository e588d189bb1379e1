"""Save the policy of the best evaluation."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ding_lite.middleware.checkpoint import check_finite, describe_alone, not_finite
from ding_lite.middleware.checks import check_has
from ding_lite.nest import Path as TreePath
from ding_lite.rl.checkpoint.save_load import check_saveable, save_checkpoint
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware


def keep_best(policy: Policy, directory: str | os.PathLike[str]) -> Middleware:
    """Save a policy whenever an evaluation returns more than any before it.

    What learns may also forget, and the last weights of a run are not always its best. Place it
    behind `evaluate`. `ding-lite watch`, and `load_policy` of `ding_lite.recipes`, take what it
    has saved in `best` in the directory of a run. A run that goes on remembers what was best.

    Context:
        reads: env_step, eval_value, total_step, train_iter

    Args:
        policy: The one that is evaluated.
        directory: Made with the first evaluation, if need be.

    Raises:
        CheckpointError: The policy has a state that cannot be saved.
        NonFiniteError: In a step: the policy is broken, and was not saved.

    Example:
        >>> from ding_lite import Task
        >>> from ding_lite.rl import DQN, make_envs
        >>> policy = DQN(make_envs("CartPole-v1", 1).spec)
        >>> _ = Task().use(keep_best(policy, "runs/x/best"))
    """
    check_has(policy, "state_dict", "policy")
    check_saveable(policy.state_dict(), "policy")
    return _KeepBest(policy, Path(directory))


class _KeepBest:
    __name__ = "keep_best"

    def __init__(self, policy: Policy, directory: Path) -> None:
        self._policy = policy
        self._directory = directory
        self._best = -math.inf
        self._known = not_finite(policy.state_dict())

    def __call__(self, ctx: Context) -> None:
        if "eval_value" not in ctx or not ctx.eval_value > self._best:
            return
        save_evaluated(self._policy, self._directory, ctx, known=self._known)
        self._best = float(ctx.eval_value)

    def state_dict(self) -> dict[str, Any]:
        """Return what the next evaluation must exceed; None before the first."""
        return {"best": self._best if math.isfinite(self._best) else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state: what was saved later is saved again, as it was."""
        self._best = -math.inf if state["best"] is None else float(state["best"])


def save_evaluated(
    policy: Policy, directory: Path, ctx: Context, *, known: Collection[TreePath]
) -> None:
    """Save a policy by itself, with what its evaluation in this step has returned.

    `known` is what `not_finite` has returned of it before it learned.

    Raises:
        NonFiniteError: The policy is broken, and was not saved.
    """
    state, train_iter = policy.state_dict(), ctx.get("train_iter", 0)
    check_finite(state, "policy", known=known, train_iter=train_iter, directory=directory)
    meta = {
        "total_step": ctx.total_step,
        "env_step": ctx.get("env_step", 0),
        "train_iter": train_iter,
        "eval_value": float(ctx.eval_value),
        **describe_alone(policy),
    }
    save_checkpoint(directory, state, meta=meta)

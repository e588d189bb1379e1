"""End an evolution within its budget of env steps, including those of evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ding_lite.runtime.context import Context
from ding_lite.settings.rules import at_least, check_all

_SHARE_OF_LONGEST = 0.1
"""The maximum share of the budget for which the longest possible evaluation is assumed."""
_GROWTH = 1.5
"""Otherwise the next evaluation is assumed to take the newest one's env steps times this factor,
as better agents have longer episodes."""


def env_step_budget(max_env_steps: int, *, every: int, longest: int | None = None) -> EnvStepBudget:
    """End the run when another generation and its evaluation might exceed a budget of env steps.

    Place it after `evaluate`. The length of an evaluation is only estimated: from the time limit of
    episodes, or from the newest evaluation. If an evaluation takes more than that, the run exceeds
    the budget, and `overrun` of the returned object describes by how much.

    Context:
        reads: env_step, eval_steps, total_step
        writes: finish

    Args:
        max_env_steps: The budget, including env steps of evaluations.
        every: Steps of the pipeline from one evaluation to the next.
        longest: Env steps of an evaluation with episodes of maximum length; None without a time
            limit.

    Raises:
        ConfigError: A setting is out of range.
    """
    check_all(at_least(1, max_env_steps=max_env_steps, every=every))
    return EnvStepBudget(max_env_steps, every=every, longest=longest)


class EnvStepBudget:
    """The middleware that `env_step_budget` makes."""

    __name__ = "env_step_budget"

    def __init__(self, max_env_steps: int, *, every: int, longest: int | None) -> None:
        self.max_env_steps = max_env_steps
        self._every = every
        self._longest = longest
        self._eval_steps = 0
        self._newest = 0
        self._env_step = 0
        self._generation = 0

    def __call__(self, ctx: Context) -> None:
        now = int(ctx.get("eval_steps", 0))
        if now != self._eval_steps:
            self._newest, self._eval_steps = now - self._eval_steps, now
        if self._is_boundary(ctx):
            env_step = int(ctx.get("env_step", 0))
            self._generation, self._env_step = env_step - self._env_step, env_step
        if self._is_over(ctx):
            ctx.finish = True

    def had_ended(self, ctx: Context) -> bool:
        """Return whether a resumed run had already reached its end."""
        return self._newest > 0 and self._is_over(ctx)

    def _is_boundary(self, ctx: Context) -> bool:
        return (ctx.total_step + 1) % self._every == 0

    def _is_over(self, ctx: Context) -> bool:
        if spent(ctx) >= self.max_env_steps:
            return True
        if not self._is_boundary(ctx):
            return False
        evaluation = int(_GROWTH * self._newest)
        if self._longest is not None and (
            self._longest <= _SHARE_OF_LONGEST * self.max_env_steps or self._longest < evaluation
        ):
            evaluation = self._longest
        return spent(ctx) + self._generation + evaluation > self.max_env_steps

    def overrun(self, ctx: Context) -> str | None:
        """Describe by how much the run exceeded its budget; None if it did not."""
        over = spent(ctx) - self.max_env_steps
        if over <= 0:
            return None
        why = "the run ends with a whole step of the pipeline"
        if self._newest:
            why = (
                f"the newest evaluation took {self._newest:,}, and the length of its episodes is "
                f"not known before it is over"
            )
        return f"{over:,} env steps more than {self.max_env_steps:,} were made: {why}."

    def state_dict(self) -> dict[str, Any]:
        return {
            "eval_steps": self._eval_steps,
            "newest": self._newest,
            "env_step": self._env_step,
            "generation": self._generation,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._eval_steps, self._newest = int(state["eval_steps"]), int(state["newest"])
        self._env_step, self._generation = int(state["env_step"]), int(state["generation"])


def spent(counts: Mapping[str, Any]) -> int:
    """Return all env steps of a ctx or of a row of metrics, including those of evaluations."""
    return int(counts.get("env_step", 0) + (counts.get("eval_steps") or 0))

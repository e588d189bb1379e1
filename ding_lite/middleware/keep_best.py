"""Save the policy, or the agent of a population, of the best evaluation."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, overload

from ding_lite.evolution.agent import Agent
from ding_lite.evolution.population import Population
from ding_lite.middleware.checkpoints.description import POLICY, describe
from ding_lite.middleware.checkpoints.save import check_finite, not_finite
from ding_lite.middleware.checks import check_has
from ding_lite.rl.checkpoint.save_load import check_saveable, save_checkpoint
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware

logger = logging.getLogger(__name__)


@overload
def keep_best(what: Policy, directory: str | os.PathLike[str]) -> KeepBest: ...
@overload
def keep_best(what: Population, directory: str | os.PathLike[str]) -> KeepBestAgent: ...
def keep_best(what: Policy | Population, directory: str | os.PathLike[str]) -> Middleware:
    """Save a policy, or that of the best agent, whenever an evaluation exceeds all previous ones.

    A policy may become worse while it learns, so the last weights of a run are not always its best.
    Place it after `evaluate`, and before a second one: it compares the newest `ctx.eval_value`. For
    a population, `agent` of the returned object is a copy of the best agent. `ding-lite watch` and
    `ding_lite.recipes.load_policy` load the policy that it has saved in `best` in the directory of
    a run. The best return is kept when a run is resumed.

    Context:
        reads: env_step, eval_value, total_step, train_iter

    Args:
        what: The policy that is evaluated, or the population.
        directory: The directory of the checkpoint. It is made with the first save.

    Raises:
        CheckpointError: The state of the policy cannot be saved.
        NonFiniteError: In a step: the policy has weights that are not finite, and was not saved.

    Example:
        >>> from ding_lite import Task
        >>> from ding_lite.rl import DQN, make_envs
        >>> policy = DQN(make_envs("CartPole-v1", 1).spec)
        >>> _ = Task().use(keep_best(policy, "runs/x/best"))
    """
    if isinstance(what, Population):
        return KeepBestAgent(what, Path(directory))
    check_has(what, "state_dict", "policy")
    check_saveable(what.state_dict(), "policy")
    return KeepBest(what, Path(directory))


class KeepBest:
    """The middleware that `keep_best` makes for a policy."""

    __name__ = "keep_best"

    def __init__(self, policy: Policy, directory: Path) -> None:
        self._policy = policy
        self._directory = directory
        self._best = -math.inf
        self._known = not_finite(policy.state_dict())
        self._has_seen = self._is_too_early = False

    def __enter__(self) -> Self:
        return self

    def __call__(self, ctx: Context) -> Iterator[None]:
        if "eval_value" in ctx:
            self._has_seen = True
            if ctx.eval_value > self._best:
                self._take(ctx)
                self._best = float(ctx.eval_value)
        yield
        self._is_too_early |= not self._has_seen and "eval_value" in ctx

    def __exit__(self, *_: object) -> None:
        if not self._has_seen:  # a run may also be too short for an evaluation
            logger.log(
                logging.WARNING if self._is_too_early else logging.INFO,
                "`keep_best` has saved nothing, as it has seen no `eval_value`: place it after "
                "`evaluate`",
            )

    def _take(self, ctx: Context) -> None:
        self.save(self._policy, ctx, ctx.eval_value)

    def save(self, policy: Policy, ctx: Context, value: float) -> None:
        """Save a policy alone, with its mean return."""
        state, train_iter = policy.state_dict(), ctx.get("train_iter", 0)
        directory = self._directory
        check_finite(state, POLICY, known=self._known, train_iter=train_iter, directory=directory)
        meta = {
            "total_step": ctx.total_step,
            "env_step": ctx.get("env_step", 0),
            "train_iter": train_iter,
            "eval_value": float(value),
            POLICY: describe(policy),
        }
        save_checkpoint(directory, state, meta=meta)

    def state_dict(self) -> dict[str, Any]:
        """Return the best return so far; None before the first evaluation."""
        return {"best": self._best if math.isfinite(self._best) else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best = -math.inf if state["best"] is None else float(state["best"])
        self._has_seen = state["best"] is not None


class KeepBestAgent(KeepBest):
    """The middleware that `keep_best` makes for a population."""

    def __init__(self, population: Population, directory: Path) -> None:
        super().__init__(population[0].policy, directory)
        self.population = population
        self._agent: Agent | None = None

    @property
    def agent(self) -> Agent:
        """The copy of the best agent; before the first evaluation the population's best agent."""
        return self.population.best if self._agent is None else self._agent

    def _take(self, ctx: Context) -> None:
        best = self.population.best
        self.save(best.policy, ctx, ctx.eval_value)
        self._agent = best.clone()

    def state_dict(self) -> dict[str, Any]:
        """Return the copy of the best agent and its return; None before the first evaluation."""
        agent = None if self._agent is None else self._agent.state_dict()
        return {"value": super().state_dict()["best"], "agent": agent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({"best": state["value"]})
        self._agent = None
        if state["agent"] is not None:
            self._agent = self.population[0].clone()
            self._agent.load_state_dict(state["agent"])

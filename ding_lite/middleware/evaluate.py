"""Evaluate a policy without exploration, and stop the run at a target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from ding_lite.middleware.checks import check_fits, due
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.evaluation import play
from ding_lite.rl.policies.base import limit_torch_threads
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings import at_least, check_all, positive


def evaluate(
    policy: Policy,
    envs: Envs,
    *,
    every: int,
    stop_at: float | None = None,
    episodes: int | None = None,
    confirm: int = 20,
    confirm_at: float | None = None,
    share: float | None = None,
) -> Middleware:
    """Play greedy episodes now and then, and finish the run once they are good enough.

    The untrained policy is not evaluated: the first evaluation is in step `every`, counted
    from one. The best of many noisy evaluations flatters, so one that reaches `stop_at` is
    repeated with `confirm` fresh episodes, and only their mean counts.

    Context:
        reads: env_step (with share), metrics, total_step
        writes: eval_value, finish, metrics (eval_env_steps, eval_return)

    Args:
        policy: Acts without exploration.
        envs: Envs of their own: those that collect would lose their place.
        every: Steps of the pipeline from one evaluation to the next. Fewer notices success sooner
            and costs more.
        stop_at: The mean return at which `ctx.finish` is set; never by default.
        episodes: Episodes of an evaluation, rounded up to the same number for each env; one
            for each env by default. More is less noisy.
        confirm: Fresh episodes that must reach `stop_at` too, rounded up likewise; 0 believes
            the first ones.
        confirm_at: The mean return from which evaluations are repeated; only from `stop_at` on by
            default. Lower lets `keep_best` choose among those that are good, and not lucky.
        share: The most env steps of evaluations for each one that is learned from, such as 0.1; one
            that would take more, as far as the length of episodes is known, is put off. Fresh
            episodes that confirm an evaluation are played at once, one for each env at a time as
            long as their mean is good, and later evaluations wait longer. Without it nothing is put
            off.

    Raises:
        ConfigError: A setting is out of range, or the policy was made for other envs.
    """
    check_fits(policy, envs)
    check_all(
        at_least(1, every=every),
        at_least(1, episodes=episodes) if episodes is not None else [],
        at_least(0, confirm=confirm),
        positive(share=share) if share is not None else [],
    )
    limit_torch_threads()  # also for a policy that does not do so itself
    goal = math.inf if stop_at is None else stop_at
    return _Evaluate(
        policy,
        envs,
        every=every,
        goal=goal,
        episodes=envs.num_envs if episodes is None else episodes,
        confirm=confirm,
        confirm_at=goal if confirm_at is None else min(goal, confirm_at),
        share=share,
    )


class _Evaluate:
    __name__ = "evaluate"

    def __init__(
        self,
        policy: Policy,
        envs: Envs,
        *,
        every: int,
        goal: float,
        episodes: int,
        confirm: int,
        confirm_at: float,
        share: float | None,
    ) -> None:
        self._policy, self._envs = policy, envs
        self._every, self._goal, self._share = every, goal, share
        self._episodes, self._confirm, self._confirm_at = episodes, confirm, confirm_at
        self._env_steps = 0
        """Those of all evaluations."""
        self._newest = 0.0
        """The env steps of an episode in the newest evaluation."""
        self._of_training: float | None = None
        """The mean length of the newest episodes that were learned from."""

    def __call__(self, ctx: Context) -> None:
        self._of_training = ctx.metrics.get("episode_length", self._of_training)
        if not due(ctx, self._every) or not self._is_paid_for(ctx):
            return
        value = self._play(self._episodes)
        if value >= self._confirm_at and self._confirm:
            value = self._play_again()

        ctx.eval_value = value
        ctx.metrics["eval_return"] = value
        ctx.metrics["eval_env_steps"] = self._env_steps
        if value >= self._goal:
            ctx.finish = True

    def _play_again(self) -> float:
        """Return the mean of fresh episodes; within a share, only of as many as are good."""
        if self._share is None:
            return self._play(self._confirm)
        values: list[float] = []
        for _ in range(self._rounded(self._confirm) // self._envs.num_envs):
            values.append(self._play(self._envs.num_envs))
            if fmean(values) < self._confirm_at:
                break
        return fmean(values)

    def _is_paid_for(self, ctx: Context) -> bool:
        """Return whether another evaluation stays within its share of the env steps."""
        if self._share is None:
            return True
        length = self._of_training or self._envs.spec.max_episode_steps
        if length is None:
            return False  # how long an episode takes is not known before one has ended
        cost = self._rounded(self._episodes) * max(length, self._newest)
        return bool(self._env_steps + cost <= self._share * ctx.get("env_step", 0))

    def _play(self, at_least_episodes: int) -> float:
        episodes = self._rounded(at_least_episodes)
        played = play(self._policy, self._envs, episodes=episodes)
        self._env_steps += played.env_steps
        self._newest = played.env_steps / episodes
        return played.mean_return

    def _rounded(self, episodes: int) -> int:
        num_envs = self._envs.num_envs
        return math.ceil(episodes / num_envs) * num_envs

    def state_dict(self) -> dict[str, Any]:
        """Return what the next evaluations depend on."""
        of_training = self._of_training
        return {
            "env_steps": self._env_steps,
            "newest": self._newest,
            "of_training": None if of_training is None else float(of_training),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self._env_steps, self._newest = int(state["env_steps"]), float(state["newest"])
        self._of_training = state["of_training"]


def stop_at(
    *,
    eval_value: float | None = None,
    env_step: int | None = None,
    train_iter: int | None = None,
) -> Middleware:
    """Finish the run when any of the given numbers is reached.

    Place it after the middleware that writes the number. The step in which it is reached is
    carried on to its end.

    Context:
        reads: env_step, eval_steps (with env_step), eval_value, train_iter
        writes: finish

    Args:
        eval_value: Mean return of an evaluation that is good enough.
        env_step: Env steps to spend at most, those that evaluations of a population have taken
            (`eval_steps`) included.
        train_iter: Updates to make at most.

    Raises:
        ConfigError: No number was given, or one that is not above 0 for a count.
    """
    limits = {
        name: limit
        for name, limit in (
            ("eval_value", eval_value),
            ("env_step", env_step),
            ("train_iter", train_iter),
        )
        if limit is not None
    }
    check_all(
        [] if limits else ["`stop_at` has nothing to stop at; give it `env_step=100_000` or such"],
        at_least(1, env_step=env_step) if env_step is not None else [],
        at_least(1, train_iter=train_iter) if train_iter is not None else [],
    )

    def _stop_at(ctx: Context) -> None:
        if any(name in ctx and reached(ctx, name) >= limit for name, limit in limits.items()):
            ctx.finish = True

    def reached(ctx: Context, name: str) -> float:
        return float(ctx[name] + (ctx.get("eval_steps", 0) if name == "env_step" else 0))

    return _stop_at

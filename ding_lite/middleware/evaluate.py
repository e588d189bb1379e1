"""Evaluate a policy without exploration, and stop the run at a target."""

from __future__ import annotations

import math

from ding_lite.middleware.checks import check_fits, due
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.evaluation import mean_return
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings import at_least, check_all


def evaluate(
    policy: Policy,
    envs: Envs,
    *,
    every: int,
    stop_at: float | None = None,
    episodes: int | None = None,
    confirm: int = 20,
    confirm_at: float | None = None,
) -> Middleware:
    """Play greedy episodes now and then, and finish the run once they are good enough.

    The untrained policy is not evaluated: the first evaluation is in step `every`, counted
    from one. The best of many noisy evaluations flatters, so one that reaches `stop_at` is
    repeated with `confirm` fresh episodes, and only their mean counts.

    Context:
        reads: total_step
        writes: eval_value, finish, metrics (eval_return)

    Args:
        policy: Acts without exploration.
        envs: Envs of their own: those that collect would lose their place.
        every: Steps from one evaluation to the next. Fewer notices success sooner and costs
            more; evaluation should stay below a tenth of the time.
        stop_at: The mean return at which `ctx.finish` is set; never by default.
        episodes: Episodes of an evaluation, rounded up to the same number for each env; one
            for each env by default. More is less noisy.
        confirm: Fresh episodes that must reach `stop_at` too, rounded up likewise; 0 believes
            the first ones.
        confirm_at: The mean return from which evaluations are repeated; only from `stop_at` on by
            default. Lower lets `keep_best` choose among those that are good, and not lucky.

    Raises:
        ConfigError: A setting is out of range, or the policy was made for other envs.
    """
    check_fits(policy, envs)
    check_all(
        at_least(1, every=every),
        at_least(1, episodes=episodes) if episodes is not None else [],
        at_least(0, confirm=confirm),
    )

    goal = math.inf if stop_at is None else stop_at
    is_good = goal if confirm_at is None else min(goal, confirm_at)

    def _evaluate(ctx: Context) -> None:
        if not due(ctx, every):
            return

        value = play(envs.num_envs if episodes is None else episodes)
        if value >= is_good and confirm:
            value = play(confirm)

        ctx.eval_value = value
        ctx.metrics["eval_return"] = value
        if value >= goal:
            ctx.finish = True

    def play(at_least_episodes: int) -> float:
        of_each_env = math.ceil(at_least_episodes / envs.num_envs)
        return mean_return(policy, envs, episodes=of_each_env * envs.num_envs)

    return _evaluate


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

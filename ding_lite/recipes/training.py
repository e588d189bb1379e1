"""Train a policy in one call, as `ding-lite train` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ding_lite import middleware as mw
from ding_lite.middleware.evaluate import Evaluate
from ding_lite.options.derived import documented
from ding_lite.recipes.choices import Choices, checked_settings
from ding_lite.recipes.plan import RunPlan, make_plan
from ding_lite.recipes.runs.directory import has_best, put_best_aside
from ding_lite.recipes.runs.run import Run
from ding_lite.recipes.train_config import SingleConfig
from ding_lite.rl.checkpoint.save_load import load_checkpoint
from ding_lite.rl.envs.making import EnvLike, EnvWrapper
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.protocols import Policy
from ding_lite.rl.weights.compiled import Compile
from ding_lite.rl.weights.flat_module import MakeModule
from ding_lite.rl.weights.optimizers import MakeOptimizer
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import MakeMiddleware, Middleware
from ding_lite.runtime.task import Task

_FEW = 3
"""Evaluations of a run below which a sentence says how to have more."""


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The result of a training."""

    policy: Any
    """The policy of the best evaluation, or the last policy if that was better in the end, or if
    there was no evaluation. It is of the class that was trained."""
    directory: Path
    """The directory of the run's metrics, curve and checkpoint."""
    solved: bool | None
    """Whether 20 fresh greedy episodes reached the target; None without a target."""
    numbers: dict[str, Any]
    """The numbers in the last line of `ding-lite train`: `eval_return`, `env_steps` and so on."""


@documented("train")
def train(  # noqa: PLR0913, D417 - all of a run; all but three by name, and few at a time
    policy: str | type[Any] | Callable[..., Policy],
    env: EnvLike,
    settings: Mapping[str, Any] | None = None,
    *,
    env_args: Mapping[str, Any] | None = None,
    wrappers: Sequence[EnvWrapper] = (),
    imports: Sequence[str] = (),
    network: MakeModule | None = None,
    actor: MakeModule | None = None,
    critic: MakeModule | None = None,
    optimizer: MakeOptimizer | None = None,
    device: str | None = None,
    compile: Compile = None,
    use: Sequence[Middleware] | MakeMiddleware = (),
    config: str | os.PathLike[str] | None = None,
    num_envs: int | None = None,
    seed: int | None = None,
    target: float | None = None,
    max_env_steps: int | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    smoke: bool = False,
    quiet: bool = False,
    **more: Any,  # noqa: ANN401 - settings, which are checked by their own types
) -> TrainResult:
    """Train a policy until it solves an environment, or `max_env_steps` is reached.

    Settings that are not given come from the environment's preset, or from the defaults. Ctrl-C
    ends the run and saves everything; `resume` continues it exactly.

    Args:
        policy: A name such as `dqn` or `path/to/file.py:MyPolicy`, a class of this package, a
            `TorchPolicy`, or a function of the spec that makes a policy. The function is called
            with the run's `seed` if it has such an argument. A subclass of a policy of this package
            has the settings and presets of that policy.
        env: An environment as `make_envs` takes it: an id of gymnasium's registry,
            `package.module:Env-v0`, `path/to/file.py:MyEnv`, a class or a function.
        settings: Settings of the policy and of training: a dict or an EasyDict.
        **more: Further settings by name, such as `lr=1e-3`; they override `settings`.

    Raises:
        ConfigError: A name is not known, or a value is out of range.
        MissingExtraError: The environment needs a package that is not installed.
        CheckpointError: The checkpoint to resume does not fit, or the disk is full.

    Example:
        >>> import tempfile, ding_lite
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     result = ding_lite.train(
        ...         "dqn", "CartPole-v1", lr=1e-3, smoke=True, quiet=True, out=f"{runs}/1"
        ...     )
        >>> result.numbers["env_steps"], result.policy.config.lr
        (2000, 0.001)
    """
    choices = Choices(**locals())  # all arguments, of which it takes the options
    return run_plan(make_plan(policy, env, {**checked_settings(settings), **more}, choices))


def run_plan(plan: RunPlan) -> TrainResult:
    plan.check_env()
    options, config = plan.options, cast(SingleConfig, plan.config)
    stack = config.frame_stack
    eval_seed = options.seed_for("evaluation")
    with (
        make_envs(
            options.env if plan.vector is None else plan.vector,
            options.num_envs,
            seed=options.seed,
            frame_stack=stack,
            **config.learning_from,
        ) as envs,
        make_envs(
            options.env, config.num_eval_envs(options.num_envs), seed=eval_seed, frame_stack=stack
        ) as eval_envs,
    ):
        policy = plan.make_policy(envs.spec)
        config.check_sizes(envs)
        task, config = Task(), config.within(options.max_env_steps, envs.num_envs)
        # Before there is a directory, as it refuses settings that do not fit.
        stored = config.learn(task, policy, envs, seed=options.seed)
        parts = {"policy": policy, "envs": envs, "eval_envs": eval_envs, "task": task, **stored}
        with plan.open_run() as run:
            keep_best = mw.keep_best(policy, run.best)
            ctx, evaluate = _run(plan, run, config, parts, keep_best)
            best = _best_before(run, ctx)
            confirmed = evaluate.final(ctx.get("env_step", 0))

            def deliver(mean_return: float) -> None:
                put_best_aside(run.directory)
                keep_best.save(policy, ctx, mean_return)

            numbers = run.judge(
                policy,
                eval_share=config.eval_share,
                confirmed=confirmed,
                best=best,
                deliver=deliver,
            )
            run.explain(numbers, try_next=_few_evaluations(evaluate.count, config, numbers))
    return TrainResult(
        policy=policy, directory=run.shown, solved=numbers["solved"], numbers=numbers
    )


def _run(
    plan: RunPlan,
    run: Run,
    config: SingleConfig,
    parts: Mapping[str, Any],
    keep_best: Middleware,
) -> tuple[Context, Evaluate]:
    """Train; return the last ctx, and the middleware that has evaluated the policy."""
    options, eval_envs = run.options, parts["eval_envs"]
    goal = options.target + config.target_margin
    with parts["task"] as task:
        evaluate = mw.evaluate(
            parts["policy"],
            eval_envs,
            every=config.every(config.eval_every, options.num_envs),
            stop_at=goal,
            episodes=config.num_eval_episodes,
            confirm=config.confirm_episodes,
            confirm_at=options.target,
            share=config.running_share(eval_envs.spec.max_episode_steps),
            max_env_steps=None if config.eval_share is None else options.max_env_steps,
        )
        task.use(evaluate)
        task.use(keep_best)
        task.use(mw.stop_at(env_step=options.max_env_steps))
        plan.save_and_report(task, run, parts, config)
        run.resume(parts, stop_at=goal)
        task.run()
        return task.ctx, evaluate


def _few_evaluations(count: int, config: SingleConfig, numbers: Mapping[str, Any]) -> str:
    """Return a sentence about few evaluations, if the share is why there were no more."""
    wanted = min(_FEW, (numbers["env_steps"] or 0) // config.eval_every)
    if config.eval_share is None or numbers["solved"] or count >= wanted:
        return ""
    were = "was 1 evaluation" if count == 1 else f"were {count or 'no'} evaluations"
    return (
        f"There {were} before the verdict, as evaluations take at most {config.eval_share:.0%} of "
        f"the env steps. More come with a longer run, with --set eval_share=..., or with --set "
        f"eval_every=..., which lifts this limit."
    )


def _best_before(run: Run, ctx: Context) -> dict[str, Any] | None:
    """Return the state of the policy of the best evaluation, if the last policy is another."""
    if not has_best(run.directory):
        return None
    best = load_checkpoint(run.best)
    return None if best.meta["env_step"] == ctx.get("env_step", 0) else best.state

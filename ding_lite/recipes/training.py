"""Train a policy by its name, in one call: what `ding-lite train` does."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ding_lite import middleware as mw
from ding_lite.recipes.plan import Choices, RunPlan, checked_settings, make_plan
from ding_lite.recipes.recipe import Ingredients
from ding_lite.recipes.runs.directory import has_best, make_next
from ding_lite.recipes.runs.loading import load_policy
from ding_lite.recipes.runs.reporting import save_and_report
from ding_lite.recipes.runs.run import JUDGED_EPISODES, Run
from ding_lite.rl.envs.vector import Envs, make_envs
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.task import Task


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The result of a training."""

    policy: Policy
    """The policy of the best evaluation; the last one where there was none."""
    directory: Path
    """The directory of the run's metrics, curve and checkpoint."""
    solved: bool | None
    """Whether 20 fresh greedy episodes reached the target; None where there was none."""
    numbers: dict[str, Any]
    """The numbers in the last line of `ding-lite train`: `eval_return`, `env_steps` and so on."""


def train(  # noqa: PLR0913 - all of a run; all but three by name, and few at a time
    policy: str,
    env: str,
    settings: Mapping[str, Any] | None = None,
    *,
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
    """Train a policy until it solves an environment, or has had its env steps.

    What is not given comes from a preset for the environment where there is one, else from the
    defaults. Ctrl-C ends the run with everything saved, and `resume` goes on from there exactly.

    Args:
        policy: Which one, such as `dqn`.
        env: An environment of gymnasium's registry.
        settings: Settings of the policy and of training: a dict or an EasyDict.
        num_envs: Environments that are stepped together; 8 unless given.
        seed: Decides everything that is random; 0 unless given.
        target: The mean return of 20 greedy episodes that counts as solved; the environment's
            own `reward_threshold` unless given.
        max_env_steps: Where the run ends at the latest.
        out: The directory of the run; `runs/<policy>/<env>/<number>` unless given.
        resume: Go on with the run in `out`, with the settings it was begun with; it begins if
            there is none.
        smoke: Only try it out, for 2,000 env steps.
        quiet: Show nothing on standard error.
        **more: Further settings by name, such as `lr=1e-3`; they win over `settings`.

    Raises:
        ConfigError: A name is not known, or a value is out of range.
        MissingExtraError: The environment needs a package that is not installed.
        CheckpointError: What is to go on does not fit, or the disk is full.

    Example:
        >>> import tempfile, ding_lite
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     result = ding_lite.train(
        ...         "dqn", "CartPole-v1", lr=1e-3, smoke=True, quiet=True, out=f"{runs}/1"
        ...     )
        >>> result.numbers["env_steps"], result.policy.config.lr
        (2000, 0.001)
    """
    choices = Choices(
        num_envs=num_envs,
        seed=seed,
        target=target,
        max_env_steps=max_env_steps,
        out=None if out is None else Path(out),
        resume=resume,
        smoke=smoke,
    )
    return run_plan(
        make_plan(policy, env, {**checked_settings(settings), **more}, choices), quiet=quiet
    )


def run_plan(plan: RunPlan, *, quiet: bool = False) -> TrainResult:
    """Carry out a plan, and judge the trained policy.

    Args:
        plan: Made by `make_plan`.
        quiet: Show nothing on standard error.
    """
    options, config = plan.options, plan.config
    stack = config.frame_stack
    eval_seed = options.seed_for("evaluation")
    with (
        make_envs(
            options.env,
            plan.num_envs,
            seed=options.seed,
            frame_stack=stack,
            reward_scale=config.reward_scale,
            settings=config.env_settings,
        ) as envs,
        make_envs(options.env, JUDGED_EPISODES, seed=eval_seed, frame_stack=stack) as eval_envs,
    ):
        policy = plan.recipe.policy(envs.spec, plan.policy_config)
        config.check_sizes(envs, policy)
        if options.out is None:
            options = dataclasses.replace(
                options, out=make_next(Path("runs", plan.name, options.env))
            )
        described = {"num_envs": plan.num_envs, **plan.settings}
        with Run(plan.name, options, config=described, quiet=quiet) as run:
            _run(plan, run, policy, envs, eval_envs)
            if has_best(run.directory):
                policy = load_policy(run.directory)
            numbers = run.judge(policy)
            run.explain(numbers)
    return TrainResult(
        policy=policy, directory=run.directory, solved=numbers["solved"], numbers=numbers
    )


def _run(plan: RunPlan, run: Run, policy: Policy, envs: Envs, eval_envs: Envs) -> None:
    options, config = run.options, plan.config
    steps = config.steps_per_update(envs.num_envs)

    def every(env_steps: int) -> int:
        return max(1, env_steps // steps)

    with Task() as task:
        parts: dict[str, object] = {
            "policy": policy,
            "envs": envs,
            "eval_envs": eval_envs,
            "task": task,
        }
        given = Ingredients(policy=policy, envs=envs, config=config, seed=options.seed)
        parts |= plan.recipe.learn(task, given)
        task.use(
            mw.evaluate(
                policy,
                eval_envs,
                every=every(config.eval_every),
                stop_at=options.target + config.target_margin,
                episodes=config.eval_episodes,
                confirm=config.confirm_episodes,
                confirm_at=options.target,
            )
        )
        task.use(mw.keep_best(policy, run.best))
        task.use(mw.stop_at(env_step=options.max_env_steps))
        save_and_report(task, plan, run, parts, every)
        if not run.quiet:
            task.use(mw.progress(max_env_steps=options.max_env_steps, target=options.goal))
        run.resume(parts)
        task.run()

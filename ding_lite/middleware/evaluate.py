"""Evaluate a policy without exploration, and stop the run at a target."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, overload

from ding_lite.distributed.accelerate.processes import Processes
from ding_lite.errors import ConfigError, kind_of
from ding_lite.evolution.population import Population
from ding_lite.interruption import is_interrupted
from ding_lite.middleware.checks import Period, check_fits, check_has, for_all_envs
from ding_lite.middleware.population.evaluate import EvaluatePopulation
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.evaluation import Played, is_below, mean_of_known, play
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings.rules import at_least, check_all, not_nan, positive

logger = logging.getLogger(__name__)

_SHORT = 1_000
"""Episodes up to this length, in env steps, are not cut, even if they exceed the share."""
_CONFIRMED = 20
"""Maximum number of episodes beyond the share, while their mean reaches the target."""


@overload
def evaluate(
    what: Policy,
    envs: Envs,
    *,
    every: int | None = None,
    every_env_steps: int | None = None,
    stop_at: float | None = None,
    episodes: int | None = None,
    confirm: int = 20,
    confirm_at: float | None = None,
    share: float | None = None,
    max_env_steps: int | None = None,
    name: str = "",
) -> Evaluate: ...
@overload
def evaluate(
    what: Population,
    envs: Envs,
    processes: Processes | None = None,
    *,
    every: int | None = None,
    every_env_steps: int | None = None,
    stop_at: float | None = None,
    episodes: int | None = None,
    confirm: int = 20,
    confirm_envs: Envs | None = None,
    max_env_steps: int | None = None,
) -> Middleware: ...
def evaluate(  # noqa: PLR0913 - one of two periods, and few at a time
    what: Policy | Population,
    envs: Envs,
    processes: Processes | None = None,
    *,
    every: int | None = None,
    every_env_steps: int | None = None,
    stop_at: float | None = None,
    episodes: int | None = None,
    confirm: int = 20,
    confirm_at: float | None = None,
    share: float | None = None,
    name: str = "",
    confirm_envs: Envs | None = None,
    max_env_steps: int | None = None,
) -> Middleware:
    """Play greedy episodes periodically, and finish the run once their mean return is high enough.

    The untrained policy is not evaluated: the first evaluation is in step `every`, counted from
    one. The best of many noisy evaluations is biased upwards, so an evaluation that reaches
    `stop_at` is repeated with `confirm` fresh episodes, and only their mean counts.

    With a population every agent is evaluated, and its mean return becomes its fitness; the best
    agent may end the run. The env steps of evaluations are counted in `eval_steps`. With
    `processes` of Accelerate, each process evaluates all agents, and fitness is the mean over
    processes.

    Context:
        reads: env_step (with share, max_env_steps or every_env_steps), eval_steps (of a \
population), metrics, total_step
        writes: eval_steps (of a population), eval_value, finish, metrics (eval_env_steps, \
eval_episodes, eval_return, eval_steps, eval_success_rate, fitness_mean)
        keeps: eval_steps (of a population)

    Args:
        what: A policy, or a population; it acts without exploration.
        envs: Environments for evaluations only, as evaluations reset them. For a population, use
            fewer envs than episodes: fewer are then idle at the end, which also costs env steps.
        processes: The processes that evaluate the same population, each in envs with another seed.
        every: Steps of the pipeline from one evaluation to the next. A lower number notices success
            sooner and costs more. For a population, the same as in `evolve`, or a fraction of it.
        every_env_steps: Env steps of the ctx from one evaluation to the next, instead of `every`.
        stop_at: The mean return at which `ctx.finish` is set; never by default.
        episodes: Episodes of an evaluation, or of each agent, for each process; one for each env
            by default. More is less noisy. For a policy the number is rounded up to a multiple of
            the number of envs.
        confirm: Fresh episodes, of all processes together; their mean must also reach `stop_at`. 0
            accepts the first evaluation.
        confirm_at: The mean return from which evaluations of a policy are repeated; `stop_at` by
            default. With a lower value `keep_best` compares confirmed evaluations.
        share: The maximum ratio of evaluation env steps to training env steps of a policy, such as
            0.1; no limit by default. An evaluation begins when the remaining share covers its
            episodes, at the episode length so far; or, once a training episode has reached
            `confirm_at`, as soon as earlier evaluations are covered. It plays one episode in each
            env at a time, and continues while the share covers it or the mean is high enough, up to
            `confirm` episodes, and beyond 20 only within the share. An evaluation that exceeds the
            share delays later ones. Episodes that take much longer than the share covers are cut.
        name: The name of a further evaluation of the same policy, such as one in other envs. Its
            metrics end in it, as `eval_return/hard` does, and it sets no `eval_value`, so that
            `keep_best`, `curve` and `stop_at` follow the other one.
        confirm_envs: The environments of the best agent's fresh episodes; `envs` by default. Use
            it for whole episodes if those of `envs` are cut to save env steps.
        max_env_steps: Maximum env steps of the run. If the `share` of these does not cover even one
            evaluation of a policy, evaluations have fewer episodes: as many as it covers twice. For
            a population they include those of evaluations: fresh episodes that might exceed them
            are not played, and the run continues. An evaluation that could not be confirmed sets no
            `eval_value`.

    Raises:
        ConfigError: A setting is out of range or does not apply to a policy or a population, or
            the policy was made for other envs.
        MiddlewareError: In a step: another process is at another place of its program.
        PeerLost: In a step: another process has ended, or has not responded in time.
    """
    goals = {"stop_at": stop_at, "confirm_at": confirm_at}
    check_all(
        at_least(1, episodes=episodes) if episodes is not None else [],
        not_nan(**{name: value for name, value in goals.items() if value is not None}),
        at_least(0, confirm=confirm),
        positive(share=share) if share is not None else [],
        at_least(1, max_env_steps=max_env_steps) if max_env_steps is not None else [],
    )
    check_has(envs, "random_actions", "envs")
    goal = math.inf if stop_at is None else stop_at
    period = Period(every, every_env_steps)
    episodes = envs.num_envs if episodes is None else episodes
    of_policy: dict[str, object] = {"confirm_at": confirm_at, "share": share, "name": name or None}
    of_agents: dict[str, object] = {"confirm_envs": confirm_envs, "max_env_steps": max_env_steps}
    if isinstance(what, Population):
        in_steps = {**of_agents, "every_env_steps": every_env_steps}
        _refuse(of_policy if processes is None else {**of_policy, **in_steps}, what)
        check_fits(what[0], envs)
        sure_envs = envs if confirm_envs is None else confirm_envs
        check_fits(what[0], sure_envs)
        if processes is not None:
            check_has(processes, "gather", "processes")
        return EvaluatePopulation(
            what, envs, period, goal, episodes, confirm, sure_envs, max_env_steps, processes
        )
    if share is not None:
        del of_agents["max_env_steps"]
    _refuse({**of_agents, "processes": processes}, what)
    check_fits(what, envs)
    confirm_at = goal if confirm_at is None else min(goal, confirm_at)
    episodes, confirm = for_all_envs(episodes, envs), for_all_envs(confirm, envs)
    return Evaluate(
        what, envs, period, goal, episodes, confirm, confirm_at, share, max_env_steps, name
    )


def _refuse(misplaced: Mapping[str, object], what: object) -> None:
    if given := [name for name, value in misplaced.items() if value is not None]:
        raise ConfigError(
            f"`{given[0]}` is not for this evaluation of {kind_of(what)}. Leave it out."
        )


@dataclass(eq=False)
class Evaluate:
    """The middleware that `evaluate` makes."""

    __name__ = "evaluate"

    _policy: Policy
    _envs: Envs
    _period: Period
    _goal: float
    _episodes: int
    _confirm: int
    _confirm_at: float
    _share: float | None
    _max_env_steps: int | None
    _name: str
    count: int = 0
    """The number of evaluations so far."""
    _env_steps: int = 0
    """Env steps of all evaluations."""
    _newest: float = 0.0
    """The length of an episode in the newest evaluation; doubled if the episode was cut."""
    _of_training: float | None = None
    """The mean length of the newest training episodes."""
    _is_near: bool = False
    """Whether a training episode has reached `_confirm_at` since the newest evaluation."""
    _final: tuple[int, float, int, int] | None = None
    """The env step, mean return, env steps and episodes of an evaluation that ended the run."""
    _last_obs: NumpyArray | None = None
    """The observations of the envs after the newest evaluation."""
    _success_rate: float | None = None
    """The share of successful episodes in the newest evaluation."""
    _has_warned: bool = False

    def __call__(self, ctx: Context) -> None:
        self._of_training = ctx.metrics.get("episode_length", self._of_training)
        self._is_near |= ctx.metrics.get("episode_return", -math.inf) >= self._confirm_at
        if not self._period.is_due(ctx):
            return
        if self._share is None:
            self._check_own()
            value, episodes = self._play(self._episodes)
            if value >= self._confirm_at and self._confirm:
                value, episodes = self._play(self._confirm)
            is_final = value >= self._goal
        else:
            left = self._share * ctx.get("env_step", 0) - self._env_steps
            if not self._is_paid_for(left):
                return
            self._check_own()
            value, episodes, is_final = self._play_within(left, ctx)
        if episodes < self._envs.num_envs and is_interrupted():
            return
        self.count += 1
        self._last_obs = self._envs.obs
        metrics = {"return": value, "episodes": episodes, "env_steps": self._env_steps}
        if self._success_rate is not None:
            metrics["success_rate"] = self._success_rate
        end = f"/{self._name}" if self._name else ""
        ctx.metrics.update({f"eval_{name}{end}": number for name, number in metrics.items()})
        if episodes >= self._envs.num_envs and not self._name:
            ctx.eval_value = value
        if is_final:
            ctx.finish = True

    def _check_own(self) -> None:
        """Warn once if the envs were stepped since the newest evaluation, as by `collect`."""
        if self._has_warned or self._last_obs is None or self._envs.obs is self._last_obs:
            return
        self._has_warned = True
        logger.warning(
            "the envs of `evaluate` are stepped by others too, such as `collect`; evaluations cut "
            "their episodes: make envs for evaluations only"
        )

    def final(self, env_step: int) -> Played | None:
        """Return the evaluation within a share that ended the run at this env step, else None."""
        if self._final is None or self._final[0] != env_step:
            return None
        return Played(*self._final[1:])

    def _is_paid_for(self, left: float) -> bool:
        """Return whether the share covers an evaluation, or a promising one may begin."""
        if self._is_near and left >= 0:
            return True
        length = self._of_training or self._envs.spec.max_episode_steps
        if length is None:
            return False  # the length of episodes is not known before one has ended
        length = max(length, self._newest)
        return left >= self._affordable(length) * length

    def _affordable(self, length: float) -> int:
        """Return the episodes of an evaluation; fewer if the run ends before they are paid for."""
        share, most, num_envs = self._share, self._max_env_steps, self._envs.num_envs
        if share is None or most is None or share * most > self._episodes * length:
            return self._episodes
        return max(1, int(share * most / (2 * length)) // num_envs) * num_envs

    def _play_within(self, left: float, ctx: Context) -> tuple[float, int, bool]:
        """Return the mean return, the number of completed episodes, and whether the run ends."""
        num_envs, self._is_near = self._envs.num_envs, False
        most = max(self._episodes, self._confirm)
        values: list[float] = []
        rates: list[float | None] = []
        spent, longest = 0, _SHORT
        while True:
            limit = max(int(left) - spent, longest * num_envs)
            played = play(self._policy, self._envs, max_env_steps=limit)
            spent += played.env_steps
            self._newest = played.env_steps / num_envs
            if played.episodes < num_envs:  # only the short episodes have ended
                self._newest *= 2
                is_good = False
                break
            longest = max(longest, 2 * played.env_steps // num_envs)
            values.append(played.mean_return)
            rates.append(played.success_rate)
            if spent < left:
                is_good = not is_below(self._confirm_at, values)
                wanted = most if is_good else self._episodes
            else:
                is_good = fmean(values) >= self._goal
                wanted = min(most, _CONFIRMED) if is_good else 0
            if len(values) * num_envs >= wanted:
                break
        self._env_steps += spent
        self._success_rate = mean_of_known(rates)
        if not values:
            return played.mean_return, played.episodes, False
        value, count = fmean(values), len(values) * num_envs
        is_final = is_good and value >= self._goal and count >= min(most, _CONFIRMED)
        if is_final:
            self._final = ctx.get("env_step", 0), value, spent, count
        return value, count, is_final

    def _play(self, episodes: int) -> tuple[float, int]:
        played = play(self._policy, self._envs, episodes=episodes)
        self._env_steps += played.env_steps
        self._success_rate = played.success_rate
        # Of those that a signal has cut short, the first episodes to end are mostly short ones.
        return played.mean_return, episodes if played.episodes == episodes else 0

    def state_dict(self) -> dict[str, Any]:
        of_training = self._of_training
        return {
            "count": self.count,
            "env_steps": self._env_steps,
            "newest": self._newest,
            "of_training": None if of_training is None else float(of_training),
            "is_near": self._is_near,
            "final": self._final,
            **self._period.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._period.load_state_dict(state)
        self.count = int(state["count"])
        self._env_steps, self._newest = int(state["env_steps"]), float(state["newest"])
        self._of_training = state["of_training"]
        self._is_near = bool(state["is_near"])
        self._final = None if state["final"] is None else tuple(state["final"])
        self._last_obs = None


def stop_at(
    *,
    eval_value: float | None = None,
    env_step: int | None = None,
    train_iter: int | None = None,
) -> Middleware:
    """Finish the run when any of the given numbers is reached.

    Place it after the middleware that writes the number. The step that reaches it is completed.

    Context:
        reads: env_step, eval_steps (with env_step), eval_value, train_iter
        writes: finish

    Args:
        eval_value: Mean return of an evaluation.
        env_step: Maximum env steps, including those of evaluations of a population (`eval_steps`).
        train_iter: Maximum number of updates.

    Raises:
        ConfigError: No number was given, or a count is not above 0.
    """
    given = {"eval_value": eval_value, "env_step": env_step, "train_iter": train_iter}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    counts = {name: limit for name, limit in limits.items() if name != "eval_value"}
    check_all(
        [] if limits else ["`stop_at` has nothing to stop at; give it `env_step=100_000` or such"],
        not_nan(eval_value=eval_value) if eval_value is not None else [],
        at_least(1, **counts),
    )

    def _stop_at(ctx: Context) -> None:
        for name, limit in limits.items():
            more = ctx.get("eval_steps", 0) if name == "env_step" else 0
            if name in ctx and ctx[name] + more >= limit:
                ctx.finish = True

    return _stop_at

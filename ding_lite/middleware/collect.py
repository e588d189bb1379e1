"""Collect experience: a policy acts in vectors of environments."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, overload

import numpy as np

from ding_lite.distributed.server import new_incarnation
from ding_lite.distributed.topics import COLLECTED
from ding_lite.errors import ConfigError
from ding_lite.middleware.checks import check_fits, check_has, check_schedule
from ding_lite.rl.batch import NumpyArray, Rollout, Transitions
from ding_lite.rl.envs.sizes import check_steps_fit
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.evaluation import mean_of_known
from ding_lite.rl.formulas.returns import NStep
from ding_lite.rl.formulas.schedules import Schedule
from ding_lite.rl.memory import Memory, fitted, memory_of
from ding_lite.rl.policies.base.open_policy import OpenPolicy
from ding_lite.rl.protocols import ActorCritic, Policy, Replay, TakesTurns
from ding_lite.rl.seeding import spawn_seeds
from ding_lite.rl.spec import within
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import current_router
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings.rules import at_least, check_all, whole

RECENT_EPISODES = 20
"""The number of episodes in the mean `ctx.metrics["return"]`."""


@overload
def collect(
    policy: Policy, envs: Envs, *, steps: int, epsilon: Schedule | None = None
) -> Middleware: ...
@overload
def collect(policy: ActorCritic | TakesTurns, envs: Envs, *, unroll: int) -> Middleware: ...
def collect(
    policy: Policy,
    envs: Envs,
    *,
    steps: int | None = None,
    unroll: int | None = None,
    epsilon: Schedule | None = None,
) -> Middleware:
    """Act with a policy in environments, and put the experience on the ctx.

    With `steps`, the experience is `ctx.transitions`, for a replay. For a policy with n-step
    returns the rewards are summed here, so the first steps yield fewer transitions than env steps,
    and the end of an episode yields more. An `Agent` shares the envs with other agents, so its
    incomplete n-step transitions are shortened and passed on at the end of each step.

    With a policy that has memory, each env step is one transition, and the recurrent state before
    it is `transitions.extra["state"]`, which an `EpisodeBuffer` with a `state_size` stores.

    With `unroll`, the experience is `ctx.trajectories`, a list of one `Rollout`: env steps in order
    with the log-probabilities of actions, for an `ActorCritic` such as A2C, PPO or IMPALA.

    Policies of one seed explore differently on each node: except on node 0, the random numbers of a
    policy that has not acted yet are derived from `config.seed` and the node.

    A second `collect` replaces what the first one has put on the ctx, so `add_to` or `train`
    belongs between them.

    When episodes have ended, the metrics contain `return` and `episode_length` (means of the last
    20 episodes), `episode_return` (the mean of those that ended in this step) and `episodes` (the
    number of those of this middleware so far), and `success_rate` (of the last 20 episodes) if the
    environment returns `info["is_success"]`; `ctx.collected` holds them with the `returns` of this
    step, and is set only in such steps. The counts are published for `count_collected` on other
    nodes.

    Context:
        reads: env_step, weights_version (with unroll)
        writes: collected, env_step, trajectories (with unroll), transitions (with steps), metrics \
(episode_length, episode_return, episodes, epsilon, return, success_rate)
        keeps: env_step

    Args:
        policy: Acts with exploration.
        envs: The environments. Each step continues their episodes.
        steps: Env steps of all envs together in each step of the pipeline, a multiple of the number
            of envs.
        unroll: Env steps of each env in each step of the pipeline, instead of `steps`. More uses
            longer sums of rewards before it bootstraps, and learns less often; 5 to 128 are usual,
            and up to 2,048 for PPO.
        epsilon: Share of random actions as a function of the env step; by default the policy
            explores according to its settings.

    Raises:
        ConfigError: `steps` does not fit the envs, not exactly one of `steps` and `unroll` was
            given, the policy was made for other envs, it does not accept an epsilon, or it does
            not return the log-probabilities of its actions.
        NonFiniteError: In a step: an env returned an observation that is not finite.
    """
    check_fits(policy, envs)
    check_schedule(epsilon, "epsilon")
    if unroll is not None:
        if steps is not None or epsilon is not None:
            raise ConfigError(
                f"`unroll` is {unroll}, and `{'epsilon' if steps is None else 'steps'}` was given "
                f"too. Rollouts are of {unroll} steps of each env, by a policy that explores by "
                f"itself: give one of `steps` and `unroll`, and `epsilon` only with `steps`."
            )
        check_all(whole(1, unroll=unroll))
        check_steps_fit(envs.spec, unroll * envs.num_envs, unroll=unroll)
        return _CollectRollout(_check_explores(policy), envs, unroll)
    if steps is None:
        raise ConfigError(
            "Neither `steps` nor `unroll` was given. Give `steps` for transitions, which go to a "
            "replay, or `unroll` for env steps in order, which A2C, PPO and IMPALA learn from."
        )
    _check_steps(steps, envs.num_envs)
    if epsilon is not None:
        _check_takes_epsilon(policy)
    if policy.n_step > 1 and memory_of(policy, envs.num_envs) is not None:
        raise ConfigError(
            f"`n_step` of this {type(policy).__name__} is {policy.n_step}, and it has memory: "
            f"states belong to env steps, so 1 was expected. Sum rewards within sequences, as R2D2 "
            f"does."
        )
    check_steps_fit(envs.spec, steps, steps=steps)
    check_steps_fit(envs.spec, policy.n_step * envs.num_envs, n_step=policy.n_step)

    return _CollectTransitions(policy, envs, steps, epsilon)


class _Collector(ABC):
    """The middleware that `collect` makes."""

    __name__ = "collect"

    def __init__(self, policy: Policy, envs: Envs) -> None:
        _draw_as_node(policy, current_router().node_id)
        self._policy: Any = policy
        self._envs = envs
        self._counts = _Counts()
        self._memory = _EnvMemory(policy, envs)

    def __call__(self, ctx: Context) -> None:
        began = ctx.get("env_step", 0)
        ctx.env_step = self._collect(ctx, began)
        ctx.keep("env_step")
        self._counts.report(ctx, self._envs, ctx.env_step - began)

    @abstractmethod
    def _collect(self, ctx: Context, env_step: int) -> int:
        """Put the experience of a step on the ctx; return the env steps by then."""

    def state_dict(self) -> dict[str, Any]:
        return {**self._counts.state_dict(), **self._memory.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._counts.load_state_dict(state)
        self._memory.load_state_dict(state)


class _CollectTransitions(_Collector):
    """Acts for transitions; keeps incomplete n-step transitions."""

    def __init__(self, policy: Policy, envs: Envs, steps: int, epsilon: Schedule | None) -> None:
        super().__init__(policy, envs)
        self._leaves_envs = isinstance(policy, TakesTurns)
        self._num_rounds = steps // envs.num_envs
        self._epsilon = epsilon
        self._join_rewards = NStep(policy.n_step, policy.gamma, num_envs=envs.num_envs)
        self._last_obs: NumpyArray | None = None
        self._is_loaded = False

    def _collect(self, ctx: Context, env_step: int) -> int:
        envs, epsilon, memory = self._envs, self._epsilon, self._memory.begin()
        collected = []
        if envs.obs is not self._last_obs:  # they may have begun new episodes since
            # A resumed run has other arrays: there the numbers show which episodes go on.
            rest = self._join_rewards.flush(envs.obs if self._is_loaded else None)
            if rest is not None:
                collected.append(rest)
        self._is_loaded = False
        act: Callable[..., NumpyArray] = self._policy.act
        if memory is not None:
            act = partial(act, memory=memory)

        for _ in range(self._num_rounds):
            state = None if memory is None else memory.state.copy()
            if epsilon is None:
                actions = act(envs.obs)
            else:
                ctx.metrics["epsilon"] = share = epsilon(env_step)
                actions = act(envs.obs, epsilon=share)
            step = envs.step(actions)
            transitions = self._join_rewards(step)
            if memory is not None and state is not None:
                transitions = transitions.with_extra(state=state)
                memory.reset(step.terminated | step.truncated)
            collected.append(transitions)
            env_step += envs.num_envs
        if self._leaves_envs and (rest := self._join_rewards.flush()) is not None:
            collected.append(rest)

        self._last_obs = envs.obs
        self._memory.end()
        ctx.transitions = collected[0] if len(collected) == 1 else _concatenate(collected)
        return env_step

    def state_dict(self) -> dict[str, Any]:
        return {"join_rewards": self._join_rewards.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._join_rewards.load_state_dict(state["join_rewards"])
        self._is_loaded = True
        super().load_state_dict(state)


class _CollectRollout(_Collector):
    """Acts `num_steps` times in each env for one `Rollout`."""

    def __init__(self, policy: ActorCritic, envs: Envs, num_steps: int) -> None:
        super().__init__(policy, envs)
        self._num_steps = num_steps

    def _collect(self, ctx: Context, env_step: int) -> int:
        policy, envs, memory = self._policy, self._envs, self._memory.begin()
        version = ctx.get("weights_version", 0)
        more = {} if memory is None else {"memory": memory}
        state = None if memory is None else memory.state.copy()
        spec = envs.spec
        shape_TN = (self._num_steps, envs.num_envs)
        obs = np.empty((*shape_TN, *spec.obs_shape), dtype=spec.obs_dtype)
        action = np.empty((*shape_TN, *spec.action_shape), dtype=spec.action_dtype)
        reward, log_prob = np.empty((2, *shape_TN), dtype=np.float32)
        terminated, truncated = np.empty((2, *shape_TN), dtype=np.bool_)
        last_obs = envs.obs
        cut_obs: list[NumpyArray] = []

        for time in range(self._num_steps):
            action[time], log_prob[time] = policy.explore(envs.obs, **more)
            step = envs.step(within(spec, action[time]))
            obs[time] = step.obs
            reward[time] = step.reward
            terminated[time] = step.terminated
            truncated[time] = step.truncated
            last_obs = step.next_obs
            if memory is not None:
                memory.reset(step.terminated | step.truncated)
            if step.truncated.any():
                cut_obs.append(step.next_obs[step.truncated & ~step.terminated])

        self._memory.end()
        cut_time, cut_env = np.nonzero(truncated & ~terminated)
        rollout = Rollout(
            obs=obs,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            log_prob=log_prob,
            last_obs=last_obs,
            cut_time=cut_time.astype(np.int64),
            cut_env=cut_env.astype(np.int64),
            cut_obs=np.concatenate(cut_obs) if cut_obs else obs[0, :0],
            version=version,
            state=state,
        )
        ctx.trajectories = [rollout]
        return env_step + self._num_steps * envs.num_envs


class _EnvMemory:
    """The memory of a policy between steps of a collector, if the policy has one."""

    def __init__(self, policy: object, envs: Envs) -> None:
        self._policy, self._envs = policy, envs
        self._memory = memory_of(policy, envs.num_envs)
        self._seen_obs: NumpyArray | None = None
        self._is_loaded = False

    def begin(self) -> Memory | None:
        """Return the memory, without the states of envs that have changed since `end`.

        They change in an evaluation, in a resumed run, or if another collector has stepped them.
        """
        memory = self._memory = fitted(self._memory, self._policy, self._envs.num_envs)
        seen_obs, obs = self._seen_obs, self._envs.obs
        # Each step of the envs makes a new array, also where the numbers are the same.
        if memory is not None and seen_obs is not obs:
            if self._is_loaded and seen_obs is not None:
                memory.reset((obs != seen_obs).reshape(len(memory), -1).any(axis=1))
            else:
                memory.reset()
        self._is_loaded = False
        return memory

    def end(self) -> None:
        self._seen_obs = None if self._memory is None else self._envs.obs

    def state_dict(self) -> dict[str, Any]:
        memory = fitted(self._memory, self._policy, self._envs.num_envs)
        if memory is None:
            return {}
        goes_on = self._is_loaded or self._envs.is_at(self._seen_obs)
        return {"memory": {**memory.state_dict(), "obs": self._seen_obs if goes_on else None}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._memory = fitted(self._memory, self._policy, self._envs.num_envs)
        if self._memory is not None:
            self._memory.load_state_dict(state["memory"])
            self._seen_obs, self._is_loaded = state["memory"].get("obs"), True


class _Counts:
    """Counts env steps and episodes, and keeps the newest episodes."""

    def __init__(self) -> None:
        self._router = current_router()
        self._recent: deque[tuple[float, int, bool | None]] = deque(maxlen=RECENT_EPISODES)
        self._incarnation = self._begin()
        self._made: dict[str, list[int]] = {}
        """The env steps and episodes of this incarnation, and of those that it has resumed from."""

    def report(self, ctx: Context, envs: Envs, env_steps: int) -> None:
        """Write the metrics of the episodes that have just ended, and publish the counts."""
        ended = envs.take_finished()
        self._recent.extend((one.ret, one.length, one.success) for one in ended)
        self.add(ctx, env_steps, len(ended))
        if ended:
            ctx.collected = {**self._metrics(), "returns": [episode.ret for episode in ended]}
            ctx.metrics.update(self._metrics())
            ctx.metrics["episode_return"] = sum(episode.ret for episode in ended) / len(ended)

    def add(self, ctx: Context, env_steps: int, episodes: int = 0) -> None:
        """Count what was made since the last call, and publish the counts of this node."""
        own = self._incarnation
        before = self._made.get(own, (0, 0))
        total = before[0] + env_steps
        if not self._router.is_active:  # also what other stages of the process have made
            total = ctx.env_step - sum(made[0] for n, made in self._made.items() if n != own)
        self._made[own] = [total, before[1] + episodes]
        if self._router.is_active:
            published = self._router.published(COLLECTED) or {"made": {}}
            made = published["made"] | self._made
            self._router.publish(COLLECTED, {**self._metrics(), "made": made})

    def _metrics(self) -> dict[str, Any]:
        count = sum(episodes for _, episodes in self._made.values())
        if not self._recent:
            return {"episodes": count}
        returns, lengths, successes = zip(*self._recent, strict=True)
        rate = mean_of_known(successes)
        return ({} if rate is None else {"success_rate": rate}) | {
            "return": sum(returns) / len(returns),
            "episode_length": sum(lengths) / len(lengths),
            "episodes": count,
        }

    def state_dict(self) -> dict[str, Any]:
        return {"recent": [*self._recent], "made": dict(self._made)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        recent = ((*one, None)[:3] for one in state["recent"])  # earlier versions have saved pairs
        self._recent = deque(recent, maxlen=RECENT_EPISODES)
        self._incarnation, self._made = self._begin(), dict(state["made"])

    def _begin(self) -> str:
        """Return an incarnation; a single process has one, so that its checkpoints are equal."""
        return str(new_incarnation()) if self._router.is_active else "alone"


def random_warmup(envs: Envs, replay: Replay, *, steps: int, hold: int = 1) -> Middleware:
    """Fill a replay with transitions of random actions at the beginning of the first step.

    It acts only in its first step, and only until the replay holds `steps` transitions: a resumed
    run with enough transitions continues at once.

    Context:
        reads: env_step
        writes: env_step, metrics (replay_size)
        keeps: env_step

    Args:
        envs: The environments of `collect`; their episodes continue there.
        replay: Receives one transition for each env step.
        steps: Number of transitions to reach, rounded up to a multiple of the number of envs. More
            makes the first batches more diverse; 1,000 is usual for small envs.
        hold: Steps for which each random action is repeated. More explores further where single
            random actions cancel each other out; 1 is usual.

    Raises:
        ConfigError: `steps` exceeds the capacity of the replay, or, in a step, the transitions for
            which it has room; or `hold` is above 1 and the legal actions change from step to step.
    """
    check_has(envs, "step", "envs")
    check_has(replay, "add", "replay")
    check_all(at_least(1, steps=steps), whole(1, hold=hold))
    if hold > 1 and envs.spec.has_action_mask:
        raise ConfigError(
            f"`hold` is {hold}, but the legal actions of {envs.spec.env_id} change from step to "
            f"step, and a repeated one may be illegal. Leave it at 1."
        )
    if steps > replay.capacity:
        raise ConfigError(
            f"`steps` is {steps:,}, the capacity of the replay {replay.capacity:,}: the first "
            f"random transitions would be overwritten. Take fewer, or give the replay more room."
        )

    warm, counts = False, _Counts()

    def _random_warmup(ctx: Context) -> None:
        nonlocal warm
        ctx.setdefault("env_step", 0)
        ctx.keep("env_step")
        if warm:
            return

        one_step = NStep(1, 1.0, num_envs=envs.num_envs)
        began, most = ctx.env_step, steps + envs.num_envs * replay.capacity
        while len(replay) < steps:
            if (made := ctx.env_step - began) >= most:
                raise ConfigError(
                    f"`steps` is {steps:,}, but the replay holds {len(replay):,} transitions after "
                    f"{made:,} env steps: it has no room for more. Take fewer steps, or give the "
                    f"replay more room."
                )
            action = envs.random_actions()
            for _ in range(hold):
                replay.add(one_step(envs.step(action)))
                ctx.env_step += envs.num_envs
                if len(replay) >= steps:
                    break
        ctx.metrics["replay_size"] = len(replay)
        counts.add(ctx, ctx.env_step - began)
        warm = True

    return _random_warmup


def _draw_as_node(policy: object, node_id: int) -> None:
    """Derive a new policy's random numbers from the node, too: collectors then differ."""
    if node_id > 0 and isinstance(policy, OpenPolicy) and not policy.env_step:
        (seed,) = spawn_seeds(policy.config.seed, f"node {node_id}", count=1)
        policy.reseed(seed)


def _concatenate(parts: list[Transitions]) -> Transitions:
    joined = Transitions(
        *(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Transitions))
    )
    if not parts[0].extra:
        return joined
    own = {name: np.concatenate([part.extra[name] for part in parts]) for name in parts[0].extra}
    return joined.with_extra(**own)


def _check_steps(steps: int, num_envs: int) -> None:
    check_all(whole(1, steps=steps))
    if steps % num_envs:
        below = max(1, steps // num_envs) * num_envs
        raise ConfigError(
            f"`steps` is {steps}, the number of envs {num_envs}. `steps` counts the env steps of "
            f"all envs together, so it must be a multiple of {num_envs}, such as {below}."
        )


def _check_explores(policy: Policy) -> ActorCritic:
    if not isinstance(policy, ActorCritic):
        raise ConfigError(
            f"`unroll` was given, but {type(policy).__name__} has no `explore` method, so it "
            f"cannot say how likely its actions were. Give `steps` instead, or take A2C, PPO or "
            f"IMPALA."
        )
    return policy


def _check_takes_epsilon(policy: Policy) -> None:
    if isinstance(policy, TakesTurns):
        policy = policy.policy
    if "epsilon" not in inspect.signature(policy.act).parameters:
        raise ConfigError(
            f"`epsilon` was given, but {type(policy).__name__}.act takes no `epsilon`: this "
            f"policy explores by itself. Leave `epsilon` out."
        )

"""Add transitions to a replay, update its priorities, and replay trajectories to a learner."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from ding_lite.errors import ConfigError, kind_of
from ding_lite.middleware.checks import check_has
from ding_lite.rl.batch import Array, PrioritizedTransitions, Rollout, Transitions, to_numpy
from ding_lite.rl.protocols import FilledByOthers, Prioritized, Replay
from ding_lite.rl.replay.episodes import EpisodeBuffer
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings.rules import at_least, check_all, whole


def add_to(
    replay: Replay | EpisodeBuffer, *, priority: Callable[[Transitions], Array] | None = None
) -> Middleware:
    """Add the transitions of `collect`, or a list of transitions of `receive`, to a replay.

    Context:
        reads: transitions
        writes: metrics (replay_size)

    Args:
        replay: Any object with `add(transitions)` and `len()`. An `EpisodeBuffer` accepts
            transitions of one env step each; with a `state_size`, those of a policy with memory.
        priority: Computes the priority of each transition, [B], before it is added, like the
            collectors of Ape-X: `priority=policy.td_errors` (DQN and `TorchPolicy`; other
            collectors have no critics). The absolute value is used. If `train` normalises rewards,
            errors need its unit: `lambda batch: policy.td_errors(envs.reward_norm(batch))`. By
            default a new transition has the highest priority of the replay.

    Raises:
        ConfigError: `replay` is no replay, or does not accept priorities.
    """
    check_has(replay, "add", "replay")
    if priority is None:
        add: Callable[[Transitions], None] = replay.add
    else:
        add = _with_priority(check_prioritized(replay, why="`priority` was given"), priority)

    def _add_to(ctx: Context) -> None:
        for transitions in _as_list(ctx.transitions):
            add(transitions)
        ctx.metrics["replay_size"] = len(replay)

    return _add_to


def _as_list(newest: Transitions | list[Transitions]) -> list[Transitions]:
    return newest if isinstance(newest, list) else [newest]


def _with_priority(
    replay: Prioritized, priority: Callable[[Transitions], Array]
) -> Callable[[Transitions], None]:
    add: Callable[..., None] = replay.add
    if not callable(priority) or "priority" not in inspect.signature(add).parameters:
        raise ConfigError(
            f"`priority` is {kind_of(priority)}, and `replay` {kind_of(replay)}; a "
            f"function of transitions was expected, and a replay with `add(transitions, "
            f"priority=)`."
        )

    def _add(transitions: Transitions) -> None:
        if len(transitions):
            add(transitions, priority=np.abs(to_numpy(priority(transitions))))

    return _add


def wait_for(replay: Replay | EpisodeBuffer, *, size: int) -> Middleware:
    """Postpone training until a replay holds enough transitions.

    The step continues, so that the collector of the same pipeline can fill the replay, but every
    later `train` does nothing. A training middleware of your own reads the same key:
    `if ctx.get("warming_up"): return`. Place it after `add_to` and before `train`.

    If other nodes fill the replay, as with a `ShardedReplay`, the step blocks instead, until the
    replay holds enough transitions or the job ends.

    Context:
        reads: transitions
        writes: warming_up

    Args:
        replay: The replay that is filled.
        size: Number of transitions that it must hold. With more, the first updates start later
            and from more diverse data; 1,000 to 10,000 is usual. An `EpisodeBuffer` holds fewer
            env steps than its capacity, as each episode has one more observation than env steps,
            and is replaced as a whole.

    Raises:
        ConfigError: The replay can never hold as many; or, in a step, it has been filled, and has
            no room for as many; or it is of whole episodes, and no episode ends.
        DeadlineExceeded: In a step: the nodes that fill the replay add nothing.
    """
    check_has(replay, "sample", "replay")
    check_all(at_least(1, size=size))

    if size > replay.capacity - isinstance(replay, EpisodeBuffer):
        raise ConfigError(
            f"`size` is {size:,}, the capacity of the replay {replay.capacity:,}: training would "
            f"never begin. Wait for less, or give the replay more room."
        )

    room = replay.capacity
    if isinstance(replay, EpisodeBuffer):  # each unfinished episode may take as many env steps
        room = replay.num_envs * max(room, replay.spec.max_episode_steps or 0)
    most = added = 0

    def _wait_for(ctx: Context) -> None:
        nonlocal most, added
        if len(replay) < size and isinstance(replay, FilledByOthers):
            replay.wait_for(size, until=lambda: ctx.finish)
        if (held := len(replay)) >= size:
            return
        ctx.warming_up = True
        added += sum(map(len, _as_list(ctx.get("transitions", []))))
        if held > most:
            most, added = held, 0
        if added > room and not most:
            raise ConfigError(
                f"No episode has ended in {added:,} env steps, and the replay is of whole "
                f'episodes. Give the environment a time limit: env_args={{"max_episode_steps": '
                f"1000}}; or the replay more room, if its episodes are longer than this."
            )
        if added > room:
            raise ConfigError(
                f"`size` is {size:,}, but the replay has held {most:,} transitions at most, and "
                f"{added:,} more were added since: it has no room for more. Wait for fewer, or "
                f"give the replay more room."
            )

    return _wait_for


def update_priorities(replay: Prioritized) -> Middleware:
    """Update the priorities of the transitions of the last batch.

    The errors of the transitions become their priorities. Transitions that were overwritten since
    they were sampled are ignored. Place it after `train`, and before a second `train` with
    another replay, as it takes the last batch of a step. Without an update it does nothing.

    Context:
        reads: train_data, train_output

    Args:
        replay: The replay that `train` samples.

    Raises:
        ConfigError: The replay has no priorities; or, in a step, the batch came from another
            replay, or the policy does not return its errors.
        NonFiniteError: In a step: an error is NaN or infinite.
    """
    check_prioritized(replay, why="priorities are to be updated")

    def _update_priorities(ctx: Context) -> None:
        output = ctx.get("train_output")
        if output is not None:
            give_back(replay, ctx.train_data, output)

    return _update_priorities


def check_prioritized(replay: object, *, why: str) -> Prioritized:
    if not isinstance(replay, Prioritized):
        raise ConfigError(
            f"`replay` is {kind_of(replay)}, which has no priorities, but {why}. Give a "
            f"PrioritizedReplay."
        )
    return replay


def give_back(replay: Prioritized, batch: object, output: Mapping[str, Any]) -> None:
    if not isinstance(batch, PrioritizedTransitions):
        raise ConfigError(
            f"`ctx.train_data` is {kind_of(batch)}, which says nothing of priorities: "
            f"`train` learns from something else than this {type(replay).__name__}. Give both "
            f"the same replay."
        )
    if "td_error" not in output:
        raise ConfigError(
            f"`ctx.train_output` has {sorted(output)} and no `td_error`: this policy does not say "
            f"how far off its values were. Let its `learn` return them, or sample uniformly."
        )
    replay.update_priorities(batch, np.abs(to_numpy(output["td_error"])))


def replay_trajectories(num: int) -> Middleware:
    """Append the newest trajectories of earlier steps to those of this step.

    The learner learns from data of older weights again, in addition to the new data: it needs fewer
    env steps, and each update takes longer. It is for policies that correct for older weights, such
    as IMPALA. Place it after `collect` or `receive`, before `train`.

    It does nothing in a step without trajectories.

    Context:
        reads: trajectories
        writes: trajectories

    Args:
        num: Number of replayed trajectories. With as many as there are new ones in a step, half of
            each update is replayed data, as in Espeholt et al. 2018. More are older and less
            useful.

    Raises:
        ConfigError: `num` is below 1.
    """
    check_all(whole(1, num=num))
    return _ReplayTrajectories(num)


class _ReplayTrajectories:
    __name__ = "replay_trajectories"

    def __init__(self, num: int) -> None:
        self._num = num
        self._before: list[Rollout] = []

    def __call__(self, ctx: Context) -> None:
        if ctx.get("trajectories"):
            ctx.trajectories = [*ctx.trajectories, *self._before]
            self._before = ctx.trajectories[: self._num]

    def state_dict(self) -> dict[str, Any]:
        names = [field.name for field in fields(Rollout)]
        return {"before": [{name: getattr(one, name) for name in names} for one in self._before]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._before = [Rollout(**one) for one in state["before"]]

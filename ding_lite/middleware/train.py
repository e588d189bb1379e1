"""Update a policy from replay or from rollouts."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ding_lite.errors import ConfigError, NonFiniteError, PeerLost, kind_of
from ding_lite.middleware.buffer import check_prioritized, give_back
from ding_lite.middleware.checkpoints.save import not_finite
from ding_lite.middleware.checks import check_batch, check_has, check_schedule
from ding_lite.rl.batch import Rollout, Transitions
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.formulas.schedules import Schedule
from ding_lite.rl.host_or_device import unread
from ding_lite.rl.protocols import (
    ActorCritic,
    BatchConfig,
    FilledByOthers,
    LearnsFromSequences,
    Policy,
    Prioritized,
    Replay,
    TakesTurns,
)
from ding_lite.rl.replay.episodes import EpisodeBuffer
from ding_lite.rl.reward_norm import RewardNorm
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import current_router
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings.rules import check_all, finite, positive, whole

logger = logging.getLogger(__name__)

_ROUNDING = 1e-9
"""Added to sums of fractions of updates, so that ten tenths are one."""
END_S = 3.0
"""Maximum seconds from the loss of a learner to the message that the job ends."""


def train(
    policy: Policy,
    replay: Replay | EpisodeBuffer | None = None,
    *,
    batch_size: int | None = None,
    updates: float = 1,
    beta: Schedule | None = None,
    normalize_rewards: Envs | None = None,
) -> Middleware:
    """Update a policy from replay, or without a replay from the experience of this step.

    The experience is the step's transitions, or, for an `ActorCritic` such as A2C, PPO or IMPALA,
    its trajectories. There is no update in a step without experience, if the replay holds fewer
    transitions than a batch, or if `wait_for` postpones training; a warning tells once that a
    replay stays empty, or that steps have no experience, while this node collects. The metrics of
    the newest update are written to `ctx.metrics`; values on a device are fetched only when they
    are reported.

    A policy that learns from sequences, such as R2D2, samples them from an `EpisodeBuffer`: its
    `batch_size` is the number of sequences in an update.

    With a prioritized replay, place `update_priorities` after it. It updates the priorities of a
    step's last batch; those of earlier batches are updated at once, so that the next sample uses
    them.

    Context:
        reads: env_step (for beta), total_step, train_iter, trajectories (for an ActorCritic), \
transitions (without a replay), warming_up
        writes: train_data, train_iter, train_output, metrics (what the policy reports)
        keeps: train_iter

    Args:
        policy: Learns with `learn(batch)`.
        replay: The replay, sampled once for each update. An `ActorCritic` learns without a replay.
        batch_size: Transitions in an update; the policy's own setting by default. Larger is less
            noisy and costs more; 32 to 256 is usual.
        updates: Updates in a step. More learns more from each env step, and too many overfit the
            data in the replay; one update for every 1 to 16 env steps is usual. Of a number that is
            not whole, fractions of several steps add up. An `Agent` with a `learn_every` instead
            makes one update for every `learn_every` of its own env steps.
        beta: The exponent of importance weights, as a function of the env step; or of the update on
            a node that makes no env steps, and with a replay that other nodes fill, so that all
            learners use the same. `linear(0.4, 1.0, steps=...)` over the steps of the whole run is
            usual; by default the constant `beta` of the replay.
        normalize_rewards: The environments that collect, on this node. They measure rewards from
            now on, and the rewards of each batch are divided by the running standard deviation of
            discounted returns. The replay keeps the original rewards, and returns are reported from
            these. A `priority` of `add_to` has to normalise them, too. The agents of a population
            share the statistics, with the `gamma` of the first.

    Raises:
        ConfigError: A setting is out of range, the batch exceeds the capacity of the replay, or
            `batch_size` is given for an `Agent`, and searched.
        NonFiniteError: In a step: the loss is no longer finite.
        PeerLost: In a step: another learner of this policy was lost, and the job continues.
    """
    check_has(policy, "learn", "policy")
    is_searched = "batch_size" in getattr(policy, "searched", ())
    check_all(
        positive(updates=updates) or finite(updates=updates),
        [f"`batch_size` is searched, and was given to `train`, too: {batch_size}. Leave one out"]
        if is_searched and batch_size is not None
        else [],
    )
    norm = None
    if normalize_rewards is not None:
        check_has(normalize_rewards, "measure_rewards", "normalize_rewards")
        norm = normalize_rewards.reward_norm if isinstance(policy, TakesTurns) else None
        norm = norm or normalize_rewards.measure_rewards(gamma=policy.gamma)
    if isinstance(policy, ActorCritic):
        _check_takes_rollouts(policy, replay, batch_size, updates)
        return TrainFromRollouts(policy, norm)
    if isinstance(replay, EpisodeBuffer) or isinstance(_learner(policy), LearnsFromSequences):
        replay = _Sequences(policy, replay)
    return TrainFromReplay(policy, replay, batch_size, updates, beta, norm)


class Train(ABC):
    """The middleware that `train` makes.

    An update that has lost other learners because the job ends is skipped.
    """

    __name__ = "train"

    def __init__(self, policy: Any, norm: RewardNorm | None) -> None:  # noqa: ANN401 - any policy
        self.policy = policy
        self._norm = norm
        self._end = current_router().subscribe()
        self._has_found = False
        """Whether experience of a step was found, or a warning has told that there is none."""

    def __call__(self, ctx: Context) -> None:
        ctx.setdefault("train_iter", 0)
        ctx.keep("train_iter")
        ctx.pop("train_output", None)  # of another `train`: without an update there is none
        try:
            self._learn(ctx)
        except PeerLost:
            # The message that the job ends may arrive a moment after the loss of a learner.
            self._end.wait(lambda _: ctx.finish, timeout=END_S)
            if not ctx.finish:
                raise

    @abstractmethod
    def _learn(self, ctx: Context) -> None:
        """Make the updates of a step."""

    def _check_found(self, ctx: Context, key: str) -> None:
        """Warn once if this node collects, and no step has had experience yet."""
        if key not in ctx and ctx.get("env_step") and not self._has_found:
            logger.warning(
                "`train` makes no update: this node collects, but `ctx.%s` is not set here. Place "
                "mw.collect before mw.train",
                key,
            )
        self._has_found |= key in ctx or bool(ctx.get("env_step"))


class TrainFromReplay(Train):
    """Updates a policy from replay, or from the transitions of a step.

    The settings of an agent may change between two steps.
    """

    def __init__(
        self,
        policy: Policy,
        replay: Replay | None,
        batch_size: int | None,
        updates: float,
        beta: Schedule | None,
        norm: RewardNorm | None,
    ) -> None:
        super().__init__(policy, norm)
        self.replay = replay
        self.shares = replay is not None and not isinstance(replay, Prioritized | FilledByOthers)
        """Whether several agents may share a sample."""
        self._batch_size, self._updates, self._beta = batch_size, updates, beta
        self._agent = policy if isinstance(policy, TakesTurns) and replay is not None else None
        self._prioritized = replay if isinstance(replay, Prioritized) else None
        self._is_filled_by_others = isinstance(replay, FilledByOthers)
        # The transitions of this node while the replay is empty: all, and those up to the last end
        # of an episode, as a replay may store whole episodes.
        self._num_collected = self._num_of_ended = 0
        self._has_warned = False
        self._size = self.size()
        check_schedule(beta, "beta")
        if beta is not None:
            check_prioritized(replay, why="`beta` was given")

    def size(self) -> int:
        """Return the current batch size; ConfigError if it exceeds the replay's capacity."""
        return _batch_size(self.policy, self.replay, self._batch_size)

    def num_updates(self, ctx: Context) -> int:
        """Return the number of updates that are due; call it once per step."""
        if self._agent is not None:
            due = self._agent.take_updates()
            if self._agent.learn_every is not None:
                return due
        return self._updates_before(ctx.total_step + 1) - self._updates_before(ctx.total_step)

    def _updates_before(self, step: int) -> int:
        return math.floor(self._updates * step + _ROUNDING)

    def sample(self, count: int, **beta: float) -> Transitions:
        """Sample `count` transitions of the replay, with normalised rewards if that is set."""
        replay: Any = self.replay
        batch: Transitions = replay.sample(count, **beta)
        return batch if self._norm is None else self._norm(batch)

    def _learn(self, ctx: Context) -> None:
        if self._agent is not None:
            self._size = self.size()
        updates, train_iter = self.num_updates(ctx), ctx.train_iter
        if self.replay is None:
            self._check_found(ctx, "transitions")
        available = ctx.get("transitions", ()) if self.replay is None else self.replay
        if len(available) < self._size or ctx.get("warming_up"):
            if self.replay is not None and not len(available):
                self._check_is_filled(ctx)
            return
        for update in range(updates):
            batch = self._batch(ctx)
            if batch is None:
                break
            try:
                ctx.train_output = self.policy.learn(batch)
            except NonFiniteError as error:
                _check_data(batch, error)
                raise
            ctx.train_data = batch
            ctx.train_iter = train_iter + update + 1
            if self._prioritized is not None and update < updates - 1:
                give_back(self._prioritized, ctx.train_data, ctx.train_output)
        if ctx.train_iter > train_iter:
            metrics = unread(ctx.train_output)
            ctx.metrics.update({name: metrics[name] for name in metrics if name != "td_error"})

    def _check_is_filled(self, ctx: Context) -> None:
        """Warn once if a batch was collected on this node in earlier steps, and nothing added."""
        if self._num_of_ended >= self._size and not (self._has_warned or self._is_filled_by_others):
            self._has_warned = True
            logger.warning(
                "`train` makes no update: the replay is empty, and %d transitions were collected. "
                "Place mw.add_to(replay), with the replay of `train`, behind mw.collect",
                self._num_collected,
            )
        newest = ctx.get("transitions", ())
        for transitions in newest if isinstance(newest, list) else (newest,):
            self._num_collected += len(transitions)
            if len(transitions) and (transitions.terminated | transitions.truncated).any():
                self._num_of_ended = self._num_collected

    def _batch(self, ctx: Context) -> Transitions | None:
        """Return the batch of an update; None if the nodes of the replay were lost."""
        if self.replay is None:
            batch: Transitions | list[Transitions] = ctx.transitions
            if isinstance(batch, list):
                raise ConfigError(
                    f"`ctx.transitions` is a list of {len(batch)} batches, as `receive` puts them "
                    f"there, and `train` without a replay learns from one. Add them to a replay: "
                    f"`mw.add_to(replay)`, `mw.train(policy, replay)`."
                )
            return batch if self._norm is None else self._norm(batch)
        try:
            if self._beta is None:
                return self.sample(self._size)
            # With `count_collected` one of several learners knows the env steps of all collectors.
            env_step = 0 if self._is_filled_by_others else ctx.get("env_step")
            return self.sample(self._size, beta=self._beta(env_step or ctx.get("train_iter")))
        except PeerLost:
            if not self._is_filled_by_others or len(self.replay) >= self._size:
                raise
            return None  # as in a step with too few transitions; the job may be about to end


class TrainFromRollouts(Train):
    """Updates a policy from the rollouts of a step."""

    def rollouts(self, ctx: Context) -> Sequence[Rollout]:
        """Return the rollouts of this step, with normalised rewards if that is set."""
        if ctx.get("warming_up"):
            return ()
        found: Sequence[Rollout] = ctx.get("trajectories") or ()
        if not found and "transitions" in ctx:
            raise ConfigError(
                f"{type(self.policy).__name__} learns from rollouts, and the ctx has `transitions` "
                f"instead of `trajectories`. Collect with `collect(policy, envs, unroll=...)`."
            )
        return found if self._norm is None else [self._norm(rollout) for rollout in found]

    def _learn(self, ctx: Context) -> None:
        rollouts = self.rollouts(ctx)
        self._check_found(ctx, "trajectories")
        if not rollouts:
            return
        before = self.policy.train_iter
        try:
            ctx.train_output = self.policy.learn(rollouts)
        except NonFiniteError as error:
            for rollout in rollouts:
                _check_data(rollout, error)
            raise
        ctx.train_data = rollouts
        ctx.train_iter += self.policy.train_iter - before
        ctx.metrics.update(unread(ctx.train_output))


class _Sequences:
    """An `EpisodeBuffer` as a replay that samples sequences of the length that a policy needs."""

    def __init__(self, policy: Policy, episodes: object) -> None:
        learner = _learner(policy)
        if not isinstance(learner, LearnsFromSequences) or not isinstance(episodes, EpisodeBuffer):
            raise ConfigError(
                f"`policy` is {kind_of(learner)} and `replay` {kind_of(episodes)}. "
                f"A policy with a `sequence_length` and a `burn_in`, such as R2D2, learns from an "
                f"EpisodeBuffer, and other ones from a ReplayBuffer."
            )
        self._policy = policy
        self._episodes = episodes
        self.capacity = episodes.capacity

    def __len__(self) -> int:
        return len(self._episodes)

    def add(self, transitions: Transitions) -> None:
        self._episodes.add(transitions)

    def sample(self, batch_size: int) -> Any:  # noqa: ANN401 - what such a policy learns from
        policy: Any = _learner(self._policy)
        return self._episodes.sample(
            batch_size, length=policy.sequence_length, burn_in=policy.burn_in
        )


def _learner(policy: Policy) -> Policy:
    """Return the policy itself, or the current policy of an agent."""
    return policy.policy if isinstance(policy, TakesTurns) else policy


def _check_data(batch: Any, error: NonFiniteError) -> None:  # noqa: ANN401 - of any policy
    """Raise the error of an update again with the parts of the batch that are not finite."""
    parts = {part.name: getattr(batch, part.name) for part in fields(batch)}
    if names := [f"`{path[0]}`" for path in not_finite(parts)]:
        raise NonFiniteError(
            f"{error} The data has numbers that are not finite, too: {', '.join(names)} of the "
            f"batch. Look there first."
        ) from error


def _check_takes_rollouts(
    policy: ActorCritic, replay: object, batch_size: int | None, updates: float
) -> None:
    name = type(policy).__name__
    if replay is not None or batch_size is not None:
        raise ConfigError(
            f"{name} learns from the rollouts that `collect(unroll=...)` puts on the ctx, and "
            f"`{'batch_size' if replay is None else 'replay'}` was given. Write `train(policy)`."
        )
    if updates != 1:
        raise ConfigError(
            f"`updates` is {updates}, but how many updates {name} makes of a rollout is a setting "
            f"of its own, such as `epochs`. Leave `updates` out."
        )
    if getattr(policy, "learn_every", None) is not None:
        raise ConfigError(
            "`learn_every` is searched, and this policy learns from each rollout as a whole, so "
            "that it would change nothing. Leave it out; PPO and IMPALA have `epochs` instead."
        )


def _batch_size(policy: Policy, replay: Replay | None, batch_size: int | None) -> int:
    if replay is None:
        if batch_size is not None:
            raise ConfigError(
                f"`batch_size` is {batch_size}, but there is no replay to sample that many from: "
                f"an update takes all transitions of the step. Give `train` a replay too."
            )
        return 1

    check_has(replay, "sample", "replay")
    if batch_size is None:
        if not isinstance(policy.config, BatchConfig):
            raise ConfigError(
                f"{type(policy).__name__} says nothing of how many transitions an update learns "
                f"from. Give `train` a `batch_size`."
            )
        batch_size = policy.config.batch_size
    check_all(whole(1, batch_size=batch_size))
    check_batch(batch_size, capacity=replay.capacity)
    return batch_size

"""Train agents as one batched computation, from one replay or each from its own rollouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ding_lite.evolution.agent import Agent
from ding_lite.evolution.batched.stacks import Stack, UpdateResult, make_stack, stack_key
from ding_lite.middleware.train import TrainFromReplay, TrainFromRollouts
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware


def together(trains: Sequence[Middleware]) -> TrainTogether | None:
    """Make what trains agents in batches; None unless `train` has made all middleware."""
    kinds = (
        (TrainFromReplay, _replay_key, _learn_from_replay),
        (TrainFromRollouts, _rollouts_key, _learn_from_rollouts),
    )
    for kind, key_of, learn in kinds:
        if all(isinstance(fn, kind) and isinstance(fn.policy, Agent) for fn in trains):
            return TrainTogether(trains, key_of, learn)
    return None


@dataclass
class TrainTogether:
    """Trains agents in batches of agents with the same shapes."""

    trains: Sequence[Any]
    """The `train` middleware of each agent."""
    key_of: Callable[[Any, Context], Hashable | None]
    """Returns what agents of one batch have in common; None for an agent that learns alone."""
    learn: Callable[..., Sequence[UpdateResult]]
    """Makes the updates of a batch; returns none if there is too little experience for it."""
    stacks: dict[Hashable, Stack[Any]] = field(default_factory=dict)

    def __call__(self, contexts: Sequence[Context], counters: dict[str, int]) -> set[int]:
        """Make the updates of a step, and count them in `counters`.

        Returns:
            The indices of the agents that are done; the others learn one by one.
        """
        groups: defaultdict[Hashable, list[int]] = defaultdict(list)
        for index, (train, ctx) in enumerate(zip(self.trains, contexts, strict=True)):
            key = None if train.policy.is_skipped else self.key_of(train, ctx)
            if key is not None:
                groups[key].append(index)
        stacks: dict[Hashable, Stack[Any]] = {}
        done: set[int] = set()
        for key, members in groups.items():
            if len(members) == 1:
                continue
            trains, form = [self.trains[index] for index in members], (key, len(members))
            policies: list[Policy] = [train.policy.policy for train in trains]
            stacks[form] = self.stacks.get(form) or make_stack(policies[0], len(members))
            own = [contexts[index] for index in members]
            if outcomes := self.learn(stacks[form], policies, trains, own):
                for train, ctx, outcome in zip(trains, own, outcomes, strict=True):
                    _note(train.policy, ctx, outcome, counters)
                done.update(members)
        self.stacks = stacks
        return done


def _replay_key(train: TrainFromReplay, ctx: Context) -> Hashable | None:
    policy: Any = train.policy
    key = stack_key(policy.policy) if train.shares and not ctx.get("warming_up") else None
    return None if key is None else (key, id(train.replay))


def _learn_from_replay(
    stack: Stack[Any],
    policies: Sequence[Policy],
    trains: Sequence[TrainFromReplay],
    contexts: Sequence[Context],
) -> Sequence[UpdateResult]:
    sizes, replay = [train.size() for train in trains], trains[0].replay
    if replay is None or len(replay) < len(trains) * max(sizes):
        return ()
    updates = [train.num_updates(ctx) for train, ctx in zip(trains, contexts, strict=True)]
    return stack.learn(policies, sizes, updates, trains[0].sample)


def _rollouts_key(train: TrainFromRollouts, ctx: Context) -> Hashable | None:
    return stack_key(train.policy.policy) if train.rollouts(ctx) else None


def _learn_from_rollouts(
    stack: Stack[Any],
    policies: Sequence[Policy],
    trains: Sequence[TrainFromRollouts],
    contexts: Sequence[Context],
) -> Sequence[UpdateResult]:
    pairs = zip(trains, contexts, strict=True)
    return stack.learn(policies, [train.rollouts(ctx) for train, ctx in pairs])


def _note(agent: Agent, ctx: Context, outcome: UpdateResult, counters: dict[str, int]) -> None:
    """Count updates, and write the ctx keys and metrics of `train`."""
    counters["train_iter"] += outcome.updates
    if outcome.fault is not None:
        agent.set_aside(outcome.fault)
    ctx.train_iter = counters["train_iter"]
    ctx.keep("train_iter")
    if outcome.metrics is not None:
        ctx.train_output = outcome.metrics
        ctx.train_data = outcome.batch
        ctx.metrics.update(outcome.metrics)

"""Train agents as one batched computation, from one replay or each from its own rollouts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ding_lite.evolution.agent import Agent
from ding_lite.evolution.batched import Stack, UpdateResult, make_stack, stack_key
from ding_lite.middleware.train import TrainFromReplay, TrainFromRollouts
from ding_lite.rl.batch import Rollout
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware


def together(
    trains: Sequence[Middleware],
) -> Callable[[Sequence[Context], dict[str, int]], set[int]] | None:
    """Return a function that makes the updates of one step for agents that can be batched.

    Its arguments are the context of each agent and the counters, of which it increases
    `train_iter`. It returns the indices of the agents that are done; the others learn one by one.
    The result is None unless `train` has made all middleware.
    """
    kinds = ((TrainFromReplay, TrainTogether), (TrainFromRollouts, RolloutsTogether))
    for kind, made in kinds:
        own: list[Any] = [
            fn for fn in trains if isinstance(fn, kind) and isinstance(fn.policy, Agent)
        ]
        if len(own) == len(trains):
            return made(own)
    return None


class RolloutsTogether:
    """Trains agents from their own rollouts, in batches of agents with the same shapes."""

    def __init__(self, trains: Sequence[TrainFromRollouts]) -> None:
        self._trains = trains
        self._stacks: dict[Hashable, Stack[Any]] = {}

    def __call__(self, contexts: Sequence[Context], counters: dict[str, int]) -> set[int]:
        groups: dict[Hashable, list[tuple[int, Agent, Sequence[Rollout]]]] = {}
        for index, (train, ctx) in enumerate(zip(self._trains, contexts, strict=True)):
            agent, rollouts = train.policy, train.rollouts(ctx)
            key = stack_key(agent.policy) if rollouts and not agent.rests else None
            if key is not None:
                groups.setdefault(key, []).append((index, agent, rollouts))
        stacks: dict[Hashable, Stack[Any]] = {}
        done: set[int] = set()
        for key, members in groups.items():
            if len(members) == 1:
                continue
            policies, form = [agent.policy for _, agent, _ in members], (key, len(members))
            stack = self._stacks.get(form) or make_stack(policies[0], len(members))
            stacks[form] = stack
            outcomes = stack.learn(policies, [rollouts for *_, rollouts in members])
            for (index, agent, _), outcome in zip(members, outcomes, strict=True):
                _note(agent, contexts[index], outcome, counters)
                done.add(index)
        self._stacks = stacks
        return done


class TrainTogether:
    """Trains agents from one replay, in batches of agents with the same shapes."""

    def __init__(self, trains: Sequence[TrainFromReplay]) -> None:
        self._trains = trains
        self._stacks: dict[Hashable, Stack[Any]] = {}

    def __call__(self, contexts: Sequence[Context], counters: dict[str, int]) -> set[int]:
        """Make the updates of a step; return the indices of the agents that are done."""
        done: set[int] = set()
        stacks = {}
        for key, members in self._groups(contexts).items():
            stack = self._stacks.get(key)
            if stack is None:
                stack = make_stack(members[0][1], len(members))
            stacks[key] = stack
            self._learn(stack, members, contexts, counters)
            done.update(index for index, _ in members)
        self._stacks = stacks
        return done

    def _groups(self, contexts: Sequence[Context]) -> dict[Hashable, list[tuple[int, Policy]]]:
        """Group agents by shape and replay, if the replay has enough transitions for the group."""
        groups: dict[Hashable, list[tuple[int, Policy]]] = {}
        for index, (train, ctx) in enumerate(zip(self._trains, contexts, strict=True)):
            agent: Agent = train.policy
            policy = agent.policy
            if agent.rests or not train.shares or ctx.get("warming_up"):
                continue
            key = stack_key(policy)
            if key is not None:
                groups.setdefault((key, id(train.replay)), []).append((index, policy))
        return {
            (key, len(members)): members
            for key, members in groups.items()
            if len(members) > 1 and self._has_enough(members)
        }

    def _has_enough(self, members: Sequence[tuple[int, Policy]]) -> bool:
        trains = [self._trains[index] for index, _ in members]
        replay: Any = trains[0].replay
        return len(replay) >= len(trains) * max(train.size() for train in trains)

    def _learn(
        self,
        stack: Stack[Any],
        members: Sequence[tuple[int, Policy]],
        contexts: Sequence[Context],
        counters: dict[str, int],
    ) -> None:
        trains = [self._trains[index] for index, _ in members]
        outcomes = stack.learn(
            [policy for _, policy in members],
            [train.size() for train in trains],
            [train.num_updates() for train in trains],
            trains[0].sample,
        )
        for (index, _), train, outcome in zip(members, trains, outcomes, strict=True):
            _note(train.policy, contexts[index], outcome, counters)


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

"""Train agents that sample from one replay as one batched computation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

from ding_lite.evolution.agent import Agent
from ding_lite.evolution.batched import Stack, UpdateResult, make_stack, stack_key
from ding_lite.middleware.train import TrainAgent
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context


class TrainTogether:
    """Trains those of some agents at once that can be.

    Args:
        trains: What `train` has made, one for each agent.
    """

    def __init__(self, trains: Sequence[TrainAgent]) -> None:
        """Begin without memory for any."""
        self._trains = trains
        self._stacks: dict[Hashable, Stack[Any]] = {}

    def __call__(self, contexts: Sequence[Context], counters: dict[str, int]) -> set[int]:
        """Do the updates of a step.

        Args:
            contexts: That of each agent.
            counters: `train_iter` counts on.

        Returns:
            Which agents are done; the others are left to learn alone.
        """
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
        """Find agents that share a shape and a replay with enough transitions for all of them."""
        groups: dict[Hashable, list[tuple[int, Policy]]] = {}
        for index, (train, ctx) in enumerate(zip(self._trains, contexts, strict=True)):
            agent = _agent_of(train)
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
        return len(trains[0].replay) >= len(trains) * max(train.size() for train in trains)

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
            counters["train_iter"] += outcome.updates
            _report(contexts[index], outcome, counters["train_iter"])
            if outcome.fault is not None:
                _agent_of(train).set_aside(outcome.fault)


def _agent_of(train: TrainAgent) -> Agent:
    return cast(Agent, train.agent)  # `for_each` has made them for agents


def _report(ctx: Context, outcome: UpdateResult, train_iter: int) -> None:
    """Write what `train` would have written."""
    ctx.train_iter = train_iter
    ctx.keep("train_iter")
    if outcome.metrics is not None:
        ctx.train_output = outcome.metrics
        ctx.train_data = outcome.batch
        ctx.metrics.update(outcome.metrics)

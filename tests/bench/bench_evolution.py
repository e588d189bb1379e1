"""The cost of a population: a learning step an agent, a generation, and a copy.

The baseline of a learning step is one agent in plain torch, as a tutorial writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ding_lite import middleware as mw, rl
from ding_lite.evolution import Mutation, Population, Search, Tournament, integer, log_uniform
from ding_lite.evolution.batched.dqn import DQNStack
from ding_lite.evolution.batched.stacks import make_stack
from ding_lite.rl.networks.modules import MemoryKind
from ding_lite.rl.spec import EnvSpec
from ding_lite.testing import run_step
from tests.bench.bench_dqn_update import PlainDQN
from tests.bench.continuous_peers import TutorialSAC
from tests.bench.harness import Row, compare, measure, row_from_samples, sample_pairs
from tests.bench.on_policy_peers import TutorialA2C, TutorialPPO
from tests.rl.nets import Joins
from tests.rl.reference_box import make_mlp
from tests.rl.rollouts import CARTPOLE, PENDULUM, draw_batch, draw_rollout

SIZE = 6
BATCH_SIZE = 128
CONFIG = rl.DQNConfig(hidden=(32, 32), batch_size=BATCH_SIZE, lr=1e-3, target_tau=1e-3, n_step=1)
SEARCH = Search(lr=log_uniform(1e-4, 1e-2), batch_size=integer(8, BATCH_SIZE))
MEMORIES: tuple[MemoryKind, ...] = ("gru", "lstm")
MAX_UPDATE_RATIO = 0.35
MAX_MODULE_RATIO = 0.4
MAX_GENERATION_MS = 15.0
MAX_CLONE_MS = 2.0


def run() -> list[Row]:
    rows = updates()
    for kind in (rl.DDPG, rl.TD3, rl.SAC):
        config = replace(kind(PENDULUM).config, hidden=(32, 32), batch_size=BATCH_SIZE)
        rows += of_transitions(f"{kind.__name__}s, hidden 32x32", partial(kind, PENDULUM), config)
    dqn = rl.DQNConfig(batch_size=BATCH_SIZE, lr=1e-3, target_tau=1e-3, n_step=1)
    own: Any = partial(rl.DQN, CARTPOLE, network=lambda _: mlp(4, 2))
    rows += of_transitions("DQNs with modules of a user, 64x64", own, dqn, PlainDQN(64, dqn))
    sac = rl.SACConfig(batch_size=BATCH_SIZE)
    own = partial(rl.SAC, PENDULUM, actor=lambda _: mlp(3, 2), critic=lambda _: Joins(mlp(4, 1)))
    plain = TutorialSAC(rl.SAC(PENDULUM, sac), np.random.default_rng(0))
    rows += of_transitions("SACs with modules of a user, 64x64", own, sac, plain)
    rows += generations()
    for rollouts in (rl.A2C, rl.PPO):
        rows += [*from_rollouts(rollouts), *from_rollouts(rollouts, own=True)]
    for memory in MEMORIES:
        rows += from_rollouts(rl.A2C, memory=memory)
    return rows


def updates() -> list[Row]:
    population = Population.of(rl.DQN, CARTPOLE, size=SIZE, config=CONFIG)
    policies = [agent.policy for agent in population if isinstance(agent.policy, rl.DQN)]
    stack, plain = DQNStack(policies[0], SIZE), PlainDQN(32, CONFIG)
    one = draw_batch(0, spec=CARTPOLE, size=BATCH_SIZE)
    batch = draw_batch(0, spec=CARTPOLE, size=BATCH_SIZE * SIZE)

    def together(each: int) -> None:
        stack.learn(policies, [BATCH_SIZE] * SIZE, [each] * SIZE, lambda count: batch)

    replay = rl.ReplayBuffer(CARTPOLE, capacity=10_000)
    for _ in range(70):
        replay.add(one)
    step = mw.for_each(population, lambda agent: [mw.train(agent, replay, updates=16)])

    at_hand = "plain torch, one agent"
    return [
        per_agent("1 update a step", partial(together, 1), 1, partial(plain.learn, one), at_hand),
        per_agent(
            "16 updates a step", partial(together, 16), 16, partial(plain.learn, one), at_hand
        ),
        per_agent(
            "16 updates a step of for_each, sampling included",
            lambda: run_step(step),
            16,
            lambda: plain.learn(replay.sample(BATCH_SIZE)),
            "plain torch, one agent, the same replay",
        ),
    ]


def from_rollouts(
    kind: Callable[..., rl.A2C | rl.PPO], *, own: bool = False, memory: MemoryKind | None = None
) -> list[Row]:
    class Network(nn.Module):
        def __init__(self, _: EnvSpec) -> None:
            super().__init__()
            self.actor, self.critic = mlp(4, 2), mlp(4, 1)

        def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.actor(obs), self.critic(obs)

    parts = {"network": Network} if own else {}
    config = replace(kind(CARTPOLE).config, memory=memory)
    policies = [kind(CARTPOLE, replace(config, seed=seed), **parts) for seed in range(SIZE)]
    stack, state_size = make_stack(policies[0], SIZE), policies[0].state_size
    drawn = [draw_rollout(seed, CARTPOLE, num_steps=32, num_envs=8) for seed in range(SIZE)]
    state = np.zeros((8, state_size), np.float32) if state_size else None
    rollouts = [[replace(rollout, state=state)] for rollout in drawn]

    def together() -> None:
        stack.learn(policies, rollouts)

    def alone() -> None:
        for policy, its in zip(policies, rollouts, strict=True):
            policy.learn(its)

    tutorial = (TutorialPPO if isinstance(policies[0], rl.PPO) else TutorialA2C)(64)

    def plainly() -> None:
        for rollout in drawn:
            tutorial.learn_rollout(rollout, config)

    more = " with modules of a user" if own else f" with a {memory.upper()}" if memory else ""
    return beside(
        f"rollout of 256 env steps of {SIZE} {type(policies[0]).__name__}s{more}, 64x64, per agent",
        together,
        alone,
        plainly if own else None,
        number=1 if memory else 8,
        per=SIZE,
    )


def mlp(num_inputs: int, num_outputs: int) -> nn.Module:
    layers: nn.Module = make_mlp((num_inputs, 64, 64, num_outputs))
    return layers


def of_transitions(
    name: str, make: Callable[[Any], Any], config: Any, plain: Any = None
) -> list[Row]:
    policies = [make(replace(config, seed=seed)) for seed in range(SIZE)]
    stack = make_stack(policies[0], SIZE)
    one, batch = (
        draw_batch(0, spec=policies[0].spec, size=size) for size in (BATCH_SIZE, BATCH_SIZE * SIZE)
    )

    def together() -> None:
        stack.learn(policies, [BATCH_SIZE] * SIZE, [16] * SIZE, lambda count: batch)

    def alone() -> None:
        for policy in policies:
            for _ in range(16):
                policy.learn(one)

    def plainly() -> None:
        for _ in range(16 * SIZE):
            plain.learn(one)

    return beside(
        f"update of {SIZE} {name}, batch {BATCH_SIZE}, per agent",
        together,
        alone,
        None if plain is None else plainly,
        number=2,
        per=SIZE * 16,
    )


def beside(
    name: str,
    together: Callable[[], object],
    alone: Callable[[], object],
    plainly: Callable[[], object] | None,
    *,
    number: int,
    per: int,
) -> list[Row]:
    """Compare batched updates with those of the same agents alone, and with plain torch."""
    one_by_one = "the same agents, one after the other"
    rows = [compare(name, together, alone, baseline_name=one_by_one, number=number, per=per)]
    if plainly is not None:
        name, target = f"{name}, beside plain torch", MAX_MODULE_RATIO
        plain = "plain torch, one agent"
        rows.append(
            compare(name, together, plainly, baseline_name=plain, number=1, per=per, target=target)
        )
    return rows


def per_agent(
    what: str, ours: Callable[[], object], each: int, plain: Callable[[], object], name: str
) -> Row:
    number = 64 // each
    mine, theirs = sample_pairs(ours, plain, number=number)
    return row_from_samples(
        f"update of {SIZE} agents, hidden 32x32, batch {BATCH_SIZE}, per agent: {what}",
        [seconds / (SIZE * each) for seconds in mine],
        baseline=theirs,
        baseline_name=name,
        target=MAX_UPDATE_RATIO,
        tracked=each == 1,
    )


def generations() -> list[Row]:
    population = Population.of(rl.DQN, CARTPOLE, SEARCH, size=SIZE, config=CONFIG)
    tournament, mutation = Tournament(), Mutation(SEARCH)

    def evolve() -> None:
        for agent in population:
            agent.note_evaluation(float(agent.birth.id % 7))
        population.evolve(tournament, mutation)

    return [
        measure(
            f"select and mutate {SIZE} agents", evolve, unit="ms", number=5, repeats=30,
            target=MAX_GENERATION_MS,
        ),
        measure(
            "copy an agent", population[0].clone, unit="ms", number=20, target=MAX_CLONE_MS
        ),
    ]  # fmt: skip

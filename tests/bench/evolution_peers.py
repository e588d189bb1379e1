"""AgileRL at the seed's job: DQN on LunarLander-v3, 4 agents, 16 environments, an update each.

It wants older packages than constraints.txt pins and many more of them, so it has an environment
of its own: `pip install agilerl==2.9.1 box2d easydict msgspec pyzmq` there, and then
`python -m tests.bench.evolution_peers` in it measures both libraries in turn.
"""

from __future__ import annotations

import time
from importlib import import_module
from statistics import median

import torch

SIZE = 4
NUM_ENVS = 16
EVAL_EPISODES = 16
GENERATION = 10_240
"""Env steps of one agent; behind them each agent plays its episodes."""
NET = {
    "latent_dim": 32,
    "encoder_config": {"hidden_size": [32]},
    "head_config": {"hidden_size": [32]},
}
HYPERPARAMETERS = {
    "BATCH_SIZE": 128,
    "LR": 1e-3,
    "LEARN_STEP": 1,
    "GAMMA": 0.99,
    "TAU": 1e-3,
    "DOUBLE": True,
}


def seconds_per_env_step(seed: int) -> float:
    """Return the CPU time of an env step of training, learning and evaluation included."""
    registry = import_module("agilerl.algorithms.core.registry")
    utils = import_module("agilerl.utils.utils")
    torch.manual_seed(seed)
    envs = utils.make_vect_envs("LunarLander-v3", num_envs=NUM_ENVS, should_async_vector=False)
    searched = registry.HyperparameterConfig(
        lr=registry.RLParameter(min=1e-4, max=1e-2),
        batch_size=registry.RLParameter(min=8, max=128, dtype=int),
    )
    agents = utils.create_population(
        "DQN",
        NET,
        HYPERPARAMETERS,
        envs.single_observation_space,
        envs.single_action_space,
        hp_config=searched,
        population_size=SIZE,
        num_envs=NUM_ENVS,
    )
    replay = import_module("agilerl.components.replay_buffer").ReplayBuffer(max_size=10_000)
    tournament = import_module("agilerl.hpo.tournament").TournamentSelection(2, True, SIZE)
    mutations = import_module("agilerl.hpo.mutation").Mutations(
        0.4, 0.2, 0.2, 0.2, 0, 0.2, rand_seed=seed
    )
    started = time.process_time()
    import_module("agilerl.training.train_off_policy").train_off_policy(
        envs,
        "LunarLander-v3",
        "DQN",
        agents,
        replay,
        max_steps=GENERATION,
        evo_steps=GENERATION,
        eval_loop=EVAL_EPISODES // NUM_ENVS,
        tournament=tournament,
        mutation=mutations,
        verbose=False,
    )
    taken = time.process_time() - started
    envs.close()
    return taken / (SIZE * GENERATION)


def main() -> None:
    """Measure both in turn, three times each, and print env steps per CPU second."""
    ours = import_module("tests.bench.bench_evolution").seconds_per_env_step
    rows = []
    for seed in range(3):
        mine = ours(seed, generation=GENERATION, episodes=EVAL_EPISODES)
        theirs = seconds_per_env_step(seed)
        rows.append(theirs / mine)
        print(f"seed {seed}: ours {1 / mine:,.0f}, AgileRL {1 / theirs:,.0f}, {rows[-1]:.1f}x")
    print(f"median of the ratios: {median(rows):.1f}x")


if __name__ == "__main__":
    main()

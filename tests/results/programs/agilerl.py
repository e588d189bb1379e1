"""Evolve a population of AgileRL on LunarLander-v3 with the settings of its tutorial.

A program of its own, which runs where AgileRL is installed: `python -P agilerl.py SEED`. It prints
the env steps of training, without those of evaluations, the mean return of the best agent in 20
greedy episodes after the run, and the processor time.
"""

import json
import resource
import sys

import gymnasium
import numpy as np
import torch
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population, make_vect_envs

ENV, SIZE, ENV_STEPS, TARGET = "LunarLander-v3", 6, 400_000, 200.0
SETTINGS = {
    "BATCH_SIZE": 128, "LR": 1e-3, "GAMMA": 0.99, "LEARN_STEP": 1, "TAU": 1e-3, "DOUBLE": True
}  # fmt: skip


def main(seed):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)
    env = make_vect_envs(ENV, num_envs=16, should_async_vector=False)
    agents = create_population(
        "DQN",
        {"encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}},
        SETTINGS,
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        hp_config=HyperparameterConfig(
            lr=RLParameter(min=1e-4, max=1e-2), batch_size=RLParameter(min=8, max=512, dtype=int)
        ),
        population_size=SIZE,
        num_envs=16,
    )
    agents, _ = train_off_policy(
        env,
        ENV,
        "DQN",
        agents,
        ReplayBuffer(10_000),
        max_steps=ENV_STEPS // SIZE,
        evo_steps=4_000,
        eps_end=0.1,
        eps_decay=0.995,
        target=TARGET,
        tournament=TournamentSelection(2, elitism=True, population_size=SIZE),
        mutation=Mutations(
            no_mutation=0.4, architecture=0.2, new_layer_prob=0.2, parameters=0.2, activation=0,
            rl_hp=0.2, mutation_sd=0.1, rand_seed=seed,
        ),
        verbose=False,
    )  # fmt: skip
    best = max(agents, key=lambda agent: agent.fitness[-1])
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = {
        "seed": seed,
        "env_steps": sum(agent.metrics.steps for agent in agents),
        "return": float(np.mean([play(best, 1_000 + index) for index in range(20)])),
        "cpu_s": used.ru_utime + used.ru_stime,
    }
    print(json.dumps(found), flush=True)


def play(agent, seed):
    env = gymnasium.make(ENV)
    obs, _ = env.reset(seed=seed)
    total, has_ended = 0.0, False
    while not has_ended:
        action = agent.get_action(obs[None], epsilon=0.0)[0]
        obs, reward, terminated, truncated, _ = env.step(action)
        total, has_ended = total + float(reward), terminated or truncated
    return total


if __name__ == "__main__":
    main(int(sys.argv[1]))

import numpy as np
from measuring import cost_of, tell

from ding_lite import Task, middleware as mw
from ding_lite.evolution import Population
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, Transitions, make_envs

envs, rng, rows, steps = make_envs("CartPole-v1", 1), np.random.default_rng(0), 20_000, 100
config = DQNConfig(hidden=(32, 32), n_step=1, batch_size=128)
population = Population.of(DQN, envs.spec, size=4, config=config)
replay = ReplayBuffer(envs.spec, capacity=rows)
replay.add(
    Transitions(
        obs=rng.normal(size=(rows, 4)).astype(np.float32),
        action=rng.integers(0, 2, size=rows),
        reward=rng.random(rows).astype(np.float32),
        next_obs=rng.normal(size=(rows, 4)).astype(np.float32),
        terminated=rng.random(rows) < 0.1,
        truncated=np.zeros(rows, dtype=np.bool_),
        num_steps=np.ones(rows, dtype=np.int32),
    )
)
with Task() as task:
    task.use(mw.for_each(population, lambda agent: [mw.train(agent, replay, batch_size=128)]))
    cost = cost_of(lambda: task.run(max_step=steps), number=1) / steps / 4
tell("ding_lite", cost=cost * 1e6)

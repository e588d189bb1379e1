from measuring import cost_of, tell
from ours import transitions

from ding_lite import Task, middleware as mw
from ding_lite.evolution import Population
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs

envs, rows, steps = make_envs("CartPole-v1", 1), 20_000, 100
config = DQNConfig(hidden=(32, 32), n_step=1, batch_size=128)
population = Population.of(DQN, envs.spec, size=4, config=config)
replay = ReplayBuffer(envs.spec, capacity=rows)
replay.add(transitions(rows))
with Task() as task:
    task.use(mw.for_each(population, lambda agent: [mw.train(agent, replay, batch_size=128)]))
    cost = cost_of(lambda: task.run(max_step=steps), number=1) / steps / 4
tell("ding_lite", cost=cost * 1e6)

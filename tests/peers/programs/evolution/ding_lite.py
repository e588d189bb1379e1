from measuring import cost_of, tell

from ding_lite import Task, middleware as mw
from ding_lite.evolution import Population
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer
from tests.rl.rollouts import CARTPOLE, draw_batch

rows, steps = 20_000, 100
config = DQNConfig(hidden=(32, 32), n_step=1, batch_size=128)
population = Population.of(DQN, CARTPOLE, size=4, config=config)
replay = ReplayBuffer(CARTPOLE, capacity=rows)
replay.add(draw_batch(0, spec=CARTPOLE, size=rows))
with Task() as task:
    task.use(mw.for_each(population, lambda agent: [mw.train(agent, replay, batch_size=128)]))
    cost = cost_of(lambda: task.run(max_step=steps), number=1) / steps / 4
tell("ding_lite", cost=cost * 1e6)

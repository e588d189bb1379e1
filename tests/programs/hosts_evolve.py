"""A population over processes of Accelerate."""

from ding_lite import Task, middleware as mw
from ding_lite.distributed import Processes
from ding_lite.distributed.accelerate import digest_of
from ding_lite.evolution import Mutation, Population, Search, Tournament, log_uniform
from ding_lite.rl import DQN, ReplayBuffer, make_envs
from tests.programs.given import say

EVERY = 2
processes = Processes(timeout=30.0)
envs, eval_envs = (make_envs("CartPole-v1", n, seed=processes.seed(n)) for n in (8, 2))
search = Search(lr=log_uniform(1e-4, 1e-2))
population = Population.of(DQN, envs.spec, search, size=3, config={"hidden": (8,)})
replay = processes.prepare(ReplayBuffer(envs.spec, capacity=1_000, seed=processes.seed(0)))


def learn(agent):
    collect = mw.collect(agent, envs, steps=8)
    return [collect, mw.add_to(replay), mw.train(agent, replay, batch_size=8)]


with Task() as task:
    task.use(mw.for_each(population, learn)).use(mw.average_agents(population, processes))
    task.use(mw.evaluate(population, eval_envs, processes, every=EVERY, episodes=1))
    if processes.is_main:
        task.use(mw.evolve(population, Tournament(), Mutation(search), every=EVERY))
    task.use(mw.share_generation(population, processes, every=EVERY))
    task.run(max_step=4)
digests = [digest_of(agent.weights()).hex() for agent in population]
say("ended", population.generation, task.ctx.env_step, *digests)

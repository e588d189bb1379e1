"""A run of two processes that is cut off, and one that goes on."""

import os
import signal

from ding_lite import Task, middleware as mw
from ding_lite.distributed import Processes
from ding_lite.distributed.accelerate.processes import digest_of
from ding_lite.evolution import Mutation, Population, Search, Tournament, integer, log_uniform
from ding_lite.rl import DQN, ReplayBuffer, make_envs
from tests.programs.given import given, say

processes = Processes(timeout=60.0)
rank, is_main = processes.rank, processes.is_main


class Fuse:
    step = burns_at = None  # the step in which a save kills its process

    def note_step(self, ctx):
        self.step = ctx.total_step

    def state_dict(self):
        if self.step is not None and self.step == self.burns_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return {}

    def load_state_dict(self, state):
        pass


def digest_after(steps, folder, *, resume=False, burns_at=None):
    envs = make_envs("CartPole-v1", 4, seed=processes.seed(0))
    eval_envs = make_envs("CartPole-v1", 2, seed=processes.seed(1))
    search = Search(lr=log_uniform(1e-4, 1e-2), batch_size=integer(8, 32))
    population = Population.of(DQN, envs.spec, search, size=3, config={"hidden": (8,)})
    replay = processes.prepare(ReplayBuffer(envs.spec, capacity=500, seed=processes.seed(2)))
    fuse = Fuse()
    fuse.burns_at = burns_at if is_main else None

    def learn(agent):
        return [mw.collect(agent, envs, steps=16), mw.add_to(replay), mw.train(agent, replay)]

    with Task() as task:
        parts = {"fuse": fuse, "population": population, "replay": replay, "task": task}
        parts |= {"envs": envs, "eval_envs": eval_envs}
        task.use(fuse.note_step)
        task.use(mw.for_each(population, learn))
        task.use(mw.average_agents(population, processes))
        task.use(mw.evaluate(population, eval_envs, processes, every=3))
        if is_main:
            task.use(mw.evolve(population, Tournament(), Mutation(search, none=0.1), every=3))
        task.use(mw.share_generation(population, processes, every=3))
        task.use(mw.checkpoint(parts, folder, processes, every=2))
        if resume:
            found = mw.resume(parts, folder, processes)
            say("goes on", rank, found and found["total_step"])
        task.run(max_step=steps)
    agents = population.state_dict()["agents"]
    return digest_of([agents, replay.replay.state_dict(), envs.obs]).hex()


if given.goes_on:
    resumed = digest_after(6, "cut", resume=True)
    say("resumed", rank, resumed == digest_after(10, "whole"))
else:
    digest_after(10, "cut", resume=True, burns_at=5)

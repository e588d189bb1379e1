"""A population over nodes, of which one learner may wait to be killed."""

import pathlib
import threading

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import PopulationServer, World
from ding_lite.distributed.accelerate.processes import digest_of
from ding_lite.evolution import Mutation, Population, Search, Tournament, integer, log_uniform
from ding_lite.rl import DQN, ReplayBuffer, make_envs
from tests.programs.given import begin_incarnation, given, say

VICTIM, GENERATIONS, EVERY, RECOVER = given.victim, 3, 2, given.recover


def main():
    world, incarnation = World.current(), begin_incarnation(World.current().node_id)
    envs, eval_envs = (make_envs("CartPole-v1", n, seed=world.node_seed + n) for n in (4, 2))
    search = Search(lr=log_uniform(1e-4, 1e-2), batch_size=integer(8, 32))
    population = Population.of(DQN, envs.spec, search, size=4, config={"hidden": (8,)})
    replay = ReplayBuffer(envs.spec, capacity=1_000, seed=world.node_seed)
    server = PopulationServer(world.group("breeder"), world.group("learner"), population)
    mutation = Mutation(search, none=0.1)

    def learn(agent):
        return [mw.collect(agent, envs, steps=8), mw.add_to(replay), mw.train(agent, replay)]

    def die_or_wait(ctx):
        # Of the generation before the last one nothing is given back until one is killed.
        is_due = population.generation == GENERATIONS - 2 and incarnation == 1
        if is_due and world.node_id == VICTIM:
            say("training", *[a.place for a in population if not a.is_away])
            task.wait_for("never")

    def end(ctx):
        ctx.finish = ctx.get("generation") == GENERATIONS
        # The other learner may be done before the killed one is back.
        while ctx.finish and RECOVER and not pathlib.Path(f"incarnation-{VICTIM}-2").exists():
            threading.Event().wait(0.05)

    with Task() as task:
        learner, breeder = task.at("learner"), task.at("breeder")
        learner.use(mw.take_members(population, server))
        learner.use(mw.for_each(population, learn))
        learner.use(die_or_wait)
        learner.use(mw.evaluate(population, eval_envs, every=EVERY))
        learner.use(mw.return_members(population, server, every=EVERY))
        breeder.use(mw.gather_members(server, every=EVERY))
        breeder.use(mw.evolve(server.population, Tournament(), mutation, every=EVERY))
        breeder.use(mw.checkpoint({"server": server, "task": task}, given.saved, every=EVERY))
        breeder.use(end)
        if task.match_labels("breeder") and pathlib.Path(given.saved, "manifest.json").exists():
            mw.resume({"server": server, "task": task}, given.saved)
            say("goes on at generation", server.population.generation)
        task.run()
    counts, ctx = server.counts, task.ctx
    if task.match_labels("breeder"):
        digest = digest_of(server.population.state_dict()["agents"]).hex()
        return digest, server.num_restored, counts, ctx.env_step
    return None


if __name__ == "__main__":
    runner = Parallel.runner(len(given.roles), "star", roles=given.roles, auto_recover=RECOVER)
    print("ended", *runner(main)[0])

"""Processes of Accelerate tell each other things, and evolve one population."""

import tests.programs.last_words  # isort: skip  # noqa: F401

import torch

from ding_lite import Task, middleware as mw
from ding_lite.distributed import Processes
from ding_lite.distributed.accelerate.processes import digest_of
from ding_lite.errors import MiddlewareError, NonFiniteError
from ding_lite.evolution import Mutation, Population, Search, Tournament, integer, log_uniform
from ding_lite.rl import DDPG, DQN, R2D2, ReplayBuffer, make_envs
from tests.evolution.conftest import some_transitions
from tests.programs.given import say

processes = Processes(timeout=60.0)
rank, is_main = processes.rank, processes.is_main


def check(name, is_true):
    say(name, rank, is_true)


# What they tell each other.
check("gather", processes.gather("few", [rank, 7.0]).tolist() == [[0.0, 7.0], [1.0, 7.0]])
check("gather many", processes.gather("many", [rank] * 50)[:, 49].tolist() == [0.0, 1.0])
small, large = processes.mean("mean", [torch.full((3,), float(rank)), torch.ones(70_000) * rank])
check("mean", small.tolist() == [0.5] * 3 and bool((large == 0.5).all()))
tree = processes.broadcast("tree", {"w": torch.arange(9_000), "n": [rank]})
check("broadcast", tree["n"] == [0] and bool((tree["w"] == torch.arange(9_000)).all()))
check("seeds", len({*processes.gather("seeds", [processes.seed(0)])[:, 0]}) == 2)

# What goes astray is recognised, by all of them.
try:
    processes.gather("one" if is_main else "another", [1.0])
except MiddlewareError as error:
    check("astray", f"Rank {rank} has come to" in str(error) and f"rank {1 - rank} " in str(error))
try:
    processes.check_same("population", {"w": torch.ones(3) + 1e-6 * rank}, generation=5)
except MiddlewareError as error:
    check("differs", "In generation 5 the population of rank 1 differs" in str(error))

# The loader reads this process's own replay, and all of it.
spec = make_envs("CartPole-v1", 1).spec
own = ReplayBuffer(spec, capacity=2_000)
own.add(some_transitions(spec, 1_500, seed=rank))
seen = {tuple(obs) for obs in some_transitions(spec, 1_500, seed=rank).obs.tolist()}
sample = [processes.prepare(own).sample(1_000) for _ in range(3)]
check("replay", all(tuple(obs) in seen for batch in sample for obs in batch.obs.tolist()))

# And the loop.
envs = make_envs("CartPole-v1", 4, seed=processes.seed(0))
eval_envs = make_envs("CartPole-v1", 2, seed=processes.seed(1))
search = Search(lr=log_uniform(1e-4, 1e-2), batch_size=integer(8, 32))
population = Population.of(DQN, envs.spec, search, size=3, config={"hidden": (8,)})
replay = processes.prepare(ReplayBuffer(envs.spec, capacity=500, seed=processes.seed(2)))

other = Population.of(DQN, envs.spec, search, size=3, seed=rank, config={"hidden": (8,)})
with Task() as task:
    task.use(mw.average_agents(other, processes))
    try:
        task.run(max_step=1)
    except MiddlewareError as error:
        check("differs at first", "In generation 0 the population of rank 1" in str(error))


def learn(agent):
    return [mw.collect(agent, envs, steps=16), mw.add_to(replay), mw.train(agent, replay)]


weights: list[str] = []


def look(ctx):
    weights.append(digest_of([agent.weights() for agent in population]).hex())


with Task() as task:
    task.use(mw.for_each(population, learn))
    task.use(mw.average_agents(population, processes))
    task.use(look)
    task.use(mw.evaluate(population, eval_envs, processes, every=3))
    if is_main:
        task.use(mw.evolve(population, Tournament(), Mutation(search, none=0.1), every=3))
    task.use(mw.share_generation(population, processes, every=3))
    task.run(max_step=9)

say("env_step", task.ctx.env_step, "steps", task.ctx.total_step + 1)
fitness = [agent.fitness for agent in population]
say("population", population.generation, fitness, task.ctx.eval_steps, task.ctx.generation)
say("weights", *weights)


# What is broken on one process rests on all, and takes no part in the next mean.
def break_one(ctx):
    if rank == 1:
        population[0].set_aside(NonFiniteError("here"))


before = digest_of(population[0].weights())
with Task() as task:
    task.use(break_one).use(mw.average_agents(population, processes))
    task.run(max_step=1)
rests = [agent.rests for agent in population]
check("broken", rests == [True, False, False] and digest_of(population[0].weights()) == before)
words = [agent.policy.state_dict()["rng"].tolist() for agent in population]
check("explore apart", len({*processes.gather("rngs", [float(sum(map(sum, words)))])[:, 0]}) == 2)


# What breaks in an evaluation on one process is set aside on all, fresh episodes included.
def spoil(agent):
    if rank == 1:
        agent.load_weights({name: w * torch.nan for name, w in agent.weights().items()})


swinging = make_envs("Pendulum-v1", 2, seed=processes.seed(3))
actors = Population.of(DDPG, swinging.spec, Search(), size=3, config={"hidden": (8,)})
spoil(actors[0])
evaluate = mw.evaluate(actors, swinging, processes, every=1, stop_at=-5_000.0, confirm=4)
with Task() as task:
    task.use(evaluate)
    task.run(max_step=5)
rests = [agent.rests for agent in actors]
check("broken in an evaluation", rests == [True, False, False] and task.ctx.total_step == 0)
spoil(actors.best)
evaluate.judge_best(task.ctx)  # type: ignore[attr-defined]
rests = [agent.rests for agent in actors]
check("broken in fresh episodes", sum(rests) == 2 and task.ctx.finish)
say("judged", [agent.fitness for agent in actors], task.ctx.eval_steps, task.ctx.eval_value)

# Agents with a generator of PyTorch's, a second run of which finds them the same still.
recurrent = Population.of(R2D2, envs.spec, Search(), size=2, config={"hidden": (8,)})
for _ in range(2):
    with Task() as task:
        task.use(mw.average_agents(recurrent, processes))
        task.run(max_step=1)
generators = [agent.policy.state_dict()["rng"]["generator"] for agent in recurrent]
drawn = processes.gather("generators", [float(state.sum()) for state in generators])
check("explore apart by PyTorch", len({*drawn.ravel()}) == 4)

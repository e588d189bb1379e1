"""Two processes of Accelerate: one population, and no hang when one dies or goes astray."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.procs.gang import LAST_WORDS
from tests.procs.programs import Program, run

pytestmark = pytest.mark.deadline(90)  # several processes that import PyTorch at a time
SLOW = pytest.mark.slow  # a unit test holds their messages
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py")

TOGETHER = """
import torch
from ding_lite import middleware as mw
from ding_lite.distributed import Processes
from ding_lite.errors import MiddlewareError, NonFiniteError
from ding_lite.evolution import Mutation, Population, Search, Tournament, integer, log_uniform
from ding_lite.distributed.accelerate import digest_of
from ding_lite.rl import DQN, ReplayBuffer, make_envs
from tests.evolution.conftest import some_transitions

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

weights = []

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
"""


def test_two_processes_are_one_population(folder: Path) -> None:
    code, said = run(folder, LAST_WORDS + TOGETHER, *TORCHRUN)
    assert code == 0, said
    lines = [line.split() for line in said.splitlines()]
    # Else one of them may abort a process that has done all its work.
    assert lines.count(["threads", "at", "the", "end", "0"]) == 2, said
    names = [
        *("gather", "gather many", "mean", "broadcast", "seeds", "astray", "differs"),
        *("replay", "differs at first", "broken", "explore apart"),
    ]
    for name in names:
        for rank in "01":
            assert [*name.split(), rank, "True"] in lines, (name, rank, said)
    of_both = {
        name: [line[1:] for line in lines if line[:1] == [name]]
        for name in ("env_step", "population", "weights")
    }
    # Three generations of three steps, three agents, 16 env steps, on two processes.
    assert of_both["env_step"] == [[str(3 * 3 * 3 * 16 * 2), "steps", "9"]] * 2
    assert len(of_both["weights"][0]) == 9
    assert len({*of_both["weights"][0]}) == 9
    assert of_both["weights"][0] == of_both["weights"][1]
    assert len(of_both["population"]) == 2
    assert of_both["population"][0] == of_both["population"][1]


FAULTS = """
import subprocess, time
from ding_lite.distributed import Processes

def main():
    processes = Processes(timeout={timeout})
    say("up", processes.rank, os.getpid())
    for k in range(3):
        processes.gather(f"operation {k}", [k])
    if processes.rank == 1:
        say("waiting")
        threading.Event().wait()
    processes.mean("weights", [__import__("torch").ones(5)])

if __name__ == "__main__" and "RANK" in os.environ:
    main()
elif __name__ == "__main__":
    import socket
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    known = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    ranks = [
        subprocess.Popen([sys.executable, "program.py"], env=dict(known, RANK=r, LOCAL_RANK=r))
        for r in "01"
    ]
    say("rank 0 ended with", ranks[0].wait())
    ranks[1].kill()
    say("rank 1 ended with", ranks[1].wait())
"""


@pytest.mark.parametrize(
    ("how", "timeout"), [("killed", 60.0), pytest.param("elsewhere", 1.0, marks=SLOW)]
)
def test_a_process_that_waits_for_one_that_never_comes_ends_in_time(
    folder: Path, how: str, timeout: float
) -> None:
    with Program(folder, FAULTS.replace("{timeout}", str(timeout))) as program:
        pids = program.pids(2)
        program.line("waiting")
        if how == "killed":
            os.kill(pids[1], signal.SIGKILL)
        code, said = program.end()
    assert code == 0, said
    assert "rank 0 ended with 1" in said
    assert "PeerLost: Rank 0 of 2 has waited for the other processes in vain: one has died" in said
    assert f"has not come within {timeout:g} s" in said


@SLOW
def test_accelerate_launch_starts_two_or_says_how_to(folder: Path) -> None:
    source = """
from ding_lite.distributed import Processes
say("size", Processes().size)
"""
    launch = ("-m", "accelerate.commands.launch")
    code, said = run(folder, source, *launch, "--cpu", "--num_processes", "2", "program.py")
    assert code == 1, said
    assert "has started one, as it does for a job without GPUs" in said
    two = ("--multi_gpu", "--main_process_port", "0", "--num_processes", "2", "program.py")
    assert "--multi_gpu --num_processes 2 program.py" in said
    code, said = run(folder, source, *launch, *two)
    assert (code, said.count("size 2")) == (0, 2), said


RESUMED = """
import signal
from ding_lite import middleware as mw
from ding_lite.distributed import Processes
from ding_lite.distributed.accelerate import digest_of
from ding_lite.evolution import Mutation, Population, Search, Tournament, integer, log_uniform
from ding_lite.rl import DQN, ReplayBuffer, make_envs

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

if "second" in sys.argv:
    resumed = digest_after(6, "cut", resume=True)
    say("resumed", rank, resumed == digest_after(10, "whole"))
else:
    digest_after(10, "cut", resume=True, burns_at=5)
"""


def test_two_processes_go_on_where_both_have_saved_though_one_was_killed_on_the_way(
    folder: Path,
) -> None:
    code, said = run(folder, RESUMED, *TORCHRUN)
    assert code != 0
    assert [f"goes on {rank} None" in said for rank in (0, 1)] == [True, True], said
    # The other process has saved step 6, the main one was killed when it was about to.
    assert {path.name for path in folder.glob("cut*")} == {"cut", "cut-1-0", "cut-1-1"}

    code, said = run(folder, RESUMED, *TORCHRUN, "second")
    assert code == 0, said
    for rank in (0, 1):
        assert f"goes on {rank} 3" in said, said
        assert f"resumed {rank} True" in said, said

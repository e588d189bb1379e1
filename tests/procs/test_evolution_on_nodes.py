"""Populations over processes: the same every time, and nothing is lost with a node."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.procs.killing import segments
from tests.procs.programs import Program, run, wait_until_gone

pytestmark = pytest.mark.deadline(60)
SLOW = pytest.mark.slow  # as each starts several processes that import PyTorch

EVOLVE = """
import hashlib, pathlib
from ding_lite import middleware as mw
from ding_lite.distributed import PopulationServer, World
from ding_lite.evolution import Mutation, Population, Search, Tournament, integer, log_uniform
from ding_lite.rl import DQN, ReplayBuffer, make_envs

VICTIM, GENERATIONS, EVERY, RECOVER = {victim}, {generations}, 2, {recover}

def begin_incarnation():
    node = World.current().node_id
    incarnation = len([*pathlib.Path().glob(f"incarnation-{node}-*")]) + 1
    say("up", node, os.getpid())
    pathlib.Path(f"incarnation-{node}-{incarnation}").touch()
    return incarnation

def digest(population):
    h = hashlib.blake2b(digest_size=8)
    for agent in population:
        said = [agent.place, agent.birth, sorted(agent.hyperparameters.items()), agent.evaluations]
        h.update(repr((said, agent.config)).encode())
        for name, weights in sorted(agent.weights().items()):
            h.update(name.encode() + weights.numpy().tobytes())
    return h.hexdigest()

def main():
    world, incarnation = World.current(), begin_incarnation()
    envs, eval_envs = (make_envs("CartPole-v1", n, seed=world.node_seed + n) for n in (4, 2))
    search = Search(lr=log_uniform(1e-4, 1e-2), batch_size=integer(8, 32))
    population = Population.of(DQN, envs.spec, search, size=4, config={"hidden": (8,)})
    replay = ReplayBuffer(envs.spec, capacity=1_000, seed=world.node_seed)
    server = PopulationServer(world.group("breeder"), world.group("learner"), population)
    mutation = Mutation(search, none=0.1)

    def learn(agent):
        return [mw.collect(agent, envs, steps=8), mw.add_to(replay), mw.train(agent, replay)]

    def die_or_wait(ctx):
        # Of the generation before the last one nobody gives anything back until one is killed.
        if population.generation == GENERATIONS - 2 and incarnation == 1 and VICTIM is not None:
            if world.node_id == VICTIM:
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
        learner.use(mw.evaluate_population(population, eval_envs, every=EVERY))
        learner.use(mw.return_members(population, server, every=EVERY))
        breeder.use(mw.gather_members(server, every=EVERY))
        breeder.use(mw.evolve(server.population, Tournament(), mutation, every=EVERY))
        breeder.use(mw.checkpoint({"server": server, "task": task}, "saved", every=EVERY))
        breeder.use(end)
        if task.match_labels("breeder") and pathlib.Path("saved/manifest.json").exists():
            mw.resume({"server": server, "task": task}, "saved")
            say("goes on at generation", server.population.generation)
        task.run()
    counts, ctx = server.counts, task.ctx
    if task.match_labels("breeder"):
        return digest(server.population), server.num_restored, counts, ctx.env_step

if __name__ == "__main__":
    roles = {roles}
    runner = Parallel.runner(len(roles), "star", roles=roles, auto_recover=RECOVER)
    print("ended", *runner(main)[0])
"""
ROLES = ["breeder", "learner", "learner"]


def source(
    *,
    victim: int | None = None,
    recover: bool = False,
    generations: int = 3,
    roles: list[str] | list[set[str]] = ROLES,
) -> str:
    given = {"victim": victim, "recover": recover, "generations": generations, "roles": roles}
    text = EVOLVE
    for name, value in given.items():
        text = text.replace("{" + name + "}", str(value))
    return text


@SLOW
def test_a_seed_gives_the_same_population_on_the_same_nodes(folder: Path) -> None:
    ends = []
    for k in range(2):
        (folder / str(k)).mkdir()
        code, said = run(folder / str(k), source())
        assert code == 0, said
        ends.append(said.splitlines()[-1])
    assert ends[0] == ends[1]
    assert ends[0].startswith("ended ")
    env_steps = 3 * 4 * 2 * 8  # generations, members, steps, env steps
    assert ends[0].endswith(f" {env_steps}")


@SLOW
def test_one_node_evolves_a_population_alone(folder: Path) -> None:
    code, said = run(folder, source(roles=[{"breeder", "learner"}]))
    assert code == 0, said
    assert said.splitlines()[-1].endswith(f" {3 * 4 * 2 * 8}")


@pytest.mark.parametrize("victim", [pytest.param(1, marks=SLOW), 2])
def test_evolution_goes_on_when_a_learner_is_killed(folder: Path, victim: int) -> None:
    with Program(folder, source(victim=victim, recover=True)) as job:
        pids = job.pids(3)
        places = job.line("training")[1:]
        assert places == (["0", "2"] if victim == 1 else ["1", "3"])
        os.kill(pids[victim], signal.SIGKILL)
        pids |= {victim + 10: job.pids(1)[victim]}
        code, said = job.end()
        assert code == 0, said
        words = said.splitlines()[-1].split()
        assert words[0] == "ended", said
        assert words[2] == "2", said  # both members of the killed node were trained again
        assert words[-1] == str(3 * 4 * 2 * 8), said  # and what was lost is not counted
        wait_until_gone(*pids.values())
        assert job.left_over() == []
    assert segments(pids.values()) == []


@SLOW
def test_a_killed_breeder_goes_on_from_the_last_whole_generation(folder: Path) -> None:
    with Program(folder, source(victim=1, recover=True)) as job:
        pids = job.pids(3)
        job.line("training")
        os.kill(pids[0], signal.SIGKILL)
        job.pids(1)
        assert job.line("goes on at generation")[-1] == "1"
        os.kill(pids[1], signal.SIGKILL)  # it waits in vain otherwise
        code, said = job.end()
    assert code == 0, said
    assert said.splitlines()[-1].split()[-1] == str(3 * 4 * 2 * 8), said


@SLOW
def test_without_auto_recover_a_killed_learner_ends_the_job(folder: Path) -> None:
    with Program(folder, source(victim=2)) as job:
        pids = job.pids(3)
        job.line("training")
        os.kill(pids[2], signal.SIGKILL)
        code, said = job.end()
        assert code == 1, said
        assert f"Node 2 (process {pids[2]}) was killed by SIGKILL" in said
        wait_until_gone(*pids.values())
        assert job.left_over() == []
    assert segments(pids.values()) == []

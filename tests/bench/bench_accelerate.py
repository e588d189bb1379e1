"""Env steps a second of two Accelerate processes, and the cost of its prepared loader.

The job is the seed's: 4 DQNs with hidden layers of 32, 16 environments, batches of 128, one update
for each env step; here on CartPole-v1, with one turn of 640 env steps for each agent in a
generation, so that the processes meet once in that time (docs/guide/accelerate.md). Env steps are
those that all processes learn from, by the clock on the wall, evaluations included: those end after
50 steps, so that they cost the same however good the agents are. Two jobs of one process each, side
by side, tell what two cores could bring. AgileRL's prepared sampler takes 97 times as long as a
direct sample.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from ding_lite import Task, middleware as mw
from ding_lite.distributed import Processes
from ding_lite.evolution import Agent, Mutation, Population, Search, Tournament, log_uniform
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs
from ding_lite.runtime.middleware import Middleware
from ding_lite.testing import run_step
from tests.bench.harness import ROOT, Row, compare, row_from_samples

MAX_SAMPLE_RATIO = 1.5
MAX_SHARE_OF_ONE = 1.0 / 1.6
BATCH_SIZE = 128
TURN = 640
ROUNDS = 5
SECONDS = 4.0
NAME = "an env step of two processes, on two cores"
LAUNCHES = 5


def run() -> list[Row]:
    return [sampling(), *two_processes()]


def sampling() -> Row:
    envs = make_envs("CartPole-v1", 16, seed=0)
    replay = ReplayBuffer(envs.spec, capacity=10_000)
    run_step(mw.random_warmup(envs, replay, steps=10_000))
    prepared = Processes().prepare(replay)
    return compare(
        "a batch of 128 through the loader that Accelerate has prepared",
        lambda: prepared.sample(BATCH_SIZE),
        lambda: replay.sample(BATCH_SIZE),
        baseline_name="ReplayBuffer.sample",
        number=400,
        target=MAX_SAMPLE_RATIO,
    )


def two_processes() -> list[Row]:
    one, two, side_by_side = [], [], []
    for _ in range(LAUNCHES):
        one += seconds_of_an_env_step(1)
        two += seconds_of_an_env_step(2)
        jobs = seconds_of_an_env_step(1, num_jobs=2)
        side_by_side.append(sum(wall for wall, _ in jobs) / len(jobs) ** 2)
    wall_one, cpu_one = zip(*one, strict=True)
    wall_two, cpu_two = zip(*two, strict=True)
    return [
        row_from_samples(name, ours, baseline=baseline, baseline_name=baseline_name, target=target)
        for name, ours, baseline, baseline_name, target in [
            (NAME, wall_two, wall_one, "one process", MAX_SHARE_OF_ONE),
            (f"{NAME}, CPU time of the busier one", cpu_two, cpu_one, "one process", None),
            (f"{NAME}, beside two jobs", wall_two, side_by_side, "one process each, at once", None),
        ]
    ]


def seconds_of_an_env_step(num_processes: int, *, num_jobs: int = 1) -> list[tuple[float, float]]:
    """Start as many jobs at once; return what an env step of each took on the wall, and of CPU."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    command = [sys.executable, "-m", *torchrun, "-m", "tests.bench.bench_accelerate"]
    jobs = [
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(num_jobs)
    ]
    found = []
    for job, (output, errors) in [(job, job.communicate()) for job in jobs]:
        if job.returncode:
            raise RuntimeError(f"A job has ended with {job.returncode}:\n{errors}")
        wall, cpu = json.loads(output.splitlines()[-1])
        found.append((float(wall), float(cpu)))
    return found


def main() -> None:
    processes = Processes()
    envs = make_envs("CartPole-v1", 16, seed=processes.seed(0))
    eval_envs = make_envs(
        "CartPole-v1", 4, seed=processes.seed(1), env_args={"max_episode_steps": 50}
    )
    # So that an env step costs the same with one process as with two.
    search = Search(lr=log_uniform(5e-4, 2e-3))
    config = DQNConfig(hidden=(32, 32), batch_size=BATCH_SIZE, target_tau=1e-3)
    population = Population.of(DQN, envs.spec, search, size=4, config=config)
    # Agents of other shapes learn by themselves, and how many do would be another number each time.
    mutation = Mutation(search, architecture=0.0)
    replay = processes.prepare(ReplayBuffer(envs.spec, capacity=10_000, seed=processes.seed(2)))

    def learn(agent: Agent) -> list[Middleware]:
        collect = mw.collect(agent, envs, steps=TURN)
        return [collect, mw.add_to(replay), mw.train(agent, replay, updates=TURN)]

    with Task() as task:
        task.use(mw.for_each(population, learn))
        task.use(mw.average_agents(population, processes))
        # As many episodes in all, whichever number of processes play them.
        episodes = 4 // processes.size
        task.use(mw.evaluate(population, eval_envs, processes, every=1, episodes=episodes))
        if processes.is_main:
            task.use(mw.evolve(population, Tournament(), mutation, every=1))
        task.use(mw.share_generation(population, processes, every=1))

        task.run(max_step=ROUNDS)  # the replay fills, and everything is warm
        before = task.ctx.env_step
        began, cpu_began = time.perf_counter(), time.process_time()
        while processes.gather("time", [time.perf_counter() - began]).max() < SECONDS:
            task.run(max_step=ROUNDS)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        busiest = processes.gather("CPU time", [cpu]).max()
    if processes.is_main:
        made = task.ctx.env_step - before
        print(json.dumps([wall / made, busiest / made]))


if __name__ == "__main__":
    main()

"""Nodes on several machines, each with a network of its own, over wires that are bad or cut."""

from __future__ import annotations

import re
import select
from ast import literal_eval
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ding_lite.parallel.network.security import make_key
from tests.procs.network import Machine, Network, why_not
from tests.procs.programs import PREAMBLE, ROOT
from tests.procs.shells import Shell
from tests.procs.test_data_parallel import LEARN as BATCHES
from tests.procs.test_rendezvous import TALK as MEET, hears

ADDRESSES = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
HUB = "DING_LITE_ADDRESS=10.77.0.1 DING_LITE_PORTS=50515"
OTHER = "DING_LITE_ATTACH_TO=tcp://10.77.0.1:50515"

LEARN = """
import torch
from ding_lite import middleware as mw
from ding_lite.distributed import World
from ding_lite.rl import make_envs

def main():
    world = World.current()
    learners = world.group("learner")
    policy = DQN(SPEC, DQNConfig(seed=world.node_id, **CONFIG))
    with Task() as task:
        if not learners.is_member:
            def collect(ctx):
                item = batch_of(ctx.total_step)
                parts = {name: getattr(item, name) for name in Transitions.__dataclass_fields__}
                task.router.send("batches", parts, to="learner", until=lambda: task.finish)
            task.use(collect).run()
            return None

        def fetch(ctx):
            item = task.router.receive("batches")
            ctx.transitions = Transitions(**item.value)
            taken.append(item.value["action"])

        def end(ctx):  # behind the update, for which the other one is needed
            ctx.finish = ctx.total_step == 19

        taken, mean = [], torch.full((100_000,), float(world.node_id))
        policy.data_parallel(learners)
        policy.reduce_gradient(mean)
        task.use(fetch).use(mw.train(policy)).use(end).run()
    first, second = learners.all_gather(taken)
    same = sum(bool((one == other).all()) for one, other in zip(first, second))
    return mean.unique().tolist(), same, learners.all_gather(digest(policy))

if __name__ == "__main__":
    roles = ["learner", "learner", "collector"]
    print(Parallel.runner(3, roles=roles, startup_timeout=30.0)(main))
"""

TALK = """
import pathlib
import numpy as np
from contextlib import suppress
from ding_lite.errors import DeadlineExceeded

def lead(task):
    heard, taken, said, seen = {1: [], 2: []}, {1: [], 2: []}, {}, set()
    asks, last = ["under way"], []

    def step(ctx):
        if not last:
            ctx.number = ctx.total_step
            ctx.state_dict = {"w": np.full(2_000, ctx.total_step)}
        with suppress(DeadlineExceeded):
            item = task.router.receive("work", timeout=0.01)
            taken[item.node_id].append(item.value)
        if asks and len(taken[1]) > 200 < len(taken[2]):
            say(asks.pop())
        if pathlib.Path("go").exists() and "enough" not in said:
            said["enough"] = True
            task.emit("enough", only_remote=True)
        if not last and all(said.get(n) == (len(heard[n]), len(taken[n])) for n in heard):
            last.append(ctx.number)
            task.emit("last", ctx.number, only_remote=True)
        task.finish = len(seen) == 2

    task.on("n", lambda node, number: heard[node].append(number))
    task.on("said", lambda node, *counts: said.update({node: counts}))
    task.on("seen", seen.add)
    task.on("node_lost", lambda node: say("fate", "lost", node))
    task.on("node_joined", lambda node: say("fate", "joined", node))
    task.use(step).run()
    return {node: (is_whole(heard[node]), is_whole(taken[node])) for node in heard}

def is_whole(numbers):
    if numbers != [*range(len(numbers))]:
        say("found", *numbers)
    return len(numbers) > 200 and numbers == [*range(len(numbers))]

def follow(task, node):
    seen, counts, enough, last = [0], [0, 0], [], []

    def step(ctx):
        newest = task.parallel_ctx.of(0)
        if "number" in newest:
            [number] = np.unique(newest.state_dict["w"])  # else it is torn
            assert seen[-1] <= number == newest.number
            seen.append(int(number))
        with suppress(DeadlineExceeded):
            task.wait_for("nothing", timeout=0.01)
        if enough == ["heard"]:
            enough.append("said")
            task.emit("said", node, *counts)
        if last and seen[-1] == last[0]:
            task.emit("seen", node)
            last.clear()
        if enough:
            return
        task.emit("n", node, counts[0], only_remote=True)
        counts[0] += 1
        patience = {"timeout": None, "until": lambda: enough or task.finish}
        if task.router.send("work", counts[1], to="node.0", in_flight=64, **patience):
            counts[1] += 1

    task.on("enough", lambda: (enough.append("heard"), task.router.wake()))
    task.on("last", last.append)
    task.use(step).run()
    return len(set(seen)) > 20

def main():
    node = Parallel().node_id
    with Task() as task:
        task.share("state_dict", "number")
        return lead(task) if node == 0 else follow(task, node)

if __name__ == "__main__":
    print(Parallel.runner(3, "star", startup_timeout=30.0)(main))
"""


EVOLVE = """
from ding_lite import middleware as mw
from ding_lite.distributed import Processes
from ding_lite.distributed.accelerate import digest_of
from ding_lite.evolution import Mutation, Population, Search, Tournament, log_uniform
from ding_lite.rl import DQN, ReplayBuffer, make_envs

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
"""


@pytest.fixture
def network() -> Iterator[Network]:
    """Return a network without machines."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with Network() as network:
        yield network


@pytest.fixture
def machines(network: Network) -> list[Machine]:
    """Return three machines of the network."""
    return [network.machine(address) for address in ADDRESSES]


@pytest.fixture
def start(folder: Path, machines: list[Machine]) -> Iterator[Start]:
    """Return what starts a program as a job of three nodes, one on each machine."""
    with ExitStack() as stack:
        yield Start(folder, machines, stack)


class Start:
    """Starts a program as a job of one node a machine.

    Args:
        folder: Where the program and the key of the job lie.
        machines: That of each node.
        stack: What ends the nodes.
    """

    def __init__(self, folder: Path, machines: list[Machine], stack: ExitStack) -> None:
        self._folder, self._machines, self._stack = folder, machines, stack
        make_key(folder / "job.key")

    def __call__(self, line: str) -> list[Shell]:
        return [self.node(number, line) for number in range(len(self._machines))]

    def node(self, number: int, line: str) -> Shell:
        place = HUB if number == 0 else OTHER
        environ = f"DING_LITE_NUM_NODES={len(self._machines)} DING_LITE_NODE_ID={number} {place}"
        environ += f" DING_LITE_KEY_FILE={self._folder / 'job.key'}"
        machine = self._machines[number]
        return self._stack.enter_context(
            machine.type_line(self._folder, f"{environ} exec {line}", TMPDIR=str(self._folder))
        )


@pytest.mark.deadline(90)
def test_a_star_outlives_loss_delay_a_cut_of_ten_seconds_and_a_move(
    folder: Path, network: Network, machines: list[Machine], start: Start
) -> None:
    (folder / "train.py").write_text(PREAMBLE + TALK)
    hub, *others = start("python train.py")
    hub.line("under way")

    network.delay_s, network.loss = 0.05, 0.02
    with network.without(ADDRESSES[2]):
        hub.line("fate lost 2")
        select.select([], [], [], 7.0)  # it was silent for three seconds by then
    hub.line("fate joined 2")

    machines[1].move(ADDRESSES[1], "10.77.0.9")
    network.pull_out(ADDRESSES[1])
    network.plug_in("10.77.0.9", machines[1].port)
    hub.line("fate lost 1")
    hub.line("fate joined 1")

    (folder / "go").touch()
    results = [literal_eval(shell.end()[1].splitlines()[-1]) for shell in (hub, *others)]
    assert results == [[{1: (True, True), 2: (True, True)}], [True], [True]], hub.seen


@pytest.mark.deadline(60)
def test_a_mesh_of_machines_that_know_node_0_follows_one_that_moves(
    folder: Path, network: Network, machines: list[Machine], start: Start
) -> None:
    (folder / "train.py").write_text(PREAMBLE + MEET)
    zero, one, two = start("python train.py")
    hears(zero, 1, 2)
    hears(one, 0, 2)
    hears(two, 0, 1)

    machines[1].move(ADDRESSES[1], "10.77.0.9")
    network.pull_out(ADDRESSES[1])
    network.plug_in("10.77.0.9", machines[1].port)
    assert zero.line("lost")[1] == two.line("lost")[1] == "1"
    hears(zero, 1)
    hears(two, 1)


@pytest.mark.deadline(60)
def test_learners_on_two_machines_average_their_gradients_and_one_on_a_third_collects(
    folder: Path, start: Start
) -> None:
    (folder / "train.py").write_text(PREAMBLE + BATCHES + LEARN)
    ended = [shell.end() for shell in start("python train.py")]
    assert [code for code, _ in ended] == [0, 0, 0], ended
    first, second, third = (literal_eval(said.splitlines()[-1])[0] for _, said in ended)
    mean, num_batches_of_both, digests = first
    assert (mean, num_batches_of_both, len(set(digests))) == ([0.5], 0, 1)
    assert (second, third) == (first, None)


@pytest.mark.deadline(60)
def test_processes_of_accelerate_on_two_machines_are_one_population(
    folder: Path, machines: list[Machine]
) -> None:
    (folder / "train.py").write_text(PREAMBLE + EVOLVE)
    torchrun = "exec python -m torch.distributed.run --nnodes 2 --nproc-per-node 1"
    torchrun += f" --master-addr {ADDRESSES[0]} --master-port 50600"
    with ExitStack() as stack:
        shells = [
            stack.enter_context(
                machine.type_line(
                    folder, f"{torchrun} --node-rank {rank} train.py", TMPDIR=str(folder)
                )
            )
            for rank, machine in enumerate(machines[:2])
        ]
        ended = [shell.end() for shell in shells]
    assert [code for code, _ in ended] == [0, 0], ended
    # Behind it the second torchrun may complain that the first one has gone before it.
    [first], [second] = (re.findall(r"^ended .*", said, re.MULTILINE) for _, said in ended)
    assert first == second
    num_env_steps = 4 * 3 * 8 * 2  # steps, agents, env steps, processes
    assert first.split()[:3] == ["ended", "2", str(num_env_steps)]


@pytest.mark.slow
@pytest.mark.deadline(180)
def test_training_across_machines_solves_though_a_collector_is_cut_off_for_a_while(
    network: Network, start: Start
) -> None:
    network.delay_s, network.loss = 0.025, 0.01
    learner, *collectors = start(f"python {ROOT / 'examples' / 'impala_cartpole.py'} --nodes 3")
    learner.line("env steps")
    with network.without(ADDRESSES[2]):
        select.select([], [], [], 5.0)
    code, said = learner.end()
    assert code == 0, said
    assert '"solved": true' in said
    assert [collector.end()[0] for collector in collectors] == [0, 0]

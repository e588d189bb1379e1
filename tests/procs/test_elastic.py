"""Nodes that join a running job and leave it again, each a process of its own."""

from __future__ import annotations

import os
import signal

import pytest

from ding_lite.parallel.network.address import LOOPBACK, free_ports
from tests.procs.shells import Shell, Type

LEARNER = (
    "DING_LITE_ELASTIC=1 DING_LITE_NUM_NODES=2 DING_LITE_NODE_ID=0 "
    "DING_LITE_ROLES=learner,collector "
    "DING_LITE_PORTS=50515 python train.py"
)
COLLECTOR = (
    "DING_LITE_ELASTIC=1 DING_LITE_NUM_NODES=2 DING_LITE_NODE_ID=1 "
    "DING_LITE_ROLES=learner,collector "
    "DING_LITE_ATTACH_TO=tcp://127.0.0.1:50515 python train.py"
)
LATER = (
    "DING_LITE_ELASTIC=1 DING_LITE_ROLES=collector DING_LITE_ATTACH_TO=tcp://127.0.0.1:50515 "
    "python train.py"
)
"""The line by which any number of collectors join."""

WORK = """
from contextlib import suppress
from ding_lite.errors import DeadlineExceeded
from ding_lite.parallel.router.group import World

HOW = sys.argv[1:] and sys.argv[1]

def attached(newest):
    say("attached", newest.get("train_iter", 1) > 0)

def main():
    world = World.current()
    with Task(attach_callback=attached if HOW else None) as task:
        def learn(ctx):
            with suppress(DeadlineExceeded):  # it goes on whether or not there is news
                if (item := task.receive("items", timeout=0.1)) is not None:
                    say("got", *item)
            ctx.train_iter = ctx.total_step + 1
            task.emit("tick")

        def collect(ctx):
            task.send("items", ctx.total_step, to="learner")
            if HOW == "finish" and ctx.total_step == 3:
                ctx.finish = True
            if HOW == "stay":
                say("plays", os.getpid())
                task.wait_for("the end that never comes")
            elif not HOW:
                task.wait_for("tick")

        for name in ("node_joined", "node_left", "node_lost"):
            task.on(name, lambda node, name=name: say(name, node, world.num_nodes))
        task.use(learn, filter_labels="learner").use(collect, filter_labels="collector")
        say("begins", world.node_id, *sorted(task.labels))
        task.run(max_step=3 if HOW == "leave" else None)
        return world.node_id, [*world.group(["learner", "node.1"]).members]

if __name__ == "__main__":
    print(Parallel.runner(1, "star")(main))
"""


def start(type_line: Type, source: str = WORK) -> tuple[int, Shell, Shell]:
    [port] = free_ports(LOOPBACK, 1)
    shells = [type_line(line, port, source=source) for line in (LEARNER, COLLECTOR)]
    shells[0].line("got 1")
    return port, shells[0], shells[1]


def test_a_collector_joins_a_star_works_and_leaves_and_the_job_goes_on(type_line: Type) -> None:
    port, learner, collector = start(type_line)
    code, said = type_line(f"{LATER} leave", port, source=WORK).end()
    assert code == 0, said
    assert said.splitlines()[:2] == [
        "begins 2 collector collector.1 distributed node.2",
        "attached True",
    ]
    assert said.splitlines()[-1] == "[(2, [0, 1])]"
    assert learner.line("node_joined") == ["node_joined", "2", "3"]
    assert learner.line("node_left") == ["node_left", "2", "2"]
    while "got 2 2" not in learner.seen:
        learner.line()
    assert learner.seen.count("got 2 ") == 3  # each item that it has sent, and once
    assert collector.line("node_joined")[1] == "2"  # though the two are not connected
    assert collector.line("node_left")[1] == "2"

    ended = type_line(f"{LATER} finish", port, source=WORK).end()
    assert ended[0] == 0, ended[1]
    assert ended[1].splitlines()[0] == "begins 2 collector collector.1 distributed node.2"
    assert [shell.end()[0] for shell in (learner, collector)] == [0, 0]
    assert learner.seen.splitlines()[-1] == "[(0, [0, 1])]"


def test_a_collector_that_has_joined_and_is_killed_does_not_end_the_job(type_line: Type) -> None:
    port, learner, collector = start(type_line)
    later = type_line(f"{LATER} stay", port, source=WORK)
    later.line("plays")
    learner.line("got 2")
    later.kill()
    learner.line("node_lost 2")
    other = type_line(f"{LATER} finish", port, source=WORK).end()
    assert other[0] == 0, other[1]
    assert "begins 3 " in other[1]  # the place of the lost one is kept for a while
    assert [shell.end()[0] for shell in (learner, collector)] == [0, 0]


def test_ctrl_c_in_the_shell_of_a_node_that_has_joined_ends_that_one_only(type_line: Type) -> None:
    port, learner, collector = start(type_line)
    later = type_line(f"{LATER} stay", port, source=WORK)
    os.kill(int(later.line("plays")[1]), signal.SIGINT)
    learner.line("node_left 2")
    assert "\nKeyboardInterrupt\n" in later.end()[1]
    learner.line("got 1")
    assert type_line(f"{LATER} finish", port, source=WORK).end()[0] == 0
    assert [shell.end()[0] for shell in (learner, collector)] == [0, 0]


def test_all_collectors_may_join_by_one_line_and_the_job_begins_with_enough(
    type_line: Type,
) -> None:
    [port] = free_ports(LOOPBACK, 1)
    three = LEARNER.replace("NODES=2", "NODES=3").replace("learner,collector", "learner,a,b")
    learner = type_line(three, port, source=WORK)
    first, second = (type_line(LATER, port, source=WORK) for _ in range(2))
    learner.line("got 2")
    third = type_line(f"{LATER} finish", port, source=WORK)
    assert [each.end()[0] for each in (third, learner, first, second)] == [0, 0, 0, 0]
    begun = [shell.seen.splitlines()[0] for shell in (first, second, third)]
    assert sorted(begun) == [
        f"begins {k} collector collector.{k - 1} distributed node.{k}" for k in (1, 2, 3)
    ]


def test_a_job_that_is_not_elastic_says_how_to_let_a_further_node_in(type_line: Type) -> None:
    [port] = free_ports(LOOPBACK, 1)
    lines = [line.replace("DING_LITE_ELASTIC=1 ", "") for line in (LEARNER, COLLECTOR)]
    shells = [type_line(line, port, source=WORK) for line in lines]
    shells[0].line("got 1")
    code, said = type_line(LATER, port, source=WORK).end()
    assert code == 1
    assert "It takes further nodes if it was started with `elastic=True`" in said
    shells[0].line("got 1")


def test_a_number_that_is_taken_is_refused_with_a_way_out(type_line: Type) -> None:
    port, learner, _ = start(type_line)
    code, said = type_line(f"DING_LITE_NODE_ID=1 {LATER}", port, source=WORK).end()
    assert code == 1
    assert "There is a node 1 already. Without a number, a free one is given." in said
    code, said = type_line(f"DING_LITE_NODE_ID=7 {LATER} leave", port, source=WORK).end()
    assert code == 0
    assert said.splitlines()[-1] == "[(7, [0, 1])]"
    assert learner.line("node_joined")[1] == "7"


# -- a job that a runner has started -------------------------------------------------------

RUNNER = WORK.replace(
    'Parallel.runner(1, "star")',
    'Parallel.runner(2, os.environ["KIND"], roles=["learner", "collector"], elastic=True, '
    "ports=[int(port) for port in sys.argv[-2:]])",
)


@pytest.mark.parametrize("kind", ["star", "mesh"])
def test_a_second_runner_joins_the_job_of_a_first_one(type_line: Type, kind: str) -> None:
    port, other = free_ports(LOOPBACK, 2)
    line = f"KIND={kind} python train.py {port} {other}"
    first = type_line(line, port, source=without_argument(RUNNER))
    first.line("got 1")
    attach = f"KIND={kind} DING_LITE_ATTACH_TO=tcp://127.0.0.1:50515 python train.py"
    said = type_line(f"{attach} leave 1 2", port, source=RUNNER).end()
    assert said[0] == 0, said[1]
    assert "begins 2 collector collector.1 distributed node.2" in said[1]
    first.line("node_left 2")
    assert type_line(f"{attach} finish 1 2", port, source=RUNNER).end()[0] == 0
    code, output = first.end()
    assert code == 0
    assert output.splitlines()[-1] == "[(0, [0, 1]), (1, [0, 1])]"


def without_argument(source: str) -> str:
    return source.replace("HOW = sys.argv[1:] and sys.argv[1]", 'HOW = ""')


# -- a mesh --------------------------------------------------------------------------------

TALK = """
from ding_lite.distributed import World

def main():
    world, router = World.current(), Parallel()
    router.register("who", lambda: world.node_id)
    with Task() as task:
        said = []
        def greet(ctx):
            if world.node_id == 3:
                say("asked", *[router.call(k, "who") for k in (0, 1, 2)])
                task.emit("hello", 3)
                say("gathered", *world.group([0, 3]).all_gather(world.node_id))
            elif world.node_id == 0:
                task.wait_for("hello")
                say("gathered", *world.group([0, 3]).all_gather(world.node_id))
                task.finish = True
            else:
                task.wait_for("hello")
                say("hears", world.node_id)
            task.wait_for("the end")
        say("begins", world.node_id)
        task.use(greet).run(max_step=1)

if __name__ == "__main__":
    Parallel.runner(1, "mesh")(main)
"""


def test_a_node_that_joins_a_mesh_is_connected_to_all_and_to_those_that_join_next(
    type_line: Type,
) -> None:
    [port] = free_ports(LOOPBACK, 1)
    shells = [type_line(line, port, source=TALK) for line in (LEARNER, COLLECTOR)]
    shells[1].line("begins 1")
    shells.append(type_line(LATER, port, source=TALK))
    shells[2].line("begins 2")
    shells.append(type_line(LATER, port, source=TALK))
    assert shells[3].line("asked") == ["asked", "0", "1", "2"]
    assert shells[3].line("gathered") == ["gathered", "0", "3"]
    assert shells[0].line("gathered") == ["gathered", "0", "3"]
    assert [shell.end()[0] for shell in shells] == [0, 0, 0, 0]
    assert "hears 1" in shells[1].seen
    assert "hears 2" in shells[2].seen


# -- servers -------------------------------------------------------------------------------

TRAIN = """
from contextlib import suppress
import numpy as np
import torch
from ding_lite.distributed import ModelServer, ShardedReplay, World
from ding_lite.errors import DeadlineExceeded
from ding_lite.rl import Transitions, make_envs

SPEC = make_envs("CartPole-v1", 1).spec

def transitions(node):
    obs = np.full((4, 4), node, np.float32)
    nothing, ones = np.zeros(4, bool), np.ones(4, np.int32)
    return Transitions(
        obs=obs, action=np.zeros(4, np.int64), reward=ones.astype(np.float32), next_obs=obs,
        terminated=nothing, truncated=nothing, num_steps=ones,
    )

def main():
    world = World.current()
    server = ModelServer(name="actor")
    replay = ShardedReplay(world.group("collector"), SPEC, shard_capacity=100)
    drawn = set()

    with Task() as task:
        def learn(ctx):
            server.publish({"w": torch.full((3,), float(ctx.total_step))})
            with suppress(DeadlineExceeded):  # it learns on whether or not there is news
                if (item := task.receive("items", timeout=0.1)) is not None:
                    say("got", *item)
            ctx.train_iter = ctx.total_step + 1
            if len(replay) >= 4:
                found = {int(row[0]) for row in replay.sample(4).obs}
                if not found <= drawn:
                    drawn.update(found)
                    say("draws", *sorted(drawn))
                    ctx.finish = drawn == {1, 2}

        def collect(ctx):
            server.wait(newer_than=None)
            replay.add(transitions(world.node_id))
            task.send("items", ctx.total_step, to="learner")
            task.wait_for("the end that never comes")

        task.use(learn, filter_labels="learner").use(collect, filter_labels="collector")
        task.run()

if __name__ == "__main__":
    print(Parallel.runner(1, "star")(main))
"""


@pytest.mark.deadline(60.0)  # several processes that import PyTorch at a time
def test_a_collector_that_joins_gets_weights_and_its_shard_is_drawn_from(type_line: Type) -> None:
    [port] = free_ports(LOOPBACK, 1)
    shells = [type_line(line, port, source=TRAIN) for line in (LEARNER, COLLECTOR)]
    shells[0].line("draws 1")
    shells.append(type_line(f"{LATER}", port, source=TRAIN))
    shells[0].line("draws 1 2")
    assert [shell.end()[0] for shell in shells] == [0, 0, 0]

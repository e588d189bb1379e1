"""Nodes that join a running job and leave it again, each a process of its own."""

from __future__ import annotations

import os
import signal

from ding_lite.parallel.network.address import LOOPBACK, free_ports
from tests.procs.shells import Type

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


def test_collectors_join_a_star_and_leave_it_and_the_job_goes_on(fork_line: Type) -> None:
    learner, collector = (fork_line(line, program="elastic_work") for line in (LEARNER, COLLECTOR))
    learner.line("got 1")
    printed = fork_line(f"{LATER} leave", program="elastic_work").result().splitlines()
    assert printed[:2] == ["begins 2 collector collector.1 distributed node.2", "attached True"]
    assert printed[-1] == "[(2, [0, 1])]"
    assert learner.line("node_joined") == ["node_joined", "2", "3"]
    assert learner.line("node_left") == ["node_left", "2", "2"]
    while "got 2 2" not in learner.seen:
        learner.line()
    assert learner.seen.count("got 2 ") == 3  # each item that it has sent, and once
    assert collector.line("node_joined")[1] == "2"  # though the two are not connected
    assert collector.line("node_left")[1] == "2"

    interrupted = fork_line(f"{LATER} stay", program="elastic_work")
    os.kill(int(interrupted.line("plays")[1]), signal.SIGINT)  # Ctrl-C in its shell
    assert learner.line("node_left")[1] == "2"
    assert "\nKeyboardInterrupt\n" in interrupted.end()[1]

    killed = fork_line(f"{LATER} stay", program="elastic_work")
    killed.line("plays")
    learner.line("got 2")
    killed.kill()
    learner.line("node_lost 2")

    one = LATER.removeprefix("DING_LITE_ELASTIC=1 ")  # a program of one worker needs no more
    code, output = fork_line(f"{one} finish", program="elastic_work").end()
    assert code == 0, output
    assert "begins 3 collector collector.2 " in output  # the lost one's place is kept for a while
    assert [shell.end()[0] for shell in (learner, collector)] == [0, 0]
    assert learner.seen.splitlines()[-1] == "[(0, [0, 1])]"


def test_all_collectors_may_join_by_one_line_and_the_job_begins_with_enough(fork_line) -> None:
    three = LEARNER.replace("NODES=2", "NODES=3").replace("learner,collector", "learner,a,b")
    learner = fork_line(three, program="elastic_work")
    first, second = (fork_line(LATER, program="elastic_work") for _ in range(2))
    learner.line("got 2")
    third = fork_line(f"{LATER} finish", program="elastic_work")
    assert [each.end()[0] for each in (third, learner, first, second)] == [0, 0, 0, 0]
    begun = [shell.seen.splitlines()[0] for shell in (first, second, third)]
    assert sorted(begun) == [
        f"begins {k} collector collector.{k - 1} distributed node.{k}" for k in (1, 2, 3)
    ]


def test_a_job_that_is_not_elastic_says_how_to_let_a_further_node_in(fork_line: Type) -> None:
    lines = [line.replace("DING_LITE_ELASTIC=1 ", "") for line in (LEARNER, COLLECTOR)]
    shells = [fork_line(line, program="elastic_work") for line in lines]
    shells[0].line("got 1")
    printed = fork_line(LATER, program="elastic_work").refusal()
    assert "It takes further nodes if it was started with `elastic=True`" in printed
    shells[0].line("got 1")


# -- a job that a runner has started -------------------------------------------------------


def test_a_second_runner_joins_the_mesh_of_a_first_one(fork_line: Type) -> None:
    port, other = free_ports(LOOPBACK, 2)
    first = fork_line(f"KIND=mesh python train.py {port} {other}", program="elastic_work")
    first.line("got 1")
    attach = f"KIND=mesh DING_LITE_ATTACH_TO=tcp://127.0.0.1:{port} python train.py"
    printed = fork_line(f"{attach} leave 1 2", program="elastic_work").end()
    assert printed[0] == 0, printed[1]
    assert "begins 2 collector collector.1 distributed node.2" in printed[1]
    first.line("node_left 2")
    assert fork_line(f"{attach} finish 1 2", program="elastic_work").end()[0] == 0
    output = first.result()
    assert output.splitlines()[-1] == "[(0, [0, 1]), (1, [0, 1])]"

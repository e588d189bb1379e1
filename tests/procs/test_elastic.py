"""Nodes that join a running job and leave it again, each a process of its own."""

from __future__ import annotations

import os
import signal

import pytest

from ding_lite.parallel.network.address import LOOPBACK, free_ports
from tests.procs.programs import Program
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


def start(fork_line: Type) -> list[Program]:
    shells = [fork_line(line, program="elastic_work") for line in (LEARNER, COLLECTOR)]
    shells[0].line("got 1")
    return shells


def test_a_collector_joins_a_star_works_and_leaves_and_the_job_goes_on(fork_line: Type) -> None:
    learner, collector = start(fork_line)
    printed = fork_line(f"{LATER} leave", program="elastic_work").result()
    assert printed.splitlines()[:2] == [
        "begins 2 collector collector.1 distributed node.2",
        "attached True",
    ]
    assert printed.splitlines()[-1] == "[(2, [0, 1])]"
    assert learner.line("node_joined") == ["node_joined", "2", "3"]
    assert learner.line("node_left") == ["node_left", "2", "2"]
    while "got 2 2" not in learner.seen:
        learner.line()
    assert learner.seen.count("got 2 ") == 3  # each item that it has sent, and once
    assert collector.line("node_joined")[1] == "2"  # though the two are not connected
    assert collector.line("node_left")[1] == "2"

    one = LATER.removeprefix("DING_LITE_ELASTIC=1 ")  # a program of one worker needs no more
    ended = fork_line(f"{one} finish", program="elastic_work").end()
    assert ended[0] == 0, ended[1]
    assert ended[1].splitlines()[0] == "begins 2 collector collector.1 distributed node.2"
    assert [shell.end()[0] for shell in (learner, collector)] == [0, 0]
    assert learner.seen.splitlines()[-1] == "[(0, [0, 1])]"


def test_a_collector_that_has_joined_and_is_killed_does_not_end_the_job(fork_line: Type) -> None:
    learner, collector = start(fork_line)
    later = fork_line(f"{LATER} stay", program="elastic_work")
    later.line("plays")
    learner.line("got 2")
    later.kill()
    learner.line("node_lost 2")
    other = fork_line(f"{LATER} finish", program="elastic_work").end()
    assert other[0] == 0, other[1]
    assert "begins 3 " in other[1]  # the place of the lost one is kept for a while
    assert [shell.end()[0] for shell in (learner, collector)] == [0, 0]


def test_ctrl_c_in_the_shell_of_a_node_that_has_joined_ends_that_one_only(fork_line: Type) -> None:
    learner, collector = start(fork_line)
    later = fork_line(f"{LATER} stay", program="elastic_work")
    os.kill(int(later.line("plays")[1]), signal.SIGINT)
    learner.line("node_left 2")
    assert "\nKeyboardInterrupt\n" in later.end()[1]
    learner.line("got 1")
    assert fork_line(f"{LATER} finish", program="elastic_work").end()[0] == 0
    assert [shell.end()[0] for shell in (learner, collector)] == [0, 0]


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


@pytest.mark.parametrize("kind", ["star", "mesh"])
def test_a_second_runner_joins_the_job_of_a_first_one(fork_line: Type, kind: str) -> None:
    port, other = free_ports(LOOPBACK, 2)
    line = f"KIND={kind} python train.py {port} {other}"
    first = fork_line(line, program="elastic_work")
    first.line("got 1")
    attach = f"KIND={kind} DING_LITE_ATTACH_TO=tcp://127.0.0.1:{port} python train.py"
    printed = fork_line(f"{attach} leave 1 2", program="elastic_work").end()
    assert printed[0] == 0, printed[1]
    assert "begins 2 collector collector.1 distributed node.2" in printed[1]
    first.line("node_left 2")
    assert fork_line(f"{attach} finish 1 2", program="elastic_work").end()[0] == 0
    output = first.result()
    assert output.splitlines()[-1] == "[(0, [0, 1]), (1, [0, 1])]"


# -- servers -------------------------------------------------------------------------------


def test_a_collector_that_joins_gets_weights_and_its_shard_is_drawn_from(fork_learner_line) -> None:
    nodes = [fork_learner_line(line, program="elastic_servers") for line in (LEARNER, COLLECTOR)]
    nodes[0].line("draws 1")
    nodes.append(fork_learner_line(LATER, program="elastic_servers"))
    nodes[0].line("draws 1 2")
    assert [node.end()[0] for node in nodes] == [0, 0, 0]

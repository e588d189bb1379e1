"""A node leaves a job that goes on: by SIGTERM, as a pod that is to be moved, or by an error."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ding_lite.rl.checkpoint.save_load import load_checkpoint
from tests.procs.conftest import Fork, RunForked
from tests.procs.programs import Program
from tests.procs.shells import Type
from tests.procs.test_environment import NODE_0, NODE_1


def up(program: Program, count: int) -> dict[int, tuple[int, int]]:
    """Read on until as many nodes have begun; return the process of each, and where it begins."""
    lines = [program.line("up ") for _ in range(count)]
    return {int(node): (int(pid), int(begun)) for _, node, pid, begun in lines}


def saved_by(node: int, folder: Path) -> int:
    return int(load_checkpoint(folder / f"checkpoint-{node}").state["counter"]["values"][0])


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_sigterm_with_auto_recover_saves_and_restarts_the_node_under_its_number(
    fork_learner, folder, victim
):
    with fork_learner("counting", recover=True) as program:
        pid, begun = up(program, 2)[victim]
        os.kill(pid, signal.SIGTERM)
        pid_then, begun_then = up(program, 1)[victim]
        saved = saved_by(victim, folder)
        (folder / "enough").touch()
        output = program.result()
        assert (pid_then, begun) != (pid, begun_then)
        assert begun_then == saved > begun == 0
        assert f"fate {1 - victim} lost {victim}" in output
        assert f"fate {1 - victim} joined {victim}" in output
        assert output.splitlines()[-1] == str([0, saved] if victim else [saved, 0])
        program.leaves_nothing()


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_without_auto_recover_sigterm_ends_the_job_with_an_error_that_names_node_and_signal(
    fork_learner: Fork, folder: Path, victim: int
) -> None:
    with fork_learner("counting", recover=False) as program:
        pids = up(program, 2)
        os.kill(pids[victim][0], signal.SIGTERM)
        output = program.refusal()
        assert (
            f"NodeFailed: Node {victim} was ended by SIGTERM or SIGHUP while running `main`."
            in output
        )
        assert "In the same second" not in output
        assert saved_by(victim, folder) > 5
        assert "main has ended" not in output
        program.leaves_nothing()


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_sigterm_to_a_node_of_a_shell_ends_it_and_the_line_typed_again_brings_it_back(
    fork_learner_line: Type, victim: int
) -> None:
    nodes = [fork_learner_line(line, program="counting") for line in (NODE_0, NODE_1)]
    for node in nodes:
        up(node, 1)
    leaving, staying = nodes[victim], nodes[1 - victim]
    os.kill(leaving.pid, signal.SIGTERM)
    code, output = leaving.end()
    assert code == 143, output
    assert "main has ended" not in output
    assert saved_by(victim, leaving.folder) > 5
    assert staying.line("fate ")[1:] == [str(1 - victim), "lost", str(victim)]
    again = fork_learner_line((NODE_0, NODE_1)[victim], program="counting")
    assert staying.line("fate ")[1:] == [str(1 - victim), "joined", str(victim)]
    up(again, 1)
    for node in (staying, again):
        (node.folder / "enough").touch()
    assert [node.end()[0] for node in (staying, again)] == [0, 0]


def test_a_node_that_is_in_no_step_ends_at_once_and_is_named_as_well(fork: Fork) -> None:
    with fork("ends", main="in_no_step", recover=False) as program:
        pids = program.pids(2)
        os.kill(pids[1], signal.SIGTERM)
        output = program.refusal()
        assert f"NodeFailed: Node 1 (process {pids[1]}) was killed by SIGTERM" in output


def test_a_node_that_ends_the_job_in_its_last_step_has_ended_it(run_forked: RunForked) -> None:
    output = run_forked("ends", main="in_the_last_step", recover=True)
    assert output.splitlines()[-1] == "['ended', None]", output


def test_a_node_that_waits_for_one_that_raises_waits_for_its_restart(run_forked: RunForked) -> None:
    output = run_forked("ends", main="raises_once", recover=True)
    assert output.splitlines()[-1] == "['ended', 'ended']", output
    assert output.count("; restart ") == output.count("node 1 failed") == 1, output


def test_a_node_that_exits_with_a_code_is_lost_and_joins_again(run_forked: RunForked) -> None:
    output = run_forked("ends", main="exits_once", recover=True)
    assert output.splitlines()[-1] == "[['lost 1', 'joined 1'], []]", output

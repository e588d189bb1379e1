"""Lines that a job prints unasked; each of them names the node that it comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ding_lite.parallel.network.address import LOOPBACK, free_ports
from tests.procs.programs import Job, command_of, run_job
from tests.procs.terminals import CTRL_C, Terminal

HINT = "Ctrl-C: the run ends after this step; once more ends it at once"


def speakers(said: str) -> set[tuple[str, ...]]:
    found = re.findall(r"^[0-9:.]{12} (.*?) \| test \| (.*)$", said, re.MULTILINE)
    return set(found)


# -- log lines -----------------------------------------------------------------------------


def test_the_lines_of_nodes_of_a_launcher_name_the_node(folder: Path) -> None:
    code, said = run_job(folder, "speaking", roles=["learner", ["collector", "evaluator"]])
    assert code == 0
    assert speakers(said) == {
        ("node 0", "imported"),
        ("node 0", "not yet"),
        ("node 0", "over"),
        ("node 1", "imported"),
        ("node 0 learner", "main runs"),
        ("node 1 collector+evaluator", "main runs"),
    }


def test_a_launcher_prints_one_line_for_all_its_nodes(folder: Path) -> None:
    code, said = run_job(folder, "killed_once")
    assert code == 0
    assert re.search(
        r"launcher \| parallel.supervise.supervisor \| warning: node . .* was killed by", said
    )


def test_one_node_in_this_process_has_its_role_in_its_name(folder: Path) -> None:
    code, said = run_job(folder, "speaking", roles=["learner"])
    assert code == 0
    assert ("node 0 learner", "main runs") in speakers(said)


def test_the_lines_of_nodes_started_by_hand_name_the_node(folder, monkeypatch) -> None:
    [port] = free_ports(LOOPBACK, 1)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    ours = {"DING_LITE_NUM_NODES": "2", "DING_LITE_NODE_ID": "0", "DING_LITE_PORTS": str(port)}
    theirs = {"DING_LITE_NUM_NODES": "2", "DING_LITE_NODE_ID": "1", "DING_LITE_LABELS": "collector"}
    theirs["DING_LITE_ATTACH_TO"] = f"tcp://{LOOPBACK}:{port}"
    with (
        Job(folder, "speaking_by_hand", environ=ours) as one,
        Job(folder, "speaking_by_hand", environ=theirs) as other,
    ):
        assert speakers(one.end()[1]) == {("node 0", "main runs")}
        assert speakers(other.end()[1]) == {("node 1 collector", "main runs")}


# -- Ctrl-C --------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2])
def test_ctrl_c_at_a_terminal_is_answered_once_whatever_the_number_of_nodes(folder, nodes) -> None:
    with Terminal(folder, "", *command_of("waiting", nodes=nodes, log=False)) as terminal:
        terminal.wait_for("up ", times=nodes)
        terminal.type(CTRL_C)
        code, shown = terminal.end()
    assert code == -2
    assert shown.count("the run ends after this step") == 1
    assert f"\n{HINT}\n" in shown  # on a line of its own: the terminal has shown ^C
    for node in range(nodes):
        assert f"after {node} True" in shown


def test_a_program_with_log_lines_gets_the_message_as_one_of_them(folder: Path) -> None:
    with Terminal(folder, "", *command_of("waiting", nodes=1, log=True)) as terminal:
        terminal.wait_for("up ")
        terminal.type(CTRL_C)
        code, shown = terminal.end()
    assert code == -2
    assert "node 0 | runtime.interrupt | warning: SIGINT: the run ends after" in shown
    assert shown.count("the run ends after this step") == 1


def test_without_a_terminal_nothing_is_printed(folder: Path) -> None:
    with Job(folder, "waiting", nodes=1, log=False) as program:
        program.line("up ")
        program.process.send_signal(2)
        code, said = program.end()
    assert code == -2
    assert "the run ends" not in said

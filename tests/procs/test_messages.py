"""Lines that a job prints unasked; each of them names the node that it comes from."""

from __future__ import annotations

import re
from pathlib import Path

from tests.procs.conftest import Fork, RunForked
from tests.procs.programs import command_of
from tests.procs.shells import Type
from tests.procs.terminals import CTRL_C, Terminal
from tests.procs.test_environment import NODE_0, NODE_1

HINT = "Ctrl-C: the run ends after this step; once more ends it at once"


def speakers(output: str) -> set[tuple[str, ...]]:
    found = re.findall(r"^[0-9:.]{12} (.*?) \| test \| (.*)$", output, re.MULTILINE)
    return set(found)


# -- log lines -----------------------------------------------------------------------------


def test_the_lines_of_nodes_of_a_launcher_name_the_node(run_forked: RunForked) -> None:
    output = run_forked("speaking", roles=["learner", ["collector", "evaluator"]])
    assert speakers(output) == {
        ("node 0", "imported"),
        ("node 0", "not yet"),
        ("node 0", "over"),
        ("node 1", "imported"),
        ("node 0 learner", "main runs"),
        ("node 1 collector+evaluator", "main runs"),
    }
    output = run_forked("speaking", roles=["learner"])  # one node runs in this process
    assert ("node 0 learner", "main runs") in speakers(output)


def test_the_lines_of_nodes_started_by_hand_name_the_node(fork_line: Type) -> None:
    nodes = [fork_line(line, program="speaking") for line in (NODE_0, NODE_1)]
    for node, name in zip(nodes, ("node 0 learner", "node 1 collector"), strict=True):
        assert (name, "main runs") in speakers(node.end()[1])


# -- Ctrl-C --------------------------------------------------------------------------------


def test_ctrl_c_at_a_terminal_is_answered_once_whatever_the_number_of_nodes(folder: Path) -> None:
    with Terminal(folder, "", *command_of("waiting", nodes=2, log=False)) as terminal:
        terminal.wait_for("up ", times=2)
        terminal.type(CTRL_C)
        code, shown = terminal.end()
    assert code == -2
    assert shown.count("the run ends after this step") == 1
    assert f"\n{HINT}\n" in shown  # on a line of its own: the terminal has shown ^C
    assert "after 0 True" in shown
    assert "after 1 True" in shown


def test_a_program_with_log_lines_gets_the_message_as_one_of_them(folder: Path) -> None:
    with Terminal(folder, "", *command_of("waiting", nodes=1, log=True)) as terminal:
        terminal.wait_for("up ")
        terminal.type(CTRL_C)
        code, shown = terminal.end()
    assert code == -2
    assert "node 0 | runtime.interrupt | warning: SIGINT: the run ends after" in shown
    assert shown.count("the run ends after this step") == 1


def test_without_a_terminal_nothing_is_printed(fork: Fork) -> None:
    with fork("waiting", nodes=1, log=False) as program:
        program.line("up ")
        program.process.send_signal(2)
        code, output = program.end()
    assert code == -2
    assert "the run ends" not in output

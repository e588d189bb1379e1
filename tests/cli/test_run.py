"""`ding-lite run`: programs that end well, fail, are interrupted, and cannot be found."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ding_lite.cli.run import _node_here, summary
from ding_lite.parallel.network.address import free_ports
from tests.cli.calls import MODULE, Typed, call, environment
from tests.parallel.launch.environs import TORCHRUN

pytestmark = pytest.mark.procs
BY_HAND = {"DING_LITE_NUM_NODES": "3", "DING_LITE_NODE_ID": "1"}
SUMMARY = r"ding-lite: {} finished in \d+\.\d s; main returned {}\n"


def assert_summary(ended: tuple[int | None, str, str], nodes: str, returned: str) -> None:
    code, out, error = ended
    assert (code, error) == (0, "")
    assert re.fullmatch(SUMMARY.format(nodes, re.escape(returned)), out), out


# -- programs that end well ----------------------------------------------------------------


def test_a_module_runs_in_this_process_unless_told_otherwise(typed: Typed, folder: Path) -> None:
    ended = typed(folder, "run", "program:main")
    assert_summary(ended, "1 node", "['node.0', 'standalone'] on node 0")


def test_roles_say_how_many_nodes_there_are(folder: Path) -> None:
    words = ["run", "program.py:main", "--roles", "learner+evaluator,collector*2"]
    code, out, error = call(folder, *words, "--topology", "alone")
    assert (code, error) == (0, "")
    for labels in (
        "['distributed', 'evaluator', 'evaluator.0', 'learner', 'learner.0', 'node.0'] on node 0",
        "['collector', 'collector.0', 'distributed', 'node.1'] on node 1",
        "['collector', 'collector.1', 'distributed', 'node.2'] on node 2\n",
    ):
        assert labels in out


def test_roles_and_edges_of_the_environment_count_as_well(folder: Path) -> None:
    given: Any = {"DING_LITE_ROLES": "a,b,c", "DING_LITE_TOPOLOGY": "2-1,0-1"}
    code, out, error = call(folder, "run", "program:neighbours", **given)
    assert (code, error) == (0, "")
    for node, role in enumerate("abc"):
        assert f"(['{role}', '{role}.0', 'distributed', 'node.{node}'], 1) on node {node}" in out


@pytest.mark.parametrize("launcher", [TORCHRUN, BY_HAND])
def test_a_node_that_is_started_alone_describes_itself(typed, folder, launcher) -> None:
    environ: Any = {**launcher, "DING_LITE_TOPOLOGY": "alone"}
    returned = "['distributed', 'node.1']"
    assert_summary(typed(folder, "run", "program:main", **environ), "node 1 of 3", returned)


def test_a_node_that_attaches_is_not_called_node_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DING_LITE_ATTACH_TO", "tcp://127.0.0.1:50515")
    monkeypatch.setenv("DING_LITE_ELASTIC", "1")
    assert _node_here() == "this node"
    monkeypatch.setenv("DING_LITE_NODE_ID", "4")
    assert _node_here() == "node 4"


def test_a_file_runs_from_anywhere_over_tcp(folder, tmp_path_factory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (folder / "helper.py").write_text("VALUE = 5\n")
    (folder / "my-train.py").write_text("def main():\n    import helper\n    return helper.VALUE\n")
    words = ["run", f"{folder / 'my-train.py'}:main", "--nodes", "2"]
    words += ["--topology", "star", "--protocol", "tcp"]
    ended = call(elsewhere, *words, XDG_STATE_HOME=str(elsewhere))
    assert_summary(ended, "2 nodes", "5 on node 0, 5 on node 1")


def test_the_script_that_pip_installs_can_start_nodes_which_find_their_arguments(folder) -> None:
    script = folder / "ding-lite"
    script.write_text(
        "import sys\nfrom ding_lite.cli.main import main\n"
        "if __name__ == '__main__':\n    sys.exit(main())\n"
    )
    words = ["run", "program:arguments", "--nodes", "2", "--", "--seed", "3", "--", "x"]
    ended = call(folder, *words, command=(str(script),))
    found = "['--seed', '3', '--', 'x']"
    assert_summary(ended, "2 nodes", f"{found} on node 0, {found} on node 1")


def test_arguments_are_those_of_main(typed: Typed, folder: Path) -> None:
    ended = typed(folder, "run", "program:take", "--", "a")
    assert_summary(ended, "1 node", "('a', 'usual') on node 0")


def test_edges_define_the_connections_and_labels_go_to_all_nodes(folder: Path) -> None:
    words = ["--nodes", "3", "--topology", "2-1,0-1", "--labels", "gpu,fast"]
    code, out, error = call(folder, "run", "program:neighbours", *words)
    assert (code, error) == (0, "")
    for node in range(3):  # node 1 is connected to both 0 and 2
        assert f"(['distributed', 'fast', 'gpu', 'node.{node}'], 1) on node {node}" in out


def test_nodes_listen_where_the_command_line_says(folder: Path) -> None:
    code, out, error = call(folder, "keygen", "job.key")
    assert code == 0
    ports = ",".join(map(str, free_ports("127.0.0.2", 2)))
    words = ["--nodes", "2", "--protocol", "tcp", "--address", "127.0.0.2", "--ports", ports]
    code, out, error = call(
        folder, "run", "program:place", *words, "--key-file", "job.key", XDG_STATE_HOME="/nowhere"
    )
    assert (code, error) == (0, "")
    assert f"'tcp://127.0.0.2:{ports.split(',')[0]}' on node 0" in out


def test_a_program_that_exits_chooses_the_exit_code(typed: Typed, folder: Path) -> None:
    assert typed(folder, "run", "program:leave") == (3, "", "")


def test_a_killed_node_is_started_again_if_that_is_asked_for(folder: Path) -> None:
    words = ["run", "program:die_once", "--nodes", "2", "--topology", "alone"]
    code, _, error = call(folder, *words, "--", "one")
    assert code == 1
    assert "was killed by SIGABRT" in error

    code, out, error = call(folder, *words, "--auto-recover", "--max-retries", "2", "--", "two")
    assert code == 0
    assert "'alive' on node 0, 'alive' on node 1" in out
    assert "restart 1 of 2" in error


# -- programs that fail --------------------------------------------------------------------


def test_an_error_on_a_node_is_shown_with_its_traceback_and_not_ours(folder: Path) -> None:
    code, out, error = call(folder, "run", "program:fail", "--nodes", "2", "--", "1")
    assert (code, out) == (1, "")
    assert "ding-lite run: Node 1 failed while running `main`: ValueError: " in error
    assert error.endswith("ValueError: too hot\n")
    assert 'raise ValueError("too hot")' in error
    assert "ding_lite/cli" not in error


def test_an_error_in_this_process_is_shown_from_the_program_on(typed: Typed, folder: Path) -> None:
    code, out, error = typed(folder, "run", "program.py:fail")
    assert (code, out) == (1, "")
    first, second, *_, last = error.splitlines()
    assert first == "Traceback (most recent call last):"
    assert str(folder / "program.py") in second
    assert last == "ValueError: too hot"


def test_a_config_error_of_the_program_is_no_wrong_usage(typed: Typed, folder: Path) -> None:
    code, _, error = typed(folder, "run", "program:misconfigure")
    assert code == 1
    assert f'{folder / "program.py"}", line' in error
    assert "`lr` is -1.0; it must be above 0." in error


@pytest.mark.parametrize(
    ("source", "ended"),
    [("def main(:\n", "SyntaxError"), ("1 / 0\n", "ZeroDivisionError: division by zero")],
)
def test_a_program_that_cannot_be_imported_shows_why(typed, folder, source, ended) -> None:
    (folder / "broken.py").write_text(source)
    for program in ("broken:main", "broken.py:main"):
        code, _, error = typed(folder, "run", program)
        assert code == 1
        assert ended in error
        assert f'{folder / "broken.py"}", line 1' in error
        assert "ding_lite/cli" not in error


@pytest.mark.parametrize("nodes", [1, 2])
def test_ctrl_c_ends_with_130(folder: Path, nodes: int) -> None:
    with subprocess.Popen(
        [sys.executable, *MODULE, "run", "program:wait", "--nodes", str(nodes)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            for _ in range(nodes):
                assert process.stdout.readline() == "up\n"
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=15)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert "ding-lite run: interrupted" in error  # a thread may be logging at the same time
    assert "Traceback" not in error


# -- wrong usage ---------------------------------------------------------------------------


def test_a_wrong_environment_is_explained_without_a_traceback(typed: Typed, folder: Path) -> None:
    code, out, error = typed(folder, "run", "program:main", DING_LITE_TOPOLOGY="ring")
    assert (code, out) == (2, "")
    assert error.startswith("ding-lite run: DING_LITE_TOPOLOGY is 'ring'; expected is one of")


def test_a_key_that_cannot_be_made_is_one_sentence_before_nodes_start(typed, folder) -> None:
    words = ["run", "program:main", "--nodes", "2", "--protocol", "tcp"]
    code, out, error = typed(folder, *words, XDG_STATE_HOME=str(folder / "program.py"))
    assert (code, out) == (2, "")
    assert error.startswith("ding-lite run: The directory ")
    assert error.endswith("Set XDG_STATE_HOME to a directory of yours, or give a `key_file`.\n")
    assert error.count("\n") == 1


# -- the summary ---------------------------------------------------------------------------


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError


def test_a_summary_is_one_short_line_whatever_was_returned() -> None:
    results = [list(range(10_000)), "x" * 10_000, "a\nb", Unspeakable(), *range(20)]
    line = summary(results, seconds=1.0)
    assert "\n" not in line
    assert len(line) < 500
    assert line.endswith("3 on node 7, and more on 16 other nodes")
    assert summary(results[:9], seconds=1.0).endswith(", and more on 1 other node")

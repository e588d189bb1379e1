"""`Parallel.runner` in programs of their own: how they are started, ended, killed, and refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ding_lite.errors import ConfigError, NodeFailed
from ding_lite.parallel import Parallel
from ding_lite.parallel.launch import launch
from tests.procs import mains
from tests.procs.conftest import Fork
from tests.procs.programs import PREAMBLE, run, segments

MAIN = """
def main(word="done"):
    with Task() as task:
        return task.router.node_id, word, "distributed" in task.labels
"""
GUARDED = """
if __name__ == "__main__":
    print(Parallel.runner(2)(main, word="here"))
"""
RESULT = "[(0, 'here', True), (1, 'here', True)]\n"

STEPS = """
def main():
    node = Parallel().node_id
    def step(ctx):
        say("up", node, os.getpid())
        task.wait_for("the end")
        say("after", node, ctx.finish)
    with Task() as task:
        task.use(step).run()
"""
STUCK = """
import numpy as np

def main():
    with Task() as task:
        def step(ctx):
            ctx.state_dict = np.full(100_000, ctx.total_step)
            if ctx.total_step == 1:
                task.wait_parallel_ctx()
                say("up", task.router.node_id, os.getpid())
            if ctx.total_step == 5:
                say("stuck")
                threading.Event().wait()
        task.use(step).run()
"""
STUBBORN = STUCK.replace(
    "threading.Event()",
    """signal.pthread_sigmask(
                    signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
                threading.Event()""",
)
TWO = """
if __name__ == "__main__":
    ding_lite.log.configure()
    Parallel.runner(2)(main)
"""
TWO_ALONE = """
if __name__ == "__main__":
    ding_lite.log.configure()
    Parallel.runner(2, "alone")(main)
"""


# -- how a program is started --------------------------------------------------------------


PYTEST = ("-m", "pytest", "-s", "-q", "-p", "no:cacheprovider")
TESTED = PREAMBLE + MAIN + "def test_it():\n    " + GUARDED.split("\n")[2].lstrip()


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "package.train"),
        ("-m", "pdb", "-c", "continue", "program.py"),
        (*PYTEST, "test_it.py"),
        ("-i",),
    ],
    ids=["python -m", "pdb", "pytest", "interactive"],
)
def test_a_main_in_a_file_runs_however_python_is_started(folder: Path, command) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "train.py").write_text("from program import *\n" + MAIN + GUARDED)
    (folder / "test_it.py").write_text(TESTED)
    typed = f"from program import *\n{GUARDED.lstrip()}\n"
    code, output = run(folder, MAIN + GUARDED, *command, stdin=typed if len(command) == 1 else "")
    assert code == 0, output
    assert RESULT in output


def test_the_interpreters_options_reach_the_nodes(folder: Path) -> None:
    source = (
        "import sys\ndef main():\n    return sys.flags.optimize, sys.flags.dev_mode\n" + GUARDED
    )
    code, output = run(folder, source.replace(', word="here"', ""), "-O", "-X", "dev", "program.py")
    assert (code, output) == (0, "[(1, True), (1, True)]\n")


NOTEBOOK = """
import sys, types
kernel, cell = sys.modules["__main__"], types.ModuleType("__main__")
cell.__builtins__ = __builtins__
sys.modules["__main__"] = cell
exec(open("cell.py").read(), vars(cell))
"""
"""Runs `__main__` as a module without a file, as the kernel of a notebook does."""


def test_a_main_from_a_file_and_one_worker_both_run_in_a_notebook(fork: Fork, folder: Path) -> None:
    (folder / "train.py").write_text(PREAMBLE + MAIN)
    source = "from ding_lite import Parallel\nfrom train import main\n" + GUARDED
    source += "    def own():\n        return 'own'\n    print(Parallel.runner(1)(own))\n"
    (folder / "cell.py").write_text(source)
    with fork(source=NOTEBOOK) as program:
        assert program.end() == (0, f"{RESULT}['own']\n")


def test_a_file_of_tests_that_nodes_cannot_import_is_refused(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "test_it.py").write_text(TESTED)
    # The script, other than `python -m pytest`, leaves the folder out of `sys.path`.
    pytest_script = (
        "import sys; del sys.path[0]; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    )
    options = [*PYTEST[2:], "--import-mode=importlib", "deep/test_it.py"]
    code, output = run(folder, "", "-c", pytest_script, *options)
    assert code == 1
    assert "cannot import the module of `main`" in output
    assert "(PYTHONPATH, or `pythonpath` in the settings of pytest)" in output


IN_NO_FILE = "ConfigError: `main` was defined in an interactive session or a notebook"
INLINE = f"from program import *\n{MAIN}{GUARDED}"
OTHERWISE = 'if __name__ == "__main__":\n    def main(word=""): ...\n'
FAILS = 'if __name__ != "__main__":\n    raise LookupError("twice")\n'


NOT_IN_PROGRAM = "`main` is not found under that name in the program, which is"


@pytest.mark.parametrize(
    ("source", "command", "reported"),
    [
        ("", ("-",), [IN_NO_FILE]),
        (
            MAIN + GUARDED,
            ("-m", "cProfile", "-o", os.devnull, "program.py"),
            [NOT_IN_PROGRAM, "cProfile.py here"],
        ),
        ("", ("-m", "package"), ["Move it to another module"]),
        (NOTEBOOK, (), [IN_NO_FILE, "`%%writefile train.py` on top of its cell saves it"]),
        (
            MAIN + "Parallel.runner(2)(main)\n",
            (),
            ["ConfigError: The program", 'Put it below `if __name__ == "__main__":`.'],
        ),
        (OTHERWISE + GUARDED, (), ["cannot find `main` in it"]),
        (FAILS + MAIN + GUARDED, (), ["failed while importing `main`: LookupError: twice"]),
    ],
    ids=["stdin", "cProfile", "package", "notebook", "no guard", "other main", "failing import"],
)
def test_a_main_that_nodes_cannot_import_is_refused(
    fork: Fork, folder: Path, source: str, command: tuple[str, ...], reported: list[str]
) -> None:
    (folder / "cell.py").write_text(PREAMBLE + MAIN + GUARDED)
    (folder / "package").mkdir()
    (folder / "package" / "__main__.py").write_text(INLINE)
    if command:
        code, output = run(folder, source, *command, stdin=INLINE if command == ("-",) else "")
    else:
        with fork(source=source) as program:
            code, output = program.end()
    assert code == 1
    assert all(part in output for part in reported), output


def within_a_function() -> Any:
    def main() -> None: ...

    return main


def made_by_exec() -> Any:
    namespace: dict[str, Any] = {}
    exec("def main(): ...", namespace)
    return namespace["main"]


@pytest.mark.parametrize(
    ("main", "why"),
    [
        (lambda: None, "is a lambda"),
        (within_a_function(), "is defined within a function"),
        (made_by_exec(), "was made by `exec` and belongs to no module"),
    ],
)
def test_a_main_that_no_node_could_import_is_refused(main: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Parallel.runner(2)(main)
    with pytest.raises(TypeError, match=r"^Parallel\.runner\(\.\.\.\)\(\) missing .* 'main'"):
        Parallel.runner(2)()


def test_a_runner_within_a_runner_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "slow_to_import", tuple)
    with pytest.raises(NodeFailed, match="A node cannot have nodes of its own"):
        Parallel.runner(2, "alone")(mains.run_again)
    with pytest.raises(ConfigError, match="A node cannot have nodes of its own"):
        Parallel.runner(1)(mains.run_again)


# -- preloading ----------------------------------------------------------------------------


def test_nodes_do_not_import_again_what_the_fork_server_has_imported(folder: Path) -> None:
    (folder / "gymnasium.py").write_text("print('once', flush=True)\n")
    code, output = run(folder, "import gymnasium\n" + MAIN + GUARDED)
    assert (code, output) == (0, f"once\nonce\n{RESULT}")  # in the launcher and in the fork server


def test_a_late_node_is_named_however_large_the_arguments_of_main_are(fork: Fork) -> None:
    source = """
import multiprocessing

def main(data): ...

if __name__ == "__main__":
    Parallel.runner(3, "alone", startup_timeout=3.0)(main, bytes(4_000_000))
elif multiprocessing.current_process().node_id == 1:
    threading.Event().wait()  # a program that hangs where a node imports it
"""
    with fork(source=source) as program:
        output = program.refusal()
    assert "DeadlineExceeded: Not all nodes were ready within 3 s: node 1 was still" in output
    assert "importing `main`. Ready were: 0, 2." in output


def test_a_module_that_starts_threads_is_not_preloaded(folder: Path) -> None:
    thread = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    (folder / "gymnasium.py").write_text(f"import os, threading\n{thread}\nos.write(1, b'on\\n')\n")
    code, output = run(folder, "import gymnasium\n" + MAIN + GUARDED)
    assert (code, output) == (0, "on\n" * 4 + RESULT)  # launcher, fork server, both nodes


# -- how a program ends --------------------------------------------------------------------


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, -2), (signal.SIGHUP, 143)])
def test_ctrl_c_or_a_closed_terminal_lets_all_nodes_end_their_step(
    fork: Fork, signum: signal.Signals, code: int
) -> None:
    obeys = "signal.signal(signal.SIGHUP, signal.SIG_DFL)"  # also if `nohup` started the tests
    with fork(source=obeys + STEPS + TWO_ALONE) as program:
        pids = program.pids(2)
        os.kill(program.pid, signum)
        assert program.end()[0] == code
        assert "after 0 True" in program.seen
        assert "after 1 True" in program.seen
        program.leaves_nothing(*pids.values())


def test_a_second_signal_ends_all_at_once(fork: Fork) -> None:
    with fork(source=STUCK + TWO) as program:
        pids = program.pids(2)
        os.kill(program.pid, signal.SIGINT)
        program.line("SIGINT: the run ends after this step")
        os.kill(program.pid, signal.SIGTERM)
        assert program.end()[0] == 143
        program.leaves_nothing(*pids.values())


def test_a_signal_ends_a_job_with_a_stopped_node_which_is_named(fork: Fork) -> None:
    soon = "from ding_lite.parallel.supervise import supervisor\nsupervisor.EXIT_GRACE_S = 0.2\n"
    with fork(source=soon + STEPS + TWO_ALONE) as program:
        pids = program.pids(2)
        os.kill(pids[1], signal.SIGSTOP)
        os.kill(program.pid, signal.SIGTERM)
        assert f"Node 1 (process {pids[1]}) was stopped by SIGSTOP" in program.refusal()
        program.leaves_nothing(*pids.values())


def test_a_signal_to_the_launcher_and_to_its_group_is_one(fork: Fork) -> None:
    with fork(source=STEPS + TWO_ALONE) as program:
        program.pids(2)
        os.kill(program.pid, signal.SIGTERM)
        os.killpg(program.pid, signal.SIGTERM)
        assert program.end()[0] == 143
        assert "after 0 True" in program.seen
        assert "after 1 True" in program.seen


def test_a_node_that_swallows_a_signal_during_the_start_is_killed(fork: Fork) -> None:
    source = """
if __name__ != '__main__':
    say('up', 0, os.getpid())
    while True:
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass
"""
    with fork(source=source + MAIN + TWO_ALONE) as program:
        pids = program.pids(2)
        os.kill(program.pid, signal.SIGINT)
        assert program.end()[0] == -2
        program.leaves_nothing(*pids.values())


def test_a_signal_while_a_node_waits_for_its_restart_ends_all(fork: Fork) -> None:
    source = STEPS + TWO_ALONE.replace('"alone"', '"alone", auto_recover=True')
    with fork(source=source) as program:
        pids = program.pids(2)
        os.kill(pids[1], signal.SIGKILL)
        reported = " ".join(program.line("restart 1 of 3"))  # the launcher, for all its nodes
        assert "launcher | parallel.supervise.supervisor | warning: node 1 (proc" in reported
        os.kill(program.pid, signal.SIGINT)
        assert program.end()[0] == -2
        assert "after 0 True" in program.seen
        program.leaves_nothing(*pids.values())


def test_a_launcher_that_is_killed_leaves_nothing(fork: Fork) -> None:
    with fork(source=STEPS + TWO_ALONE) as program:
        pids = program.pids(2)
        fork_server = fork_server_of(pids[0])
        program.process.kill()
        program.leaves_nothing(*pids.values(), fork_server)
        program.end()
        assert "after 0 True" in program.seen  # they ended in order even so


def fork_server_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_stubborn_nodes_of_a_killed_launcher_are_killed(fork: Fork) -> None:
    with fork(source=STUBBORN + TWO) as program:
        pids = program.pids(2)
        assert len(segments(pids.values())) == 2
        program.line("stuck")
        program.process.kill()
        program.end()
        program.leaves_nothing(*pids.values())


def test_nodes_end_when_launcher_and_fork_server_are_killed(fork: Fork) -> None:
    with fork(source=STUBBORN + TWO) as program:
        pids = program.pids(2)
        fork_server = fork_server_of(pids[0])
        os.kill(fork_server, signal.SIGSTOP)  # so that it cannot do its duty in between
        program.process.kill()
        os.kill(fork_server, signal.SIGKILL)
        program.end()
        program.leaves_nothing(*pids.values())


# Too few for the launcher, for the fork server, for the sockets of nodes, and for connections.
@pytest.mark.parametrize("num_files", [10, 14, 26, 28])
def test_too_few_open_files_are_an_error_that_names_the_limit(folder: Path, num_files: int) -> None:
    few = f"    resource.setrlimit(resource.RLIMIT_NOFILE, ({num_files}, {num_files}))\n"
    main = 'if __name__ == "__main__":\n'
    code, output = run(folder, "import resource\n" + MAIN + GUARDED.replace(main, main + few))
    assert code == 1
    assert f"A process may open {num_files} files here; `ulimit -n 4096` raises" in output


def test_a_failure_is_shown_from_the_program_on(fork: Fork) -> None:
    source = "def main():\n    fail()\ndef fail():\n    raise LookupError\n" + TWO_ALONE
    with fork(source=source) as program:
        output = program.refusal()
    reported = output[output.index("NodeFailed: Node ") :]
    trace = reported[reported.index("Traceback (most recent call last):") :].splitlines()
    assert [line.rpartition(", in ")[2] for line in trace if ", in " in line] == ["main", "fail"]
    assert "parallel/supervise/node_process.py" not in reported

"""Nodes that Ray places: where they run, what they return, and what happens when they die."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import secrets
import signal
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ding_lite.parallel.network.security import make_key
from tests.procs.programs import PROGRAMS, Program, run, short_folder, wait_until_gone
from tests.programs.given import begin_incarnation

pytestmark = [
    pytest.mark.optional,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="needs the extra `ray`: Ray is optional"
    ),
]

# -- what it does --------------------------------------------------------------------------

MACHINES = """
import pathlib, ray
from contextlib import suppress
from ding_lite import middleware as mw
from ding_lite.errors import DeadlineExceeded

ON_A, ON_B = {"resources": {"a": 1}}, {"resources": {"b": 1}}

def machines(*names):
    from ray.cluster_utils import Cluster
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "resources": {"a": 9}})
    return cluster, *[cluster.add_node(num_cpus=4, resources={name: 9}) for name in names]
"""
TWO_MACHINES = (
    MACHINES
    + """
if __name__ == "__main__":
    cluster, _ = machines("b")
    say("listens", cluster.address)
    signal.sigwait({signal.SIGTERM})
    cluster.shutdown()
"""
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs show all lines of all nodes, and start a Ray of their own."""
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def _two_machines() -> Iterator[tuple[Program, dict[str, str]]]:
    """Keep a Ray of two machines for many tests: to start one takes seconds."""
    environ = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        with Program(folder, TWO_MACHINES) as program:
            environ["RAY_ADDRESS"] = program.line("listens ")[-1]
            yield program, environ
            program.process.send_signal(signal.SIGTERM)
            program.end()


@pytest.fixture
def cluster(
    _two_machines: tuple[Program, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> Program:
    """Let programs use a Ray of two machines: one has the resource `a`, the other has `b`."""
    program, environ = _two_machines
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return program


def text_of(name: str, **given: Any) -> str:
    """Return a program of `tests/programs`, with what it is given, as one file by itself."""
    text = (PROGRAMS / f"{name}.py").read_text()
    written = f"from types import SimpleNamespace\n\ngiven = SimpleNamespace(**{given!r})\n\n"
    written += inspect.getsource(begin_incarnation)
    before, after = re.split("from tests.programs.given import .*\n", text)
    return before + written + after


def pids_of(program: Program, count: int) -> dict[int, int]:
    """Read as many lines `(...) up <node> <pid>`, among whatever Ray says."""
    found: dict[int, int] = {}
    while len(found) < count:
        words = program.line(" up ")
        if "up" in words[:-2] and words[-2].isdigit():
            found[int(words[-2])] = int(words[-1])
    return found


def results_of(output: str) -> list[Any]:
    """Find what the program has printed of results; what nodes print may come later."""
    # Ray begins its own lines with the time in brackets.
    [line] = re.findall(r"^\[(?!\d{4}-).*", output, re.MULTILINE)
    return list(literal_eval(line))


ROLES = (
    MACHINES
    + """
def main(factor):
    router = Parallel().wait_ready() or Parallel()
    where = ray.get_runtime_context().get_assigned_resources()
    return sorted(router.labels)[0], factor * router.node_id, sorted(set(where) & {"a", "b"})

if __name__ == "__main__":
    runner = Parallel.runner(
        3, "star", roles=["learner", "collector", "collector"], engine="ray",
        resources={"learner": ON_A, "collector": ON_B},
    )
    print(runner(main, 10))
"""
)


def test_nodes_are_placed_by_their_labels_and_results_come_back_by_node(folder, cluster) -> None:
    code, output = run(folder, ROLES)
    assert code == 0, output
    assert results_of(output) == [
        ("distributed", 0, ["a"]),
        ("collector", 10, ["b"]),
        ("collector", 20, ["b"]),
    ]


TALK = (
    MACHINES
    + """
def main():
    node, heard = Parallel().node_id, {}
    with Task() as task:
        def talk(ctx):
            task.emit("n", node, os.getpid(), ctx.total_step, only_remote=True)
            with suppress(DeadlineExceeded):
                task.wait_for("nothing", timeout=0.01)
            if node == 0 and pathlib.Path("FOLDER/go").exists():
                ctx.finish = True
        task.on("n", lambda peer, pid, number: heard.setdefault((peer, pid), []).append(number))
        say("up", node, os.getpid())
        task.use(talk).run()
    whole = all(numbers == [*range(numbers[0], numbers[0] + len(numbers))]
                for numbers in heard.values())
    return whole, len(heard)
"""
)
HERE = """
if __name__ == "__main__":
    print(Parallel.runner(3, "star", engine="ray", auto_recover=True)(main))
"""


def test_killed_nodes_are_restarted_and_their_peers_find_them(folder, cluster) -> None:
    source = (TALK + HERE).replace("FOLDER", str(folder))
    with Program(folder, source) as program:
        pids = pids_of(program, 3)
        for victim in (0, 1):
            os.kill(pids[victim], signal.SIGKILL)
            assert pids_of(program, 1)[victim] != pids[victim]
        (folder / "go").touch()
        code, output = program.end()
    assert code == 0, output
    results = results_of(output)
    assert [whole for whole, _ in results] == [True, True, True]
    received = [3, 1, 2]  # by the restarted hub, of 1 and 2; by them, of the hub
    assert [num_heard for _, num_heard in results] == received


LEAVES = """
from ding_lite.parallel.observe.job_discovery import running_jobs

def programs():
    here = [(job.program, node) for job in running_jobs() for node in job.nodes if node.metrics]
    return [program for program, node in here if node.metrics.pid == os.getpid()]

def main():
    if Parallel().node_id == 1:
        while not programs():
            SYSTEM_CLOCK.sleep(0.05)
        sys.exit(programs()[0])
    with Task() as task:
        task.wait_for("what never comes")

if __name__ == "__main__":
    Parallel.runner(2, "star", engine="ray")(main)
"""


def test_an_exit_of_main_is_reported_with_its_line_and_top_shows_the_program(
    folder: Path, cluster: Program
) -> None:
    code, output = run(folder, "from ding_lite.clock import SYSTEM_CLOCK\n" + LEAVES)
    assert code == 1, output
    expected = (
        "Node 1 failed while running `main`: RuntimeError: `main` has called `sys.exit('{}')`"
    )
    assert expected.format("program.py") in output, output
    assert re.search(r'program\.py", line \d+, in main\n +sys\.exit\(', output), output


# -- how it is ended -----------------------------------------------------------------------

ENDING = (
    MACHINES
    + """
def main():
    node = Parallel().node_id
    with Task() as task:
        def step(ctx):
            if ctx.total_step == 1:
                say("up", node, os.getpid())
                if STUCK:
                    threading.Event().wait()
            with suppress(DeadlineExceeded):
                task.wait_for("nothing", timeout=0.01)
        task.use(mw.checkpoint({"task": task}, f"FOLDER/checkpoint-{node}", every=10**9))
        task.use(step).run()
    pathlib.Path(f"FOLDER/ended-{node}").touch()

if __name__ == "__main__":
    ding_lite.log.configure()
    Parallel.runner(2, engine="ray", auto_recover=True)(main)
"""
)


def ends_its_step_and_saves(folder: Path, signum: signal.Signals, code: int) -> None:
    source = ENDING.replace("FOLDER", str(folder)).replace("STUCK", "False")
    with Program(folder, source) as program:
        pids = pids_of(program, 2)
        os.killpg(program.pid, signum)  # as a terminal does: to the whole group
        assert program.end()[0] == code, program.seen
        for node in (0, 1):
            assert (folder / f"ended-{node}").exists()
            assert (folder / f"checkpoint-{node}" / "manifest.json").exists()
        program.leaves_nothing(*pids.values())


def test_ctrl_c_lets_all_nodes_end_their_step_and_save(folder: Path) -> None:
    ends_its_step_and_saves(folder, signal.SIGINT, -2)


def test_sigterm_lets_all_nodes_end_their_step_and_save(folder: Path, cluster: Program) -> None:
    ends_its_step_and_saves(folder, signal.SIGTERM, 143)
    cluster.leaves_nothing()


def test_a_second_signal_ends_all_at_once(folder: Path, cluster: Program) -> None:
    source = ENDING.replace("FOLDER", str(folder)).replace("STUCK", "True")
    with Program(folder, source) as program:
        pids = pids_of(program, 2)
        os.kill(program.pid, signal.SIGINT)
        program.line("SIGINT: the run ends after this step")
        os.kill(program.pid, signal.SIGTERM)
        assert program.end()[0] == 143, program.seen
        cluster.leaves_nothing(*pids.values())


def test_a_program_that_is_killed_leaves_no_nodes(folder: Path, cluster: Program) -> None:
    source = ENDING.replace("FOLDER", str(folder)).replace("STUCK", "True")
    with Program(folder, source) as program:
        pids = pids_of(program, 2)
        os.kill(program.pid, signal.SIGKILL)
        wait_until_gone(*pids.values())


# -- training ------------------------------------------------------------------------------


def test_learners_on_two_machines_are_one_group(folder: Path, cluster: Program) -> None:
    places = {"node.[02]": {"resources": {"a": 1}}, "node.[13]": {"resources": {"b": 1}}}
    runner = {"engine": "ray", "resources": places}
    code, output = run(
        folder, text_of("apex", policy="DQN", batch_size=256, ends_at=100, runner=runner)
    )
    assert code == 0, output
    first, second, *collectors = results_of(output)
    # The other learner may have begun an update more, which it gives up as the first one has left.
    assert first[0] == 100 <= second[0] + 1
    assert first[1] == second[1]
    assert first[2] == 100 * 256
    assert [trained for trained, *_ in collectors] == [None, None]


THREE_MACHINES = """
def lose_a_machine(cluster, machines):
    lost = open("FOLDER/lose").read()
    [machine] = [machine for machine in machines if machine.node_id == lost]
    cluster.remove_node(machine, allow_graceful=False)

if __name__ == "__main__":
    cluster, *others = machines("b", "b")
    ray.init(address=cluster.address)
    threading.Thread(target=lose_a_machine, args=(cluster, others), daemon=True).start()
    runner = Parallel.runner(
        3, TOPOLOGY, roles=ROLES, engine="ray", auto_recover=True,
        resources={"node.[01]": ON_A, "node.2": ON_B},
    )
    runner(main)
    print("ended")
    ray.shutdown()
    cluster.shutdown()
"""
SAY_WHERE = """
begin = begin_incarnation

def begin_incarnation(node):
    say("placed", node, ray.get_runtime_context().get_node_id())
    return begin(node)
"""


@pytest.mark.slow
@pytest.mark.deadline(300)
def test_apex_solves_though_an_actor_is_killed_and_then_a_machine(folder, monkeypatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.mkfifo(folder / "lose")
    # It may not end before node 2, on the machine that is lost, has taken part again.
    training, _, _ = text_of("training", victim=2, target=475.0).partition("\nif __name__")
    source = (MACHINES + training + SAY_WHERE + THREE_MACHINES).replace("FOLDER", str(folder))
    with Program(folder, source) as program:
        at: dict[int, str] = {}
        pids: dict[int, int] = {}
        for _node in range(3):
            [node, machine] = program.line(" placed ")[-2:]
            at[int(node)] = machine
            pids |= pids_of(program, 1)
        program.line("trained")
        os.kill(pids[1], signal.SIGKILL)
        pids |= {11: pids_of(program, 1)[1]}
        (folder / "lose").write_text(at[2])
        assert program.line(" placed 2 ")[-1] != at[2]
        pids |= {12: pids_of(program, 1)[2]}
        code, output = program.end()
        assert code == 0, output
        assert (folder / "solved").exists(), output  # Ray may lose the last words of an actor
        assert "ended" in output.splitlines()
        wait_until_gone(*pids.values())


# -- further nodes -------------------------------------------------------------------------

GROWS = """
from contextlib import suppress
from ding_lite.errors import DeadlineExceeded

def main():
    with Task() as task:
        def learn(ctx):
            with suppress(DeadlineExceeded):
                if (item := task.receive("items", timeout=0.1)) is not None:
                    say("got", item.node_id)
                    ctx.finish = item.node_id == 2
        def collect(ctx):
            task.send("items", ctx.total_step, to="learner")
            task.wait_for("the end that never comes")
        task.use(learn, filter_labels="learner").use(collect, filter_labels="collector").run()
        return sorted(task.labels)

if __name__ == "__main__":
    print(Parallel.runner(
        2, "star", roles=["learner", "collector"], elastic=True,
        engine="ray", key_file="FOLDER/key",
    )(main))
"""


def test_a_node_from_a_shell_joins_a_job_on_ray(folder, cluster, type_line) -> None:
    make_key(folder / "key")
    source = GROWS.replace("FOLDER", str(folder))
    with Program(folder, "import ding_lite.log\nding_lite.log.configure()\n" + source) as program:
        address = program.line("DING_LITE_ATTACH_TO=")[-1]
        program.line("got 1")
        line = (
            f"{address} DING_LITE_ROLES=collector DING_LITE_KEY_FILE={folder}/key python train.py"
        )
        code, output = type_line(line, source=source.replace('engine="ray", ', "")).end()
        assert code == 0, output
        assert results_of(output) == [["collector", "collector.1", "distributed", "node.2"]]
        code, output = program.end()
        assert code == 0, output
        assert len(results_of(output)) == 2

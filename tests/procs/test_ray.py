"""Nodes that Ray places: where they run, what they return, and what happens when they die."""

from __future__ import annotations

import importlib.util
import os
import signal
from ast import literal_eval
from pathlib import Path

import pytest

from ding_lite.errors import ConfigError, MissingExtraError
from ding_lite.parallel import Parallel
from ding_lite.parallel.ray_engine import _check_guarded, wanted_by_nodes
from tests.procs.programs import Program, run

needs_ray = [
    pytest.mark.optional,
    pytest.mark.deadline(120),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="needs the extra `ray`: Ray is optional"
    ),
]

# -- what needs no Ray ---------------------------------------------------------------------

LABELS = [frozenset({"learner", "node.0"}), frozenset({"collector", "node.1"})]


def test_nodes_ask_for_what_is_said_for_their_labels_and_for_a_core() -> None:
    wanted = {"learner": {"num_gpus": 1, "num_cpus": 2}, "node.*": {"memory": 10}}
    assert wanted_by_nodes(LABELS, wanted) == [
        {"num_cpus": 2, "num_gpus": 1, "memory": 10},
        {"num_cpus": 1, "memory": 10},
    ]


@pytest.mark.parametrize(
    ("resources", "complaint"),
    [
        (
            {"learner": {"num_gpu": 1}},
            r"asks for 'num_gpu' for 'learner'\. Did you mean .num_gpus.",
        ),
        ({"evaluator": {"num_cpus": 1}}, r"no node has such a label.*collector, learner, node\.0"),
    ],
)
def test_what_cannot_be_asked_for_is_told(
    resources: dict[str, dict[str, int]], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        wanted_by_nodes(LABELS, resources)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"engine": "rai"}, "rai.*local.*ray"),
        ({"resources": {"learner": {"num_gpus": 1}}}, "`resources` is .* engine='ray'"),
        ({"engine": "ray", "ports": 5000}, r"`ports` is \(5000, 5001\), but Ray places the nodes"),
        ({"engine": "ray", "address": "127.0.0.2"}, "`address` is .127.0.0.2., but Ray"),
        ({"engine": "ray", "protocol": "ipc"}, "`protocol`.* is 'ipc'"),
    ],
)
def test_arguments_that_do_not_go_together_are_told(
    arguments: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Parallel.runner(2, **arguments)  # type: ignore[arg-type]


def test_a_ray_that_asks_nobody_who_they_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    _check_guarded("127.0.0.1:6379")
    with pytest.raises(ConfigError, match=r"whoever reaches it can run programs as you"):
        _check_guarded("192.0.2.7:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    _check_guarded("192.0.2.7:6379")


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_it_is_told_what_to_install() -> None:
    with pytest.raises(MissingExtraError, match=r'pip install "ding-lite\[ray\]"'):
        Parallel.runner(2, engine="ray")(os.getpid)


# -- what it does --------------------------------------------------------------------------

START = """
import secrets
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
os.environ["RAY_DEDUP_LOGS"] = "0"
import ray

def two_machines():
    from ray.cluster_utils import Cluster
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"a": 9}})
    other = cluster.add_node(num_cpus=2, resources={"b": 9})
    ray.init(address=cluster.address, log_to_driver=True)
    return cluster, other
"""

ROLES = (
    START
    + """
def main(factor):
    router = Parallel().wait_ready() or Parallel()
    where = ray.get_runtime_context().get_assigned_resources()
    return sorted(router.labels)[0], factor * router.node_id, sorted(set(where) & {"a", "b"})

if __name__ == "__main__":
    cluster, _ = two_machines()
    resources = {"learner": {"resources": {"a": 1}}, "collector": {"resources": {"b": 1}}}
    runner = Parallel.runner(
        3, "star", roles=["learner", "collector", "collector"], engine="ray", resources=resources
    )
    print(runner(main, 10))
    ray.shutdown()
    cluster.shutdown()
"""
)


@pytest.mark.parametrize("_", [pytest.param(None, marks=needs_ray)])
def test_nodes_are_placed_by_their_labels_and_results_come_back_by_node(
    folder: Path, _: None
) -> None:
    code, said = run(folder, ROLES)
    assert code == 0, said
    assert literal_eval(said.splitlines()[-1]) == [
        ("distributed", 0, ["a"]),
        ("collector", 10, ["b"]),
        ("collector", 20, ["b"]),
    ]


TALK = (
    START
    + """
import pathlib
from contextlib import suppress
from ding_lite.errors import DeadlineExceeded, NodeFailed

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
        say("up", node, os.getpid(), ray.get_runtime_context().get_node_id())
        task.use(talk).run()
    whole = all(numbers == [*range(numbers[0], numbers[0] + len(numbers))]
                for numbers in heard.values())
    return whole, len(heard)

def work(**arguments):
    runner = Parallel.runner(3, "star", engine="ray", startup_timeout=50.0, **arguments)
    try:
        print(runner(main))
    except NodeFailed as error:
        print("NodeFailed", error.node_id, "has died" in str(error))
"""
)
ONE_MACHINE = """
if __name__ == "__main__":
    ray.init(address="local", num_cpus=4, include_dashboard=False)
    work(auto_recover=AUTO_RECOVER)
    ray.shutdown()
"""


@pytest.mark.parametrize("victim", [pytest.param(node, marks=needs_ray) for node in (0, 1)])
def test_a_node_that_is_killed_is_back_and_its_neighbours_find_it(
    folder: Path, victim: int
) -> None:
    source = (TALK + ONE_MACHINE).replace("AUTO_RECOVER", "True").replace("FOLDER", str(folder))
    with Program(folder, source) as program:
        pids: dict[int, int] = {}
        while len(pids) < 3:
            words = program.line("up ")
            pids[int(words[-3])] = int(words[-2])
        os.kill(pids[victim], signal.SIGKILL)
        again = program.line(f"up {victim} ")
        assert int(again[-2]) != pids[victim]
        (folder / "go").touch()
        code, said = program.end()
    assert code == 0, said
    results = literal_eval(said.splitlines()[-1])
    assert [whole for whole, _ in results] == [True, True, True]
    lives_heard = {0: [2, 2, 2], 1: [3, 1, 1]}  # by the hub, and by the others
    assert [num_lives for _, num_lives in results] == lives_heard[victim]


@pytest.mark.parametrize("_", [pytest.param(None, marks=needs_ray)])
def test_a_node_that_is_killed_ends_the_job_where_nothing_else_was_asked_for(
    folder: Path, _: None
) -> None:
    source = (TALK + ONE_MACHINE).replace("AUTO_RECOVER", "False").replace("FOLDER", str(folder))
    with Program(folder, source) as program:
        os.kill(int(program.line("up 1 ")[-2]), signal.SIGKILL)
        code, said = program.end()
    assert (code, said.splitlines()[-1]) == (0, "NodeFailed 1 True"), said


THREE_MACHINES = """
if __name__ == "__main__":
    cluster, other = two_machines()
    third = cluster.add_node(num_cpus=2, resources={"b": 9})

    def lose_a_machine():
        lost = pathlib.Path("FOLDER/lose").read_text()
        machine = other if other.node_id == lost else third
        cluster.remove_node(machine, allow_graceful=False)

    threading.Thread(target=lose_a_machine, daemon=True).start()
    resources = {"node.[02]": {"resources": {"a": 1}}, "node.1": {"resources": {"b": 1}}}
    work(auto_recover=True, resources=resources)
    ray.shutdown()
    cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize("_", [pytest.param(None, marks=[*needs_ray, pytest.mark.deadline(240)])])
def test_a_node_whose_machine_is_lost_goes_on_on_another_one(folder: Path, _: None) -> None:
    os.mkfifo(folder / "lose")
    source = (TALK + THREE_MACHINES).replace("FOLDER", str(folder))
    with Program(
        folder, source.replace("startup_timeout=50.0", "startup_timeout=120.0")
    ) as program:
        up = [program.line("up ") for _node in range(3)]
        [at] = [words[-1] for words in up if words[-3] == "1"]
        (folder / "lose").write_text(at)
        again = program.line("up 1 ")
        assert again[-1] != at
        (folder / "go").touch()
        code, said = program.end()
    assert code == 0, said
    results = literal_eval(said.splitlines()[-1])
    assert results == [(True, 3), (True, 1), (True, 1)]

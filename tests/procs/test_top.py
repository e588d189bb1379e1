"""`ding-lite top`, beside jobs that run."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ding_lite.cli import top
from ding_lite.cli.main import main
from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.parallel.observe.job_discovery import Node, RunningJob, running_jobs
from tests.procs.conftest import Fork
from tests.procs.shells import Type
from tests.procs.terminals import CTRL_C, Terminal
from tests.procs.test_environment import NODE_0, NODE_1


def seen(folder: Path, ready: Callable[[Sequence[Node]], bool]) -> RunningJob:
    """Look until the only job of a folder is as it should be."""
    while True:
        for job in running_jobs([folder]):
            if ready(job.nodes):
                return job
        SYSTEM_CLOCK.sleep(0.05)  # a file that another process writes wakes no waiter


def both_there(nodes: Sequence[Node]) -> bool:
    return len(nodes) == 2


def test_a_running_job_is_shown_with_all_its_nodes_until_it_ends(
    fork: Fork, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ding_lite.parallel.network.address._usual_folders", lambda: (folder,))
    with fork("seen_job") as program:
        pids = program.pids(2)

        def is_waiting_after_51_steps(nodes: Sequence[Node]) -> bool:
            metrics = [node.metrics for node in nodes if node.metrics is not None]
            states = [node.state for node in nodes]
            return states == ["waiting"] * 2 and metrics[1].total.env_step == 51 * 8

        name = seen(folder, is_waiting_after_51_steps).name
        assert main(["top", name, "--json"]) == 0
        [job] = json.loads(capsys.readouterr().out)["jobs"]
        learner, collector = job["nodes"]
        assert (job["program"], job["num_nodes"]) == ("seen_job.py", 2)
        assert [(node["role"], node["pid"]) for node in job["nodes"]] == [
            ("learner", pids[0]),
            ("collector", pids[1]),
        ]
        assert learner["where"].endswith(" learn")
        assert re.fullmatch(r"seen_job\.py:\d+ collect", collector["where"])
        assert (learner["total"]["events_in"], learner["lag_s"] > 0) == (51, True)
        assert [node["restarts"] for node in job["nodes"]] == [0, 0]
        assert all(node["rss_bytes"] > 2**20 for node in job["nodes"])
        assert all(0 <= node["beat_s"] < 15 for node in job["nodes"])

        assert main(["top", str(pids[1]), "--once"]) == 0
        out, error = capsys.readouterr()
        assert (out.count("\n"), error) == (4, "")
        assert f"job {name}  seen_job.py  2 nodes" in out
        assert re.search(rf"^ +1  collector +{pids[1]}  waiting ", out, re.MULTILINE)

        waits: list[float] = []

        class Clock:
            def sleep(self, seconds: float) -> None:
                waits.append(seconds)
                if len(waits) == 2:
                    program.process.send_signal(signal.SIGINT)
                    program.end()

        monkeypatch.setattr(top, "SYSTEM_CLOCK", Clock())
        assert main(["top", name, "--every", "0.5"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert waits == [0.5] * 2
        assert [line.split()[1:3] for line in lines[::4]] == [["job", name]] * 2
        assert "\x1b" not in "".join(lines)
        assert main(["top", name]) == 2  # it runs no more


def test_a_stopped_node_and_one_that_was_killed_are_told_apart(fork: Fork, folder: Path) -> None:
    with fork("seen_job") as program:
        pids = program.pids(2)
        os.kill(pids[1], signal.SIGSTOP)
        seen(folder, lambda nodes: [n.state for n in nodes[1:]] == ["stopped"])
        os.kill(pids[1], signal.SIGKILL)
        again = program.pids(1)
        job = seen(folder, lambda nodes: again[1] in [n.metrics.pid for n in nodes if n.metrics])
        assert [node.metrics.restarts for node in job.nodes if node.metrics] == [0, 1]


def test_nodes_that_are_started_by_hand_are_one_job(fork_line: Type, folder: Path) -> None:
    nodes = [fork_line(line, program="seen_job", TMPDIR=str(folder)) for line in (NODE_0, NODE_1)]
    pids = nodes[0].pids(1) | nodes[1].pids(1)
    job = seen(folder, both_there)
    assert [(n.metrics.pid, n.metrics.restarts) for n in job.nodes if n.metrics] == [
        (pids[0], None),
        (pids[1], None),
    ]
    assert "collector" in job.nodes[1].labels
    for node in nodes:
        node.process.send_signal(signal.SIGINT)
    assert [node.end()[0] for node in nodes] == [-2, -2]
    assert list(folder.glob("ding_lite-*")) == []


def test_a_terminal_shows_a_table_that_renews_itself_until_a_key_a_signal_or_the_end_of_the_job(
    fork: Fork, folder: Path
) -> None:
    with fork("seen_job") as program:
        name = seen(folder, both_there).name
        words = ("-m", "ding_lite", "top", name, "--every", "0.05")
        for end, code in (("q", 0), (CTRL_C, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            with Terminal(folder, "", *words) as terminal:
                before = terminal.modes()
                terminal.wait_for(f"job {name}", times=2)
                if isinstance(end, str):
                    terminal.type(end)
                else:
                    terminal.process.send_signal(end)
                assert terminal.end()[0] == code
                assert terminal.modes() == before
                assert terminal.seen.rindex("\x1b[?25h") > terminal.seen.rindex("\x1b[?25l")
        with Terminal(folder, "", *words, columns=80) as terminal:
            shown = terminal.wait_for(f"job {name}", times=3)
            assert max(map(len, shown.splitlines())) <= 80
            terminal.wait_for("waiting")
            program.process.send_signal(signal.SIGINT)
            code, shown = terminal.end()
            assert (code, shown.split("\n")[-2]) == (0, f"Job {name} has ended.")
        program.end()

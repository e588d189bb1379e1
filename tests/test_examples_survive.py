"""The examples with several nodes continue when any of their nodes is killed by SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ding_lite.parallel.observe.job_discovery import Node, running_jobs
from tests.procs.programs import run, short_folder
from tests.test_examples import ROOT, running_in, started

pytestmark = [pytest.mark.procs, pytest.mark.deadline(180)]
SLOW = pytest.mark.slow
CASES = [
    pytest.param("a3c_cartpole", 0, id="a3c-server", marks=SLOW),  # also in test_training_faults
    pytest.param("a3c_cartpole", 1, id="a3c-agent", marks=SLOW),
    pytest.param("apex_dqn_cartpole", 0, id="apex-first-learner", marks=SLOW),
    pytest.param("apex_dqn_cartpole", 1, id="apex-second-learner", marks=SLOW),
    pytest.param("apex_dqn_cartpole", 2, id="apex-collector", marks=SLOW),
    pytest.param("apex_ddpg_pendulum", 0, id="apex-ddpg-learner", marks=SLOW),
    pytest.param("apex_ddpg_pendulum", 1, id="apex-ddpg-collector", marks=SLOW),
    pytest.param("evaluate_elsewhere", 0, id="evaluate-learner", marks=SLOW),
    pytest.param("evaluate_elsewhere", 1, id="evaluate-evaluator"),
    pytest.param("evolve_on_nodes", 0, id="evolve-breeder", marks=SLOW),
    pytest.param("evolve_on_nodes", 1, id="evolve-learner", marks=SLOW),
    pytest.param("impala_cartpole", 0, id="impala-learner", marks=SLOW),
    pytest.param("impala_cartpole", 1, id="impala-collector", marks=SLOW),
]
"""Each kind of node of each program."""
UNREACHABLE = {"apex_ddpg_pendulum": "0"}


class Watched:
    """An example that runs in a folder, as seen from outside."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._metrics = folder / "here" / "metrics.jsonl"

    @property
    def last_row(self) -> dict[str, Any]:
        with suppress(OSError, IndexError, ValueError):
            found: dict[str, Any] = json.loads(self._metrics.read_text().splitlines()[-1])
            return found
        return {}

    def node(self, node_id: int) -> Node | None:
        ours = set(running_in(self._folder))
        for job in running_jobs():
            for node in job.nodes:
                if node.metrics and node.metrics.pid in ours and node.node_id == node_id:
                    return node
        return None

    def wait_until(self, what: Callable[[], object]) -> None:
        while not what():
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(0.05)
                pytest.fail(f"It ended by itself, with {code}: {self._process.communicate()[1]}")

    def kill(self, node_id: int) -> None:
        """Kill a node, and wait until it is back and takes part."""
        self.wait_until(lambda: self.node(node_id))
        before = self.node(node_id)
        assert before is not None
        assert before.metrics is not None
        pid = before.metrics.pid
        os.kill(pid, signal.SIGKILL)

        def is_back() -> bool:
            node = self.node(node_id)
            if node is None or node.metrics is None or node.metrics.pid == pid:
                return False
            return (node.metrics.total.total_step or 0) > 1

        self.wait_until(is_back)


@pytest.mark.parametrize(("name", "victim"), CASES)
def test_a_killed_node_is_restarted_and_the_run_continues(name: str, victim: int) -> None:
    example = ROOT / "examples" / f"{name}.py"
    endless = ("--target", UNREACHABLE.get(name, "1000"), "--max-env-steps", "100000000")
    with (
        short_folder() as folder,
        started(example, *endless, "--out", "here", cwd=folder) as process,
    ):
        watched = Watched(process, folder)
        checkpoint = folder / "here" / "checkpoint" / "manifest.json"
        watched.wait_until(lambda: watched.last_row and (victim or checkpoint.exists()))
        had_come_to = watched.last_row["step"]
        watched.kill(victim)
        watched.wait_until(lambda: watched.last_row.get("step", 0) > had_come_to)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert (process.returncode, out) == (130, ""), err
        assert "Interrupted; the checkpoint is in here/checkpoint" in err
        assert ("The run in here goes on at" in err) is (victim == 0), err
        assert running_in(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "victim"), CASES)
def test_a_run_solves_its_task_after_one_of_its_nodes_is_killed(name: str, victim: int) -> None:
    example = ROOT / "examples" / f"{name}.py"
    with short_folder() as folder, started(example, "--out", "here", cwd=folder) as process:
        watched = Watched(process, folder)
        watched.wait_until(lambda: watched.last_row)
        node = watched.node(victim)
        assert node is not None
        assert node.metrics is not None
        os.kill(node.metrics.pid, signal.SIGKILL)
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert json.loads(out)["solved"] is True, err
        assert running_in(folder) == []


RESUMED = """
from pathlib import Path
from apex_dqn_cartpole import main
from ding_lite.recipes import Options, Run
from ding_lite.rl import DQNConfig

def train(max_env_steps, resume):
    options = Options(
        env="CartPole-v1", seed=0, max_env_steps=max_env_steps, target=1000.0, smoke=False,
        out=Path("here"), nodes=3, resume=resume,
    )
    roles = ["learner", "learner", "collector"]
    with Run("apex", options) as run:
        first, second, _ = Parallel.runner(3, roles=roles)(main, options, DQNConfig(), run)
    print({name: bool((first[name] == second[name]).all()) for name in first})

if __name__ == "__main__":
    train(500, False)
    train(1_500, True)
"""


def test_learners_resumed_from_a_checkpoint_have_equal_weights() -> None:
    with short_folder() as folder:
        source = f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r})\n{RESUMED}"
        code, output = run(folder, source)
    assert code == 0, output
    assert "goes on at" in output
    same = [line for line in output.splitlines() if line.startswith("{")]
    assert len(same) == 2, output
    assert "False" not in "".join(same), output

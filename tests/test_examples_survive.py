"""The examples with several nodes continue when any of their nodes is killed by SIGKILL."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.parallel.observe.job_discovery import running_jobs
from ding_lite.parallel.observe.metrics import NodeMetrics
from tests.procs.programs import Forked, short_folder
from tests.test_examples import ROOT, running_in
from tests.warm import PROGRAMS, Warm, warm

pytestmark = [pytest.mark.procs, pytest.mark.deadline(180)]
SLOW = pytest.mark.slow
CASES = [
    pytest.param("a3c_cartpole", 0, id="a3c-server", marks=SLOW),
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
    pytest.param("impala_cartpole", 0, id="impala-learner"),
    pytest.param("impala_cartpole", 1, id="impala-collector", marks=SLOW),
]
"""Each kind of node of each program."""
UNREACHABLE = {"apex_ddpg_pendulum": "0"}


@pytest.fixture(scope="module")
def process() -> Iterator[Warm]:
    """Return a process that forks examples; their nodes are processes as ever."""
    with warm(PROGRAMS) as process:
        yield process


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


class Watched(Forked):
    """An example that runs in a folder, as seen from outside."""

    def __init__(self, process: Warm, folder: Path, name: str, *options: str) -> None:
        example = str(ROOT / "examples" / f"{name}.py")
        super().__init__(process, folder, "", example, *options, "--out", "here")

    @property
    def last_row(self) -> dict[str, Any]:
        with suppress(OSError, IndexError, ValueError):
            lines = (self.folder / "here" / "metrics.jsonl").read_text().splitlines()
            found: dict[str, Any] = json.loads(lines[-1])
            return found
        return {}

    def node(self, node_id: int) -> NodeMetrics | None:
        nodes = [node for job in running_jobs([self.folder]) for node in job.nodes]
        return next((n.metrics for n in nodes if n.node_id == node_id and n.metrics), None)

    def wait_until(self, what: Callable[[], object]) -> None:
        while not what():
            if (code := self.process.poll()) is not None:
                pytest.fail(f"It ended by itself, with {code}: {self.end()[1]}")
            SYSTEM_CLOCK.sleep(0.05)  # a file that another process writes wakes no waiter

    def kill_node(self, node_id: int) -> int:
        self.wait_until(lambda: self.node(node_id))
        before = self.node(node_id)
        assert before is not None
        os.kill(before.pid, signal.SIGKILL)
        return before.pid

    def is_back(self, node_id: int, former_pid: int) -> bool:
        """Whether a node runs in another process, and takes part."""
        now = self.node(node_id)
        return now is not None and now.pid != former_pid and (now.total.total_step or 0) > 1


@pytest.mark.parametrize(("name", "victim"), CASES)
def test_a_killed_node_is_restarted_and_the_run_continues(
    process: Warm, folder: Path, name: str, victim: int
) -> None:
    endless = ("--target", UNREACHABLE.get(name, "1000"), "--max-env-steps", "100000000")
    with Watched(process, folder, name, *endless) as program:
        checkpoint = folder / "here" / "checkpoint" / "manifest.json"
        program.wait_until(lambda: program.last_row and (victim or checkpoint.exists()))
        had_come_to = program.last_row["step"]
        former = program.kill_node(victim)
        program.wait_until(lambda: program.is_back(victim, former))
        program.wait_until(lambda: program.last_row.get("step", 0) > had_come_to)
        program.process.send_signal(signal.SIGINT)
        code, output = program.end()
        assert code == 130, output
        assert "Interrupted; the checkpoint is in here/checkpoint" in output
        assert ("The run in here goes on at" in output) is (victim == 0), output
        assert running_in(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "victim"), CASES)
def test_a_run_solves_its_task_after_one_of_its_nodes_is_killed(
    process: Warm, folder: Path, name: str, victim: int
) -> None:
    with Watched(process, folder, name) as program:
        program.wait_until(lambda: program.last_row)
        program.kill_node(victim)
        output = program.result()
        assert json.loads(output.splitlines()[-1])["solved"] is True, output
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


def test_learners_resumed_from_a_checkpoint_have_equal_weights(process: Warm, folder: Path) -> None:
    source = f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r})\n{RESUMED}"
    with Forked(process, folder, source) as program:
        output = program.result()
    assert "goes on at" in output
    same = [line for line in output.splitlines() if line.startswith("{")]
    assert len(same) == 2, output
    assert "False" not in "".join(same), output

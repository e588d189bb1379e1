"""Environments that hang, exit or die, in this process and in others, and Ctrl-C meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ding_lite.rl.checkpoint.save_load import load_checkpoint
from tests.procs.conftest import RunForked
from tests.procs.programs import wait_until_gone


def program(fault: str | None, mode: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "faulty_env",
        "fault": fault,
        "mode": mode,
        "resumes": False,
        "hanging_s": 5.0,
    } | more


def saved(folder: Path) -> dict[str, int]:
    """Return the counters of the checkpoint, with which the state of the task agrees."""
    checkpoint = load_checkpoint(folder / "checkpoint")
    meta = {name: checkpoint.meta[name] for name in ("total_step", "env_step", "train_iter")}
    assert checkpoint.state["task"]["total_step"] == meta["total_step"]
    assert checkpoint.state["task"]["ctx"]["env_step"] == meta["env_step"]
    return meta


def whole_steps(mode: str) -> int:
    """Return how many steps of eight env steps are whole when a process makes its 41st."""
    return 5 if mode == "sync" else 10  # two processes of one environment each


def goes_on(folder: Path, mode: str, run_learner: RunForked) -> None:
    """Resume the run; its environments begin new episodes, and nothing else is lost."""
    (folder / "resumed").touch()
    output = run_learner(**program(None, mode, resumes=True))
    whole = whole_steps(mode)
    assert f"resumed at {whole - 1} {8 * whole} {whole} {whole - 1}\n" in output, output
    assert "begin new episodes" in output
    assert f"ended {whole + 19}" in output


@pytest.mark.parametrize("fault", ["hangs", pytest.param("is stopped", marks=pytest.mark.slow)])
def test_ctrl_c_while_an_environment_of_another_process_hangs_saves_the_whole_steps(
    fork_learner, folder, fault, run_learner
):
    with fork_learner(**program(fault, "async", hanging_s=0.5)) as running:
        pid = int(running.line("at ")[1])
        os.kill(running.pid, signal.SIGINT)
        code, output = running.end()
        assert code == 130, output
        assert "has not answered within 0.5 s" in output
        wait_until_gone(pid)
    assert saved(folder) == {"total_step": 9, "env_step": 80, "train_iter": 10}
    if fault == "hangs":
        goes_on(folder, "async", run_learner)


def test_environments_that_end_with_ctrl_c_do_not_lose_the_whole_steps(fork_learner, folder):
    with fork_learner(**program("dies later", "async")) as running:
        running.line("at ")
        os.kill(running.pid, signal.SIGINT)
        running.line("the run ends after this step")
        (folder / "go").touch()
        code, output = running.end()
    assert code == 130, output
    assert "the step was broken off: " in output
    assert saved(folder) == {"total_step": 9, "env_step": 80, "train_iter": 10}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_second_ctrl_c_in_an_environment_saves_the_whole_steps_too(
    fork_learner, folder, mode, run_learner
) -> None:
    with fork_learner(**program("hangs", mode)) as running:
        running.line("at ")
        if mode == "async":
            running.line("at ")  # of the other process: this one waits for both
        os.kill(running.pid, signal.SIGINT)
        running.line("the run ends after this step")
        os.kill(running.pid, signal.SIGTERM)  # another signal is a second one at any time
        code, output = running.end()
    assert code == 143, output
    whole = whole_steps(mode)
    assert saved(folder) == {"total_step": whole - 1, "env_step": 8 * whole, "train_iter": whole}
    if mode == "sync":
        goes_on(folder, mode, run_learner)


@pytest.mark.parametrize(
    ("mode", "fault", "reported"),
    [
        ("sync", "exits", "called sys.exit(0) in `step`"),
        ("async", "is interrupted", "raised KeyboardInterrupt in `step`"),
    ],
)
def test_an_environment_that_exits_ends_the_run_with_an_error(
    folder, mode, fault, reported, fork_learner
) -> None:
    with fork_learner(**program(fault, mode)) as running:
        output = running.refusal()
    assert f"of probe/Wanders-v0 {reported}" in output
    assert "EnvError" in output
    assert not (folder / "checkpoint" / "manifest.json").exists()

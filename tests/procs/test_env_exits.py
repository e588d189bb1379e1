"""Environments that hang, exit or die, in this process and in others, and Ctrl-C meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ding_lite.rl.checkpoint.save_load import load_checkpoint
from tests.procs.programs import Program, run, wait_until_gone

pytestmark = pytest.mark.deadline(60)

PROGRAM = """
import logging, sys
import numpy as np
import ding_lite.log
import gymnasium, time
from ding_lite import middleware as mw
from ding_lite.middleware import resume
from ding_lite.recipes.runs.program import run_program
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs
import tests.rl.probes

class Faulty(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        Faulty.steps += 1
        if Faulty.steps == 41 and not os.path.exists("resumed"):
            os.write(1, f"at {os.getpid()}\\n".encode())
            FAULT
        return self.env.step(action)

def main():
    ding_lite.log.configure(logging.INFO)
    mode, *more = sys.argv[1:]
    envs = make_envs("probe/Wanders-v0", 2, mode=mode, wrappers=[Faulty])
    policy = DQN(envs.spec, DQNConfig(hidden=(8,), batch_size=4, n_step=3))
    replay = ReplayBuffer(envs.spec, capacity=1000)
    with Task() as task:
        parts = {"policy": policy, "replay": replay, "envs": envs, "task": task}
        task.use(mw.collect(policy, envs, steps=8)).use(mw.add_to(replay))
        task.use(mw.train(policy, replay))
        task.use(mw.checkpoint(parts, "checkpoint", every=1000))
        if more:
            say("resumed at", *resume(parts, "checkpoint").values(), task.ctx.total_step)
        task.run(max_step=20)
    say("ended", task.ctx.total_step, len(replay))

if __name__ == "__main__":
    run_program(main)
"""
HANG = "threading.Event().wait()"
SPIN = "while True: pass"


def program(fault: str) -> str:
    return PROGRAM.replace("FAULT", fault)


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


def goes_on(folder: Path, mode: str) -> None:
    """Resume the run; its environments begin new episodes, and nothing else is lost."""
    (folder / "resumed").touch()
    code, said = run(folder, program("pass"), "program.py", mode, "resume")
    whole = whole_steps(mode)
    assert code == 0, said
    assert f"resumed at {whole - 1} {8 * whole} {whole} {whole - 1}\n" in said, said
    assert "begin new episodes" in said
    assert f"ended {whole + 19}" in said


STOP = "os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(HANG, id="hangs"),
        pytest.param(SPIN, id="spins", marks=pytest.mark.slow),
        pytest.param(STOP, id="is stopped", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_while_an_environment_of_another_process_hangs_saves_the_whole_steps(
    folder: Path, fault: str
) -> None:
    with Program(folder, program(fault), "program.py", "async") as running:
        pid = int(running.line("at ")[1])
        os.kill(running.pid, signal.SIGINT)
        code, said = running.end()
        assert code == 130, said
        assert "has not answered within 5 s" in said
        wait_until_gone(pid)
    assert saved(folder) == {"total_step": 9, "env_step": 80, "train_iter": 10}
    if fault == HANG:
        goes_on(folder, "async")


@pytest.mark.parametrize(
    ("fault", "signum"),
    [
        pytest.param("os._exit(0)", signal.SIGINT, id="dies"),
        pytest.param("raise BrokenPipeError('gone')", signal.SIGTERM, id="raises"),
        pytest.param("sys.exit(0)", signal.SIGINT, id="exits", marks=pytest.mark.slow),
    ],
)
def test_environments_that_end_with_ctrl_c_do_not_lose_the_whole_steps(
    folder: Path, fault: str, signum: signal.Signals
) -> None:
    fault = f"[time.sleep(0.01) for _ in iter(lambda: os.path.exists('go'), True)]; {fault}"
    with Program(folder, program(fault), "program.py", "async") as running:
        running.line("at ")
        os.kill(running.pid, signum)
        running.line("the run ends after this step")
        (folder / "go").touch()
        code, said = running.end()
    assert code == 128 + signum, said
    assert "the step was broken off: " in said
    assert saved(folder) == {"total_step": 9, "env_step": 80, "train_iter": 10}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_second_ctrl_c_in_an_environment_saves_the_whole_steps_too(
    folder: Path, mode: str
) -> None:
    with Program(folder, program(HANG), "program.py", mode) as running:
        running.line("at ")
        if mode == "async":
            running.line("at ")  # of the other process: this one waits for both
        os.kill(running.pid, signal.SIGINT)
        running.line("the run ends after this step")
        os.kill(running.pid, signal.SIGTERM)  # another signal is a second one at any time
        code, said = running.end()
    assert code == 143, said
    whole = whole_steps(mode)
    assert saved(folder) == {"total_step": whole - 1, "env_step": 8 * whole, "train_iter": whole}
    if mode == "sync":
        goes_on(folder, mode)


@pytest.mark.parametrize(
    ("mode", "fault", "told"),
    [
        ("sync", "sys.exit(0)", "called sys.exit(0) in `step`"),
        ("async", "raise KeyboardInterrupt", "raised KeyboardInterrupt in `step`"),
    ],
)
def test_an_environment_that_exits_ends_the_run_with_an_error(
    folder: Path, mode: str, fault: str, told: str
) -> None:
    code, said = run(folder, program(fault), "program.py", mode)
    assert code == 1
    assert f"of probe/Wanders-v0 {told}" in said
    assert "EnvError" in said
    assert not (folder / "checkpoint" / "manifest.json").exists()


def test_a_process_of_environments_that_ends_with_code_0_ends_the_run_with_an_error(
    folder: Path,
) -> None:
    code, said = run(folder, program("os._exit(0)"), "program.py", "async")
    assert code == 1
    assert "of probe/Wanders-v0 has ended with exit code 0" in said

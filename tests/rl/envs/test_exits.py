"""Environments that exit, or are interrupted, during a run."""

import os
import re
import signal
import threading

import gymnasium
import numpy as np
import pytest

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite.errors import EnvError
from ding_lite.rl import make_envs
from ding_lite.runtime.task import Task
from tests.rl.probes import EXITS


def run(envs, actions):
    """Step the envs once in a task, where Ctrl-C is the task's."""
    with Task() as task:
        task.use(lambda ctx: envs.step(np.array(actions)) and None)
        task.run(max_step=1)


@pytest.mark.parametrize("how", EXITS)
def test_an_exit_in_a_step_is_an_error_that_names_the_environment(how):
    envs = make_envs("probe/Weak-v0", 4, mode="sync", env_args={"how": how})
    told = rf"Environment 2 of probe/Weak-v0 (called|raised) {re.escape(how)} in `step`"
    with pytest.raises(EnvError, match=told):
        run(envs, [0, 0, 1, 0])


def test_ctrl_c_outside_a_run_is_a_keyboard_interrupt():
    class Signals(gymnasium.Wrapper):
        def step(self, action):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(10.0)

    envs = make_envs("probe/Counter-v0", 2, mode="sync", wrappers=[Signals])
    with pytest.raises(KeyboardInterrupt):
        envs.step(np.zeros(2, dtype=np.int64))

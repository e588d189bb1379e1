"""A run in which an environment hangs, exits or dies at its 41st step."""

import logging
import os
import signal
import sys
import threading
import time

import gymnasium

import ding_lite.log
import tests.rl.probes  # noqa: F401 registers the environment
from ding_lite import Task, middleware as mw
from ding_lite.middleware import resume
from ding_lite.recipes.runs.program import run_program
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs
from ding_lite.rl.envs import workers
from tests.programs.given import given, say

workers.HANGING_S = given.hanging_s


def raise_(error):
    raise error


def die_later():
    while not os.path.exists("go"):
        time.sleep(0.01)
    os._exit(0)


FAULTS = {
    "hangs": lambda: threading.Event().wait(),
    "is stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "dies later": die_later,
    "exits": lambda: sys.exit(0),
    "is interrupted": lambda: raise_(KeyboardInterrupt()),
    None: lambda: None,
}


class Faulty(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        Faulty.steps += 1
        if Faulty.steps == 41 and not os.path.exists("resumed"):
            os.write(1, f"at {os.getpid()}\n".encode())
            FAULTS[given.fault]()
        return self.env.step(action)


def main():
    ding_lite.log.configure(logging.INFO)
    envs = make_envs("probe/Wanders-v0", 2, mode=given.mode, wrappers=[Faulty])
    policy = DQN(envs.spec, DQNConfig(hidden=(8,), batch_size=4, n_step=3))
    replay = ReplayBuffer(envs.spec, capacity=1000)
    with Task() as task:
        parts = {"policy": policy, "replay": replay, "envs": envs, "task": task}
        task.use(mw.collect(policy, envs, steps=8)).use(mw.add_to(replay))
        task.use(mw.train(policy, replay))
        task.use(mw.checkpoint(parts, "checkpoint", every=1000))
        if given.resumes:
            found = resume(parts, "checkpoint")
            counted = (found[name] for name in ("total_step", "env_step", "train_iter"))
            say("resumed at", *counted, task.ctx.total_step)
        task.run(max_step=20)
    say("ended", task.ctx.total_step, len(replay))


if __name__ == "__main__":
    run_program(main)

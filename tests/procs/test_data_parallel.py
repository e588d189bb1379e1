"""Several learners of one policy: the same weights, and no hang when one dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.procs.programs import Program, run

pytestmark = pytest.mark.deadline(60.0)  # several processes that import PyTorch at a time

LEARN = """
import numpy as np
from ding_lite import middleware as mw
from ding_lite.distributed import World
from ding_lite.rl import DQN, DQNConfig, Transitions, make_envs

CONFIG = dict(hidden=(8,), n_step=1, batch_size=16)
SPEC = make_envs("CartPole-v1", 1).spec

def batch_of(seed):
    rng = np.random.default_rng(seed)
    nothing = np.zeros(16, bool)
    return Transitions(
        obs=rng.normal(size=(16, 4)).astype(np.float32), action=rng.integers(0, 2, 16),
        reward=rng.normal(size=16).astype(np.float32),
        next_obs=rng.normal(size=(16, 4)).astype(np.float32),
        terminated=nothing, truncated=nothing, num_steps=np.ones(16, np.int32),
    )

def digest(policy):
    return float(sum(w.double().sum() for w in policy.weights().values()))
"""

MEAN = (
    LEARN
    + """
def main():
    learners = World.current().group("node.*")
    policy = DQN(SPEC, DQNConfig(seed=learners.rank, **CONFIG))
    policy.data_parallel(learners)
    for k in range(5):
        policy.learn(batch_of(10 * k + learners.rank))
    learners.barrier()
    return policy.weights()

if __name__ == "__main__":
    first, second = Parallel.runner(2)(main)
    # Two halves of a batch, of the same size, have the mean of their gradients as its gradient.
    alone = DQN(SPEC, DQNConfig(seed=0, **CONFIG))
    for k in range(5):
        halves = [batch_of(10 * k), batch_of(10 * k + 1)]
        names = Transitions.__dataclass_fields__
        alone.learn(Transitions(
            **{name: np.concatenate([getattr(half, name) for half in halves]) for name in names}
        ))
    print(
        all((first[name] == second[name]).all() for name in first),
        all(np.allclose(first[k], w, rtol=1e-4, atol=1e-6) for k, w in alone.weights().items()),
    )
"""
)


def test_learners_take_the_step_that_one_would_take_with_all_their_batches(folder: Path) -> None:
    assert run(folder, MEAN) == (0, "True True\n")


AVERAGES = """
import torch
from ding_lite.distributed import World

def main():
    everybody = World.current().group("node.*")
    average, means = everybody.averager(), []
    for length in (3, 70_000):
        mine = torch.arange(length, dtype=torch.float32) * 10 ** everybody.rank
        average(mine)
        means.append(mine[-1].item() / (length - 1))
    everybody.barrier()
    return means

if __name__ == "__main__":
    print(Parallel.runner(2)(main))
"""


def test_small_and_large_gradients_are_averaged(folder: Path) -> None:
    assert run(folder, AVERAGES) == (0, "[[5.5, 5.5], [5.5, 5.5]]\n")


PIPELINE = (
    LEARN
    + """
def main():
    incarnation = f"incarnation-{Parallel().node_id}"
    is_first = not os.path.exists(incarnation)
    open(incarnation, "w").close()
    learners = World.current().group("learner")
    policy = DQN(SPEC, DQNConfig(seed=Parallel().node_id, **CONFIG))
    if learners.is_member:
        policy.data_parallel(learners)
    with Task() as task:
        def feed(ctx):
            ctx.transitions = batch_of(ctx.total_step)
            if ctx.total_step == 30:
                say("training", Parallel().node_id)
        def end(ctx):
            task.wait_for("trained")
            ctx.finish = True
        learner = task.at("learner")
        learner.use(feed).use(mw.train(policy))
        task.at("learner.0").use(
            lambda ctx: ({when}) and ctx.get("train_iter") == 100 and task.emit("trained")
        )
        task.use(end, "watcher")
        say("up", Parallel().node_id, os.getpid())
        task.run()
    return digest(policy) if learners.is_member else None

if __name__ == "__main__":
    roles = ["learner", "learner", "watcher"]
    results = Parallel.runner(3, "mesh", roles=roles{recover})(main)
    print("ended", results[2])
"""
)


def program(*, when: str, recover: str = "") -> str:
    return PIPELINE.replace("{when}", when).replace("{recover}", recover)


def test_a_learner_that_waits_for_another_which_has_left_ends_with_the_job(folder: Path) -> None:
    code, said = run(folder, program(when="True"))
    assert (code, said.splitlines()[-1]) == (0, "ended None"), said


def test_the_death_of_a_learner_ends_the_job(folder: Path) -> None:
    with Program(folder, program(when="False")) as job:
        pids = job.pids(3)
        job.line("training 1")
        os.kill(pids[1], signal.SIGKILL)
        code, said = job.end()
    assert code != 0
    assert "NodeFailed" in said


def test_the_death_of_a_learner_restarts_all_of_them_where_that_was_asked_for(
    folder: Path,
) -> None:
    source = program(when="not is_first", recover=", auto_recover=True")
    with Program(folder, source) as job:
        pids = job.pids(3)
        job.line("training 1")
        os.kill(pids[1], signal.SIGKILL)
        code, said = job.end()
    assert (code, said.splitlines()[-1]) == (0, "ended None"), said
    assert said.count("up 0 ") == said.count("up 1 ") == 2, said

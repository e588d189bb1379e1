"""The programs of the document's last part, on processes of their own, by what they do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ding_lite.framework import Parallel
from ding_lite.rl import load_checkpoint
from tests.seeds import programs
from tests.seeds.diengine import BaseLearner, DQNPolicy, cfg, digest, quick_start

SOLVED = 60
"""Early, so that it is reached soon; `test_diengine` reaches 195."""
ROUND = cfg.policy.collect.collector.n_sample

pytestmark = pytest.mark.procs


def elsewhere() -> Any:
    cfg.policy.eval.evaluator.update(eval_freq=80, stop_value=SOLVED)
    return programs.elsewhere()


def learn_alone(monkeypatch: pytest.MonkeyPatch, rounds: int) -> dict[str, int]:
    """Learn in this process; return of which update all the weights on the way were."""
    cfg.policy.eval.evaluator.stop_value = math.inf
    updates = {}

    def train(learner: BaseLearner, data: Any, envstep: int) -> None:
        learner.policy.learn(data)
        updates[digest(learner.policy)] = learner.train_iter

    with monkeypatch.context() as patch:
        patch.setattr(BaseLearner, "train", train)
        programs.decoupled(rounds)
    return updates


def policy_of_checkpoint(folder: str) -> DQNPolicy:
    policy, _, _ = quick_start()
    policy.load_state_dict(load_checkpoint(Path(folder) / "ckpt" / "ckpt").state)
    return policy


def test_an_evaluator_elsewhere_plays_with_the_learners_weights_and_ends_the_job(monkeypatch):
    learner, evaluator = Parallel.runner(n_parallel_workers=2, topology="star")(elsewhere)

    assert learner["history"] == []
    assert (evaluator["train_iter"], evaluator["envstep"]) == (0, 0)
    train_iters, envsteps, rewards = zip(*evaluator["history"], strict=True)
    assert max(rewards[:-1], default=0.0) < SOLVED <= rewards[-1]

    # The learner alone, with the same seed, has the same weights after the same update.
    updates = learn_alone(monkeypatch, learner["envstep"] // ROUND)
    assert updates[learner["weights"]] == learner["train_iter"]
    judged = [updates[weights] for weights in evaluator["judged"]]
    assert judged == sorted(set(judged))
    assert list(train_iters) == sorted(set(train_iters))
    assert list(envsteps) == sorted(set(envsteps))
    pairs = zip(judged, train_iters, strict=True)
    assert all(made <= message <= learner["train_iter"] for made, message in pairs)
    assert digest(policy_of_checkpoint(cfg.exp_name)) == learner["weights"]


def test_the_same_file_does_all_of_it_in_one_process() -> None:
    [alone] = Parallel.runner(n_parallel_workers=1, topology="star")(elsewhere)

    assert alone["history"][-1][2] >= SOLVED
    assert digest(policy_of_checkpoint(cfg.exp_name)) == alone["weights"]
    *_, (train_iter, envstep, _) = alone["history"]
    assert (alone["train_iter"], alone["envstep"]) == (train_iter + 8, envstep + ROUND)

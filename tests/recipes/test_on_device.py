"""Runs on a GPU: of every policy, of populations, resumed ones, and of several processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite import evolve, train
from ding_lite.recipes import load_policy
from ding_lite.rl import make_envs
from tests.recipes.test_training import Net

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parent.parent.parent
OWN = {
    f"{ROOT}/examples/own/{file}.py:{name}": "CartPole-v1"
    for file, name in (
        ("discrete_sac", "DiscreteSAC"),
        ("qr_dqn", "QRDQN"),
        ("rainbow", "Rainbow"),
        ("recurrent_ppo", "RecurrentPPO"),
    )
}
POLICIES = {
    **dict.fromkeys(("dqn", "r2d2", "a2c", "ppo", "impala"), "CartPole-v1"),
    **dict.fromkeys(("ddpg", "td3", "sac"), "Pendulum-v1"),
    **OWN,
}
EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES, ids=lambda name: name.rpartition(":")[2])
PLAIN: dict[str, Any] = {"device": "cuda", "smoke": True, "quiet": True}


@EVERY_POLICY
def test_a_run_on_a_gpu_plays_on_the_cpu(policy: str, tmp_path: Path) -> None:
    result = train(policy, POLICIES[policy], out=tmp_path / "run", **PLAIN)
    there: Any = result.policy
    assert there.device.type == "cuda"
    assert there.train_iter > 0
    here: Any = load_policy(tmp_path / "run")
    assert here.device.type == "cpu"
    for name, weight in there.weights().items():
        assert torch.equal(here.weights()[name], weight.cpu()), name
    if not getattr(here, "state_size", 0):
        obs = make_envs(POLICIES[policy], 8).obs
        np.testing.assert_allclose(
            here.act(obs, explore=False), there.act(obs, explore=False), rtol=1e-2, atol=1e-3
        )


@pytest.mark.parametrize(("policy", "parts"), [("dqn", {}), ("ppo", {}), ("dqn", {"network": Net})])
def test_a_run_of_captured_updates(policy: str, parts: Any, tmp_path: Path) -> None:
    result = train(policy, "CartPole-v1", compile="graph", out=tmp_path, **parts, **PLAIN)
    found: Any = result.policy
    assert found.train_iter > 20


@pytest.mark.parametrize(
    ("kind", "env", "more"),
    [
        ("dqn", "CartPole-v1", {}),
        ("dqn", "CartPole-v1", {"network": Net}),
        ("dqn", "ding_lite.rl.envs.catch:Catch", {}),
        ("ppo", "CartPole-v1", {}),
        ("a2c", "CartPole-v1", {"memory": "gru"}),
        ("sac", "Pendulum-v1", {}),
        ("td3", "Pendulum-v1", {}),
        (f"{ROOT}/examples/own/qr_dqn.py:QRDQN", "CartPole-v1", {}),
    ],
)
def test_a_population_evolves(kind: str, env: str, more: Any, tmp_path: Path) -> None:
    result = evolve(kind, env, out=tmp_path, population=4, **more, **PLAIN)
    best: Any = result.best.policy
    assert best.device.type == "cuda"
    assert best.train_iter > 0


@pytest.mark.parametrize(
    ("policy", "parts"),
    [("dqn", {}), ("ppo", {}), ("sac", {}), ("dqn", {"optimizer": torch.optim.RMSprop})],
)
def test_a_resumed_run_is_exact(policy: str, parts: Any, tmp_path: Path) -> None:
    env, more = POLICIES[policy], {**PLAIN, **parts, "smoke": False}
    whole = train(policy, env, out=tmp_path / "whole", max_env_steps=2_000, **more)
    train(policy, env, out=tmp_path / "halves", max_env_steps=1_000, **more)
    halves = train(policy, env, out=tmp_path / "halves", max_env_steps=2_000, resume=True, **more)
    for name, weight in whole.policy.weights().items():
        assert torch.equal(weight, halves.policy.weights()[name]), name


@pytest.mark.parametrize(("kind", "nodes"), [("a3c", 2), ("impala", 2), ("apex", 3)])
def test_nodes_learn_on_one_gpu(kind: str, nodes: int) -> None:
    program = [sys.executable, "-m", "tests.programs.on_device"]
    ended = subprocess.run(
        [*program, json.dumps({"kind": kind, "device": "cuda"})],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200.0,
        check=False,
    )
    lines = ended.stdout.splitlines()
    assert len(lines) == nodes, ended.stderr
    assert all(line.startswith("cuda:0") and line.endswith("True") for line in lines), lines

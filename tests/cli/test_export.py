"""`ding-lite export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from ding_lite import middleware as mw
from ding_lite.cli.main import main
from ding_lite.recipes import load_policy
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.testing import run_step

pytestmark = pytest.mark.usefixtures("_here")
OBS = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def _a_run(_here: None) -> None:
    with make_envs("CartPole-v1", 1) as envs:
        for name, seed in (("checkpoint", 1), ("best", 2)):
            policy = DQN(envs.spec, DQNConfig(hidden=(8,), seed=seed))
            if name == "best":
                run_step(mw.keep_best(policy, "run/best"), eval_value=500.0)
            else:
                run_step(mw.checkpoint(policy, "run/checkpoint", every=1))


def test_a_run_becomes_onnx(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "run"]) == 0
    origin, wrote = capsys.readouterr().out.splitlines()
    assert origin == "DQN on CartPole-v1, from run/best (return 500 in its evaluation)"
    assert wrote == "Wrote policy.onnx: it takes observations, float32 [B, 4]."
    session = onnxruntime.InferenceSession("policy.onnx")
    (values,) = session.run(None, {"obs": OBS})
    np.testing.assert_array_equal(values.argmax(1), load_policy("run").act(OBS, explore=False))


def test_the_folder_of_the_file_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "run", "--out", "new/deep/policy.pt2"]) == 0
    assert Path("new/deep/policy.pt2").is_file()
    assert main(["export", "run", "--out", "run/best/manifest.json/policy.pt2"]) == 2
    assert "run/best/manifest.json cannot be made" in capsys.readouterr().err


class Clocked(gym.Env[Any, Any]):
    """An environment that shows a clock and a place."""

    observation_space = Dict(clock=Discrete(5), place=Box(-1, 1, (2,), np.float32))
    action_space = Discrete(2)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**kwargs)
        return {"clock": np.int64(0), "place": np.zeros(2, np.float32)}, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return {"clock": np.int64(1), "place": np.ones(2, np.float32)}, 1.0, True, False, {}


def test_inputs_of_several_parts_are_told_by_their_names_and_shapes(capsys) -> None:
    place = f"{__file__}:Clocked"
    with make_envs(place, 1) as envs:
        policy = DQN(envs.spec, DQNConfig(hidden=(8,)))
        run_step(mw.checkpoint(policy, "clocked/checkpoint", every=1))
    assert main(["export", "clocked/checkpoint", "--out", "clocked.pt2"]) == 0
    wrote = capsys.readouterr().out.splitlines()[-1]
    inputs = "it takes obs.clock, float32 [B, 5]; obs.place, float32 [B, 2]."
    assert wrote.endswith(
        f"{inputs} Its first argument is a dict of the parts of obs, in this order."
    )
    served = torch.export.load("clocked.pt2").module()
    assert served({"clock": torch.ones(3, 5), "place": torch.ones(3, 2)}).shape == (3, 2)


def test_the_newest_weights_may_be_written_for_torch() -> None:
    assert main(["export", "run", "--last", "--format", "torch"]) == 0
    values = torch.export.load("policy.pt2").module()(torch.from_numpy(OBS))
    expected = load_policy("run", last=True).act(OBS, explore=False)
    np.testing.assert_array_equal(values.argmax(1).numpy(), expected)

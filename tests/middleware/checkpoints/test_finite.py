"""Weights that are not finite: which of them keep a policy from being saved."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ding_lite import middleware as mw
from ding_lite.errors import NonFiniteError
from ding_lite.middleware.checkpoints.finite import not_finite
from ding_lite.rl.checkpoint.save_load import load_checkpoint
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.spec import EnvSpec
from ding_lite.runtime.context import Context
from tests.middleware.running import run_steps


def test_arrays_and_tensors_of_any_float_are_looked_at_and_single_numbers_are_not() -> None:
    bad = {"array": np.array([1.0, np.nan]), "half": torch.tensor([torch.inf]).bfloat16()}
    good = {"array": np.zeros(2), "whole": torch.tensor([3]), "schedule": np.inf, "text": "nan"}
    assert not_finite({"a": [bad, good]}) == [("a", 0, "array"), ("a", 0, "half")]


class Masked(torch.nn.Module):
    """A network with the mask of an attention: infinite from the beginning."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.mask: torch.Tensor
        self.register_buffer("mask", torch.full((3, 3), -torch.inf, dtype=torch.bfloat16).triu(1))
        self.last = torch.nn.Linear(4, 2)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(obs)
        return out


def test_an_infinite_buffer_is_saved_and_a_weight_that_becomes_so_is_not(envs, tmp_path) -> None:
    policy = DQN(envs.spec, DQNConfig(batch_size=8), network=Masked)

    def poison(ctx: Context) -> None:
        ctx.eval_value = ctx.total_step
        if ctx.total_step == 4:
            policy.load_weights({k: v + torch.inf for k, v in policy.weights().items()})

    with pytest.raises(NonFiniteError, match=r"'last.* no longer finite"):
        run_steps(
            poison,
            mw.checkpoint(policy, tmp_path / "all", every=2),
            mw.keep_best(policy, tmp_path / "best"),
            steps=10,
        )
    assert [load_checkpoint(tmp_path / name).meta["total_step"] for name in ("all", "best")] == [
        3,
        3,
    ]
    for name in ("all", "best"):
        policy.load_state_dict(load_checkpoint(tmp_path / name).state)

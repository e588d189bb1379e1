"""The losses of A2C, PPO and IMPALA of several members: each is that of the member alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite.rl import A2C, IMPALA, PPO
from ding_lite.rl.formulas.distributions import Categorical
from ding_lite.rl.formulas.policy_losses import Settings, Steps, actor_critic_loss
from ding_lite.rl.formulas.rows import Rows

CPU = torch.device("cpu")
SIZES = [7, 4]
KINDS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "a2c": (A2C, [{}, {}]),
    "ppo": (PPO, [{"clip": 0.2}, {"clip": 0.05}]),
    "impala": (IMPALA, [{"rho_clip": 1.0, "clip": None}, {"rho_clip": 2.0, "clip": 0.1}]),
}
CONFIGS: list[dict[str, Any]] = [
    {"value_coef": 0.5, "entropy_coef": 0.0, "normalize_advantage": True},
    {"value_coef": 0.1, "entropy_coef": 0.2, "normalize_advantage": False},
]


@pytest.mark.parametrize("name", KINDS)
def test_members_have_the_losses_and_gradients_that_each_has_alone(name: str) -> None:
    kind, more = KINDS[name]
    configs = [SimpleNamespace(**own, **of) for own, of in zip(CONFIGS, more, strict=True)]
    rng = np.random.default_rng(0)
    outputs, values = rng.normal(size=(2, 7, 3)), rng.normal(size=(2, 7))
    columns = [rng.integers(0, 3, (2, 7)), *rng.normal(size=(3, 2, 7)).astype(np.float32)]
    columns[2][1, 4:] = np.nan  # rows of no member count for nothing, whatever they hold

    def loss(settings: Settings, rows: Rows, which: Any) -> Any:
        own = [column[which].reshape(-1) for column in columns]
        outputs_MD = outputs[which].reshape(-1, 3).astype(np.float32)
        value_M = values[which].reshape(-1).astype(np.float32)
        steps = Steps(own[0], own[1], own[2], own[3])
        return actor_critic_loss(
            kind.policy_loss, rows, settings, Categorical(3), steps, outputs_MD, value_M
        )

    found, outputs_grad, value_grad = loss(
        Settings(configs, CPU), Rows(SIZES, [1.0, 1.0]), np.s_[:]
    )
    assert not np.isnan(outputs_grad).any()
    for member, (size, config) in enumerate(zip(SIZES, configs, strict=True)):
        alone, *grads = loss(Settings([config], CPU), Rows([size], [1.0]), np.s_[member, :size])
        for key, value_G in alone.items():
            assert found[key][member] == pytest.approx(value_G[0], abs=1e-5)
        for both, own in zip((outputs_grad, value_grad), grads, strict=True):
            of_member = both.reshape(2, 7, -1)[member]
            np.testing.assert_allclose(of_member[:size], own.reshape(size, -1), atol=1e-6)
            assert not of_member[size:].any()


def test_an_action_that_has_become_far_likelier_is_beyond_the_clip() -> None:
    log_ratio = np.full((1, 2), 200.0, np.float32)
    advantage = np.array([[2.0, 0.0]], np.float32)
    settings = Settings([SimpleNamespace(clip=0.2, normalize_advantage=False)], CPU)
    steps = Steps(None, -log_ratio, advantage, None)
    found = PPO.policy_loss(Rows([2], [1.0]), settings, steps, 0.0 * log_ratio)
    assert found.loss_G.tolist() == [pytest.approx(-1.2)]
    assert found.grad_GB.tolist() == [[0.0, 0.0]]

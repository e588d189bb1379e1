"""The gradient of Q-learning is that of autograd, for arrays and tensors, alone and as members."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ding_lite.rl.batch import Transitions
from ding_lite.rl.formulas.q_learning import LOSSES, best_values, q_gradient
from ding_lite.rl.formulas.rows import Rows

SIZES, GAMMAS, NUM_ACTIONS = (6, 4), (0.9, 0.5), 3


def drawn(rows: Rows) -> tuple[Transitions, list[np.ndarray]]:
    rng, size = np.random.default_rng(3), rows.num_rows
    batch = Transitions(
        obs=np.zeros((size, 1), np.float32),
        action=rng.integers(0, NUM_ACTIONS, size),
        reward=rng.normal(size=size).astype(np.float32) * 2,
        next_obs=np.zeros((size, 1), np.float32),
        terminated=rng.random(size) < 0.3,
        truncated=rng.random(size) < 0.3,
        num_steps=rng.integers(1, 4, size).astype(np.int32),
    )
    shape = (rows.count, rows.largest, NUM_ACTIONS)
    return batch, [rng.normal(size=shape).astype(np.float32) for _ in range(3)]


def by_autograd(member, batch, q_GBA, next_q_GB, loss, weight_GB):
    """Compute one member as users write it; return its loss and the gradient of its values."""
    size, first = SIZES[member], member * max(SIZES)
    of = {
        field.name: torch.as_tensor(getattr(batch, field.name)[first : first + size])
        for field in fields(Transitions)
    }
    q_BA = torch.tensor(q_GBA[member, :size], requires_grad=True)
    q_B = q_BA.gather(1, of["action"][:, None])[:, 0]
    going_on_B = (~of["terminated"]).float()
    discount_B = GAMMAS[member] ** of["num_steps"].float() * going_on_B
    target_B = of["reward"] + discount_B * torch.as_tensor(next_q_GB[member, :size])
    each_B = (F.huber_loss if loss == "huber" else F.mse_loss)(q_B, target_B, reduction="none")
    mean = (each_B * torch.as_tensor(weight_GB[member, :size])).mean()
    mean.backward()
    return mean.item(), q_BA.grad


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_the_gradient_of_each_member_is_that_of_autograd(loss: str) -> None:
    rows = Rows(SIZES, GAMMAS)
    batch, (q_GBA, next_q_GBA, rank_GBA) = drawn(rows)
    weight_GB = np.random.default_rng(0).random((2, 6)).astype(np.float32)
    next_q_GB = best_values(rows, next_q_GBA, rank_GBA)
    found = q_gradient(rows, batch, q_GBA, next_q_GB, LOSSES[loss], weight_GB)
    for member, size in enumerate(SIZES):
        mean, grad_BA = by_autograd(member, batch, q_GBA, next_q_GB, loss, weight_GB)
        assert found.loss_G[member] == pytest.approx(mean, rel=1e-5)
        np.testing.assert_allclose(found.grad_GBA[member, :size], grad_BA, rtol=1e-4, atol=1e-7)
        assert not found.grad_GBA[member, size:].any()


def test_the_best_legal_action_is_chosen_by_rank() -> None:
    rows = Rows([2], [1.0])
    value_GBA = np.array([[[1, 2, 3], [4, 5, 6]]], np.float32)
    mask_GBA = np.array([[[True, True, False], [True, True, True]]])
    assert best_values(rows, value_GBA, -value_GBA).tolist() == [[1, 4]]
    assert best_values(rows, value_GBA, value_GBA, mask_GBA).tolist() == [[2, 6]]

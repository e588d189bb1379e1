"""Products of distributions against torch's own: log-probabilities, entropies and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import distributions

from ding_lite.rl.formulas.distributions import (
    Bernoullis,
    Categorical,
    Gaussian,
    MultiCategorical,
    StateGaussian,
    legal_logits,
)

SIZES = [3, 2, 4]


def plain_choices(logits):
    """Make the log-probability and entropy of several choices, with torch's distributions."""
    parts = [distributions.Categorical(logits=part) for part in logits.split(SIZES, dim=1)]

    def log_prob(action):
        return sum(part.log_prob(action[:, i]) for i, part in enumerate(parts))

    return log_prob, sum(part.entropy() for part in parts)


def plain_flags(logits):
    """Make those of several flags."""
    flags = distributions.Independent(distributions.Bernoulli(logits=logits), 1)
    return flags.log_prob, flags.entropy()


KINDS = pytest.mark.parametrize(
    ("ours", "plain"),
    [(MultiCategorical(SIZES), plain_choices), (Bernoullis(5), plain_flags)],
    ids=["choices", "flags"],
)


@KINDS
def test_a_product_is_that_of_torch_and_so_is_its_gradient(ours, plain):
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=3.0, size=(7, ours.num_outputs)).astype(np.float32)
    action, drawn_log_prob = ours.draw(logits, rng)
    grad_B = rng.normal(size=7).astype(np.float32)
    likely = ours.likelihood(logits, action)
    grad = ours.backward(likely, grad_B, 0.3)

    theirs = torch.tensor(logits, requires_grad=True)
    log_prob, entropy = plain(theirs)
    expected = log_prob(torch.from_numpy(action).float())
    (expected @ torch.from_numpy(grad_B) + 0.3 * entropy.sum()).backward()
    np.testing.assert_allclose(likely.log_prob_B, expected.detach(), atol=1e-5)
    np.testing.assert_allclose(drawn_log_prob, likely.log_prob_B, atol=1e-5)
    np.testing.assert_allclose(likely.entropy_B, entropy.detach(), atol=1e-5)
    assert theirs.grad is not None
    np.testing.assert_allclose(grad, theirs.grad, atol=1e-5)
    assert action.dtype == np.int64
    assert {likely.log_prob_B.dtype, likely.entropy_B.dtype, grad.dtype} == {np.dtype(np.float32)}


@KINDS
def test_a_product_draws_as_often_as_its_probabilities_say(ours, plain):
    rng = np.random.default_rng(0)
    logits = np.repeat(rng.normal(size=(1, ours.num_outputs)).astype(np.float32), 20_000, axis=0)
    action, log_prob = ours.draw(logits, rng)
    for seen in np.unique(action, axis=0)[:6]:
        is_same = (action == seen).all(axis=1)
        assert is_same.mean() == pytest.approx(np.exp(log_prob[is_same][0]), abs=0.015)
    likeliest = ours.best(logits[:1])
    assert ours.likelihood(logits[:1], likeliest).log_prob_B[0] >= log_prob.max() - 1e-6


def test_actions_that_are_not_legal_have_no_probability_entropy_or_gradient():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(500, 4)).astype(np.float32)
    mask = rng.random((500, 4)) < 0.5
    mask[np.arange(500), rng.integers(4, size=500)] = True
    choice = Categorical(4)
    masked = legal_logits(logits, mask)
    action, log_prob = choice.draw(masked, rng)
    assert mask[np.arange(500), action].all()
    assert mask[np.arange(500), choice.best(masked)].all()

    likely = choice.likelihood(masked, action)
    grad = choice.backward(likely, np.ones(500, dtype=np.float32), 0.5)
    assert (grad[~mask] == 0.0).all()
    for row in range(20):  # as a choice among the legal ones alone
        legal = np.flatnonzero(mask[row])
        own = Categorical(len(legal))
        index = np.flatnonzero(legal == action[row])
        alone = own.likelihood(logits[row : row + 1, legal], index)
        np.testing.assert_allclose(likely.log_prob_B[row], alone.log_prob_B[0], atol=1e-5)
        np.testing.assert_allclose(log_prob[row], alone.log_prob_B[0], atol=1e-5)
        np.testing.assert_allclose(likely.entropy_B[row], alone.entropy_B[0], atol=1e-5)
        expected = own.backward(alone, np.ones(1, dtype=np.float32), 0.5)
        np.testing.assert_allclose(grad[row, legal], expected[0], atol=1e-5)


@pytest.mark.parametrize("entropy_grad", [0.0, 0.7])
def test_a_spread_that_depends_on_the_observation_is_that_of_torch(entropy_grad):
    space = Box(np.array([-1.0, 0.0], "f4"), np.array([3.0, np.inf], "f4"))
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(5, 4)).astype(np.float32)
    outputs[0, 2], outputs[1, 3] = 7.0, -30.0  # beyond what is used
    normal = StateGaussian(space)
    actions, log_prob = normal.draw(outputs[2:], rng)
    np.testing.assert_allclose(
        normal.likelihood(outputs[2:], actions).log_prob_B, log_prob, rtol=1e-4, atol=1e-5
    )
    actions = rng.normal(size=(5, 2)).astype(np.float32)
    actions[1, 1] = outputs[1, 1]  # 1e9 deviations away there is no gradient in float32
    pull = rng.normal(size=5).astype(np.float32)
    likely = normal.likelihood(outputs, actions)
    found = normal.backward(likely, pull, entropy_grad)

    given = torch.from_numpy(outputs).requires_grad_()
    mean, log_std = given.chunk(2, dim=1)
    unit, middle = torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.0])
    plain = torch.distributions.Independent(
        torch.distributions.Normal(middle + unit * mean, unit * log_std.clamp(-20, 2).exp()), 1
    )
    expected = plain.log_prob(torch.from_numpy(actions))
    total = (expected * torch.from_numpy(pull)).sum() + entropy_grad * plain.entropy().sum()
    total.backward()
    np.testing.assert_allclose(likely.log_prob_B, expected.detach(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(likely.entropy_B, plain.entropy().detach(), rtol=1e-4, atol=1e-4)
    assert given.grad is not None
    np.testing.assert_allclose(found, given.grad.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("low", "high", "middle"),
    [
        (-np.inf, np.inf, 0.0),
        (0.0, np.inf, 0.0),
        (5.0, np.inf, 6.0),
        (-np.inf, -5.0, -6.0),
        (-np.inf, 3.0, 0.0),
        (2.0, 4.0, 3.0),
        (2.0, 2.0, 2.0),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_normal_distribution_begins_within_any_bounds(low, high, middle, dtype):
    space = Box(low, high, (2,), dtype=dtype)
    normal = Gaussian(space, torch.zeros(2), torch.zeros(2))
    outputs = np.zeros((1, 2), dtype=np.float32)
    np.testing.assert_array_equal(normal.best(outputs), [[middle, middle]])
    far = normal.best(np.full((2, 2), 100.0, np.float32) * np.array([[1], [-1]], np.float32))
    assert space.contains(far[0].astype(dtype))
    assert space.contains(far[1].astype(dtype))

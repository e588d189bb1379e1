"""Advantages on arrays and on tensors: one formula, one result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays
from hypothesis.strategies import floats

from ding_lite.rl.formulas.advantages import (
    gae_of,
    normalized,
    normalized_by_rho,
    unweighted,
    vtrace_of,
)

NUMBERS = arrays(np.float32, (2, 9), elements=floats(-1.0, 1.0, width=32))
SETTINGS = settings(max_examples=100, deadline=None)


@SETTINGS
@given(NUMBERS)
def test_normalised_advantages_of_tensors_are_those_of_arrays(numbers):
    # Without any spread rounding errors would be all that there is to normalise.
    advantage_B = 50.0 * numbers[0] + np.linspace(-200.0, 200.0, 9, dtype=np.float32)
    rho_B = np.exp(numbers[1] - 1.0)
    found = normalized(torch.from_numpy(advantage_B.copy()))
    np.testing.assert_allclose(found, normalized(advantage_B), rtol=1e-3, atol=1e-3)
    for function in (normalized_by_rho, unweighted):
        tensors = (torch.from_numpy(each.copy()) for each in (rho_B * advantage_B, rho_B))
        expected = function(rho_B * advantage_B, rho_B)
        np.testing.assert_allclose(function(*tensors), expected, rtol=1e-3, atol=1e-3)


def test_normalised_advantages_have_mean_0_and_deviation_1():
    advantage_B = np.random.default_rng(0).normal(3.0, 5.0, 100).astype(np.float32)
    found = normalized(advantage_B)
    assert (found.mean(), found.std()) == pytest.approx((0.0, 1.0), abs=1e-5)
    assert normalized(np.ones(3, np.float32)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("of", [gae_of, vtrace_of])
def test_estimates_of_tensors_are_those_of_arrays(of):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(4, 17, 3)).astype(np.float32)
    numbers[0] = 0.9 * (rng.random((17, 3)) > 0.1)
    given_arrays = (*numbers, rng.random((17, 3)) < 0.1)
    more = {"gae_lambda": 0.9} if of is gae_of else {}
    if of is vtrace_of:
        given_arrays = (rng.normal(size=(17, 3)).astype(np.float32), *given_arrays)
    expected = of(given_arrays[-2])(*given_arrays, **more)
    tensors = [torch.from_numpy(array) for array in given_arrays]
    found = of(tensors[-2])(*tensors, **more)
    assert isinstance(found.target_TB, torch.Tensor)
    np.testing.assert_allclose(found.advantage_TB, expected.advantage_TB, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.target_TB, expected.target_TB, rtol=1e-4, atol=1e-4)

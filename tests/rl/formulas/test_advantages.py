"""Advantages on arrays and on tensors: one formula, one result."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import gae, vtrace
from ding_lite.rl.formulas.advantages import normalized, normalized_by_rho, unweighted
from ding_lite.rl.formulas.rows import Rows
from tests.rl import reference

NUMBERS = arrays(np.float32, (2, 9), elements=st.floats(-1.0, 1.0, width=32))


@given(NUMBERS)
def test_normalised_advantages_of_tensors_are_those_of_arrays(numbers):
    # Without any spread rounding errors would be all that there is to normalise.
    advantage_B = 50.0 * numbers[0] + np.linspace(-200.0, 200.0, 9, dtype=np.float32)
    rho_B = np.exp(numbers[1] - 1.0)
    rows, given = Rows([9], [1.0]), (rho_B * advantage_B)[None]
    there = Rows([9], [1.0])
    for name in ("_size_G", "_size_G1", "_ones"):
        setattr(there, name, torch.from_numpy(getattr(rows, name)))
    assert_close(
        normalized(there, torch.from_numpy(advantage_B[None])), normalized(rows, advantage_B[None])
    )
    tensors = torch.from_numpy(given), torch.from_numpy(rho_B[None])
    assert_close(normalized_by_rho(there, *tensors), normalized_by_rho(rows, given, rho_B[None]))
    assert_close(unweighted(*tensors), unweighted(given, rho_B[None]))


assert_close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3)


def test_normalised_advantages_of_each_member_have_mean_0_and_deviation_1():
    rows = Rows([100, 3], [1.0, 1.0])
    advantage_GB = np.full((2, 100), np.nan, np.float32)
    advantage_GB[0] = np.random.default_rng(0).normal(3.0, 5.0, 100)
    advantage_GB[1, :3] = 1.0
    found = normalized(rows, advantage_GB)
    assert (found[0].mean(), found[0].std()) == pytest.approx((0.0, 1.0), abs=1e-5)
    assert found[1, :3].tolist() == [0.0, 0.0, 0.0]


numbers = st.floats(-5.0, 5.0, width=32)


@st.composite
def trajectories(draw):
    """Draw T steps of B environments: log ratios, discounts, rewards, two values, truncated."""
    num_steps, num_envs = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    gamma = draw(st.sampled_from([0.0, 0.5, 0.99, 1.0]))
    count = num_steps * num_envs
    columns = [draw(st.lists(numbers, min_size=count, max_size=count)) for _ in range(4)]
    ends = draw(st.lists(st.sampled_from([0] * 6 + [1, 2, 3]), min_size=count, max_size=count))
    log_rho, reward, value, next_value = (
        np.array(column, dtype=np.float32).reshape(num_steps, num_envs) for column in columns
    )
    end = np.array(ends).reshape(num_steps, num_envs)
    goes_on = ~(((end & 1) > 0) | ((end & 2) > 0))[:-1]
    next_value[:-1][goes_on] = value[1:][goes_on]
    discount = np.float32(gamma) * ((end & 1) == 0)
    return log_rho, discount.astype(np.float32), reward, value, next_value, (end & 2) > 0


@given(trajectories(), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_gae_agrees_with_a_sum_for_each_step(data, gae_lambda):
    _, *columns = data
    found = gae(*columns, gae_lambda=gae_lambda)
    for env in range(columns[0].shape[1]):
        one = [column[:, env].tolist() for column in columns]
        expected = reference.gae(*one, gae_lambda=gae_lambda)
        np.testing.assert_allclose(found.advantage_TB[:, env], expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(found.target_TB, found.advantage_TB + columns[2])
    assert found.advantage_TB.dtype == found.target_TB.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_flags_may_be_numbers(dtype):
    one = column([1.0, 1.0, 1.0])
    cut = flags([0, 1, 0])
    for estimate in (partial(gae, gae_lambda=1.0), partial(vtrace, one)):
        found, expected = (estimate(one, one, 0 * one, one, c) for c in (cut.astype(dtype), cut))
        np.testing.assert_array_equal(found.target_TB, expected.target_TB)


@given(trajectories(), st.sampled_from([(1.0, 1.0), (2.0, 0.5), (np.inf, 1.0)]))
def test_vtrace_agrees_with_a_sum_of_products_for_each_step(data, clips):
    rho_clip, c_clip = clips
    found = vtrace(*data, rho_clip=rho_clip, c_clip=c_clip)
    for env in range(data[0].shape[1]):
        one = [column[:, env].tolist() for column in data]
        targets, advantages = reference.vtrace(*one, rho_clip=rho_clip, c_clip=c_clip)
        np.testing.assert_allclose(found.target_TB[:, env], targets, rtol=1e-3, atol=1e-2)
        np.testing.assert_allclose(found.advantage_TB[:, env], advantages, rtol=1e-3, atol=1e-2)
    assert found.advantage_TB.dtype == found.target_TB.dtype == np.float32


@given(trajectories())
def test_environments_with_settings_of_their_own_have_the_advantages_of_each_alone(data):
    num_envs = data[0].shape[1]
    lambdas = np.linspace(0.0, 1.0, num_envs, dtype=np.float32)
    rho_clips, c_clips = np.linspace(2.0, 3.0, num_envs), np.linspace(0.5, 1.5, num_envs)
    clips: dict[str, Any] = {
        "rho_clip": rho_clips.astype(np.float32),
        "c_clip": c_clips.astype(np.float32),
    }
    both = gae(*data[1:], gae_lambda=lambdas), vtrace(*data, **clips)
    for env in range(num_envs):
        own = [column[:, [env]] for column in data]
        of_env: dict[str, Any] = {name: float(each[env]) for name, each in clips.items()}
        alone = gae(*own[1:], gae_lambda=float(lambdas[env])), vtrace(*own, **of_env)
        for found, expected in zip(both, alone, strict=True):
            np.testing.assert_array_equal(found.advantage_TB[:, [env]], expected.advantage_TB)
            np.testing.assert_array_equal(found.target_TB[:, [env]], expected.target_TB)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@given(trajectories(), st.sampled_from([(1.0, 1.0), (2.0, 0.5), (np.inf, 1.0)]))
def test_on_device_formulas_agree_with_those_of_numpy(device, data, clips):
    rho_clip, c_clip = clips
    log_rho, *rest = (torch.from_numpy(column).to(device) for column in data)
    for found, expected in (
        (gae(*rest, gae_lambda=0.95), gae(*data[1:], gae_lambda=0.95)),
        (
            vtrace(log_rho, *rest, rho_clip=rho_clip, c_clip=c_clip),
            vtrace(*data, rho_clip=rho_clip, c_clip=c_clip),
        ),
    ):
        for name in ("advantage_TB", "target_TB"):
            tensor = getattr(found, name)
            assert tensor.device.type == device
            np.testing.assert_allclose(tensor.cpu(), getattr(expected, name), rtol=1e-3, atol=1e-2)
    for tensor, column in zip((log_rho, *rest), data, strict=True):
        np.testing.assert_array_equal(tensor.cpu(), column)  # what was given is as it was


def test_on_device_sums_reach_over_many_steps():
    one, no = torch.ones(1_000, 1), torch.zeros(1_000, 1, dtype=torch.bool)
    found = gae(one, one, 0 * one, 0 * one, no, gae_lambda=1.0)
    assert found.target_TB[:, 0].tolist() == list(range(1_000, 0, -1))


def test_huge_ratios_are_clipped_without_overflow():
    one = column([1.0, 1.0])
    found = vtrace(column([1e4, -1e4]), 0.5 * one, one, 0 * one, 0 * one, flags([0, 0]))
    assert found.target_TB[:, 0].tolist() == [1.0, 0.0]


def test_advantages_refuse_inputs_of_different_shapes():
    one = column([1.0, 1.0])
    row, no = torch.ones(1, 2), torch.zeros(2, 1, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"\(1, 2\), \(1, 2\), \(1, 2\), \(1, 2\), \(2, 1\)"):
        gae(row, row, row, row, no, gae_lambda=0.5)
    with pytest.raises(ShapeError, match=r"shapes \(2, 1\), \(2, 1\), \(2, 1\), \(1, 1\)"):
        gae(one, one, one, one[:1], flags([0, 0]), gae_lambda=0.5)
    with pytest.raises(ShapeError, match=r"are a list, a list, .* arrays were expected"):
        gae(*cast(Any, [[[1.0]]] * 5), gae_lambda=0.5)
    with pytest.raises(ShapeError, match=r"one shape \(steps, environments\)"):
        gae(*[one[:, 0]] * 5, gae_lambda=0.5)
    with pytest.raises(ConfigError, match=r"`gae_lambda` is 1.5"):
        gae(one, one, one, one, flags([0, 0]), gae_lambda=1.5)
    with pytest.raises(ConfigError, match=r"`rho_clip` is 0.5; it must be at least 1.0"):
        vtrace(one, one, one, one, one, flags([0, 0]), rho_clip=0.5)


def column(values):
    return np.array(values, dtype=np.float32)[:, None]


def flags(values):
    return np.array(values, dtype=np.bool_)[:, None]

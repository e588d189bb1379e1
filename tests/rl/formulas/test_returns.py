from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import NStep, Step, gae, gae_on_device, vtrace, vtrace_on_device
from ding_lite.rl.formulas.returns import bootstrapped_targets
from tests.rl import reference

rewards = st.floats(-10.0, 10.0, width=32)


@st.composite
def runs(draw):
    """Draw the steps of one or more environments: a list over time of a list over environments."""
    num_envs = draw(st.integers(1, 4))
    ends = st.sampled_from([(False, False)] * 4 + [(True, False), (False, True), (True, True)])
    one = st.tuples(rewards, ends)
    return draw(st.lists(st.lists(one, min_size=num_envs, max_size=num_envs), max_size=25))


def steps_of(run):
    """Make `Step`s with time and environment as observations."""
    steps = []
    for time, row in enumerate(run):
        num_envs = len(row)
        obs = np.array([[time, env] for env in range(num_envs)], dtype=np.float32)
        steps.append(
            Step(
                obs=obs,
                action=np.array([time * num_envs + env for env in range(num_envs)]),
                reward=np.array([reward for reward, _ in row], dtype=np.float32),
                next_obs=obs + 0.5,
                terminated=np.array([end[0] for _, end in row], dtype=np.bool_),
                truncated=np.array([end[1] for _, end in row], dtype=np.bool_),
            )
        )
    return steps


@given(runs(), st.integers(1, 5), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_n_step_agrees_with_looking_ahead_from_every_step(run, n, gamma):
    if not run:
        return
    num_envs = len(run[0])
    n_step = NStep(n, gamma, num_envs)
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(num_envs)]
    for step in steps_of(run):
        for row in reference.rows_of(n_step(step)):
            found[int(row[0][1])].append(row)

    for env in range(num_envs):
        plain = []
        for time, row in enumerate(run):
            reward, ending = row[env]
            obs, next_obs = (float(time), float(env)), (time + 0.5, env + 0.5)
            plain.append((obs, time * num_envs + env, reward, next_obs, *ending))
        expected = reference.n_step(plain, n=n, gamma=gamma)
        assert [row[:2] for row in found[env]] == [row[:2] for row in expected]
        assert [row[3:] for row in found[env]] == [row[3:] for row in expected]
        assert [row[2] for row in found[env]] == pytest.approx(
            [row[2] for row in expected], rel=1e-5, abs=1e-5
        )


def test_n_step_by_hand():
    n_step = NStep(3, 0.5, 1)
    run = [[(1.0, (False, False))], [(2.0, (False, False))], [(4.0, (False, False))]]
    run += [[(8.0, (False, True))], [(16.0, (False, False))]]
    rows = [reference.rows_of(n_step(step)) for step in steps_of(run)]

    assert rows[0] == rows[1] == rows[4] == []
    assert rows[2] == [((0.0, 0.0), 0, 1 + 1 + 1, (2.5, 0.5), False, False, 3)]
    assert rows[3] == [
        ((1.0, 0.0), 1, 2 + 2 + 2, (3.5, 0.5), False, True, 3),
        ((2.0, 0.0), 2, 4 + 4, (3.5, 0.5), False, True, 2),
        ((3.0, 0.0), 3, 8, (3.5, 0.5), False, True, 1),
    ]


def test_n_step_of_one_is_the_step_itself():
    step = steps_of([[(1.0, (True, False)), (2.0, (False, False))]])[0]
    transitions = NStep(1, 0.9, 2)(step)
    assert transitions.obs is step.obs
    assert transitions.next_obs is step.next_obs
    assert transitions.num_steps.tolist() == [1, 1]


def test_after_a_reset_nothing_is_pending():
    n_step = NStep(2, 0.9, 1)
    first, second, third = steps_of([[(1.0, (False, False))]] * 3)
    n_step(first)
    n_step.reset()
    assert len(n_step(second)) == 0
    assert reference.rows_of(n_step(third))[0][0] == (1.0, 0.0)


def test_pending_steps_of_a_reset_environment_are_dropped():
    before = NStep(2, 0.9, 2)
    first, second = steps_of([[(1.0, (False, False))] * 2] * 2)
    before(first)
    n_step = NStep(2, 0.9, 2)
    n_step.load_state_dict(before.state_dict())
    shown = first.next_obs.copy()
    shown[1] += 100.0
    n_step.drop_broken_off(shown)
    assert n_step(second).num_steps.tolist() == [2]  # that of the first environment alone


@given(run=runs(), n=st.integers(1, 5), gamma=st.floats(0.1, 1.0), cut=st.integers(0, 6))
def test_flushed_transitions_end_with_the_last_step(run, n, gamma, cut):
    """They are those of a run that was truncated there, but for the flag."""
    steps = list(steps_of(run))
    before, after = steps[:cut], steps[cut:]
    if not before:
        return
    num_envs = len(before[0])
    n_step, cut_off = NStep(n, gamma, num_envs), NStep(n, gamma, num_envs)
    for step in before[:-1]:
        n_step(step)
        cut_off(step)
    last = before[-1]
    handed_on = [n_step(last)] + [rest for rest in [n_step.flush()] if rest is not None]
    every_one_ends = Step(
        last.obs, last.action, last.reward, last.next_obs, last.terminated,
        np.ones_like(last.truncated),
    )  # fmt: skip
    expected = cut_off(every_one_ends)

    def rows(parts):
        return sorted(
            (*np.ravel(t.obs[i]), *np.ravel(t.next_obs[i]), float(t.reward[i]), int(t.num_steps[i]))
            for t in parts
            for i in range(len(t))
        )

    np.testing.assert_allclose(rows(handed_on), rows([expected]), rtol=1e-6)
    assert all(not t.truncated.any() for t in handed_on[1:])
    assert n_step.flush() is None
    fresh = NStep(n, gamma, num_envs)
    for step in after:  # it goes on as if it had just begun
        np.testing.assert_array_equal(n_step(step).num_steps, fresh(step).num_steps)


def test_n_step_refuses_invalid_arguments():
    with pytest.raises(ConfigError, match=r"`n` is 0.*`gamma` is 1.5"):
        NStep(0, 1.5, 1)
    with pytest.raises(ShapeError, match=r"2 environments came to an NStep of 3"):
        NStep(2, 0.9, 3)(steps_of([[(1.0, (False, False))] * 2])[0])


@given(
    st.lists(st.tuples(rewards, st.booleans(), st.integers(1, 9), rewards), min_size=1),
    st.floats(0.0, 1.0),
)
def test_targets_agree_with_adding_one_at_a_time(rows, gamma):
    reward, terminated, num_steps, next_value = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    targets = bootstrapped_targets(
        reward.astype(np.float32), terminated, num_steps, next_value.astype(np.float32), gamma=gamma
    )
    expected = reference.bootstrapped_targets(
        reward, terminated, num_steps, next_value, gamma=gamma
    )
    assert targets.dtype == np.float32
    np.testing.assert_allclose(targets, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("before", [0, 1, 7])
def test_a_resumed_n_step_goes_on_exactly(n, before):
    rng = np.random.default_rng(0)
    ends = [(False, False), (False, False), (True, False), (False, True)]
    run = [[(rng.normal(), ends[rng.integers(4)]) for _ in range(3)] for _ in range(20)]
    steps = steps_of(run)
    n_step, resumed = NStep(n, 0.9, 3), NStep(n, 0.9, 3)
    for step in steps[:before]:
        n_step(step)
    for step in steps[5:8]:
        resumed(step)
    resumed.load_state_dict(n_step.state_dict())
    for step in steps[before:]:
        np.testing.assert_equal(reference.rows_of(resumed(step)), reference.rows_of(n_step(step)))
    with pytest.raises(ShapeError, match=rf"\(n, num_envs\) = \({n}, 3\).*\(4, 3\)"):
        NStep(4, 0.9, 3).load_state_dict(n_step.state_dict())


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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@given(trajectories(), st.sampled_from([(1.0, 1.0), (2.0, 0.5), (np.inf, 1.0)]))
def test_on_device_formulas_agree_with_those_of_numpy(device, data, clips):
    rho_clip, c_clip = clips
    log_rho, *rest = (torch.from_numpy(column).to(device) for column in data)
    for found, expected in (
        (gae_on_device(*rest, gae_lambda=0.95), gae(*data[1:], gae_lambda=0.95)),
        (
            vtrace_on_device(log_rho, *rest, rho_clip=rho_clip, c_clip=c_clip),
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
    found = gae_on_device(one, one, 0 * one, 0 * one, no, gae_lambda=1.0)
    assert found.target_TB[:, 0].tolist() == list(range(1_000, 0, -1))


def test_gae_by_hand():
    discount, reward, value = column([0.5, 0.5, 0.0]), column([1, 1, 1]), column([0, 2, 4])
    found = gae(discount, reward, value, column([2, 4, 9]), flags([0, 0, 0]), gae_lambda=0.5)
    last = 1.0 - 4.0  # terminated: the 9 is worth nothing
    middle = 1.0 + 0.5 * 4.0 - 2.0 + 0.25 * last
    first = 1.0 + 0.5 * 2.0 - 0.0 + 0.25 * middle
    assert found.advantage_TB[:, 0].tolist() == [first, middle, last]


def test_a_truncated_step_bootstraps_from_its_last_observation():
    steps = column([0.5] * 3), column([1, 1, 1]), column([0, 0, 100]), column([0, 8, 0])
    cut = flags([0, 1, 0])
    for found in (gae(*steps, cut, gae_lambda=1.0), vtrace(column([0] * 3), *steps, cut)):
        assert found.target_TB[:, 0].tolist() == [1 + 0.5 * (1 + 0.5 * 8), 1 + 0.5 * 8, 1]


def test_with_equal_policies_vtrace_is_gae_with_lambda_one():
    rng = np.random.default_rng(0)
    reward, value, next_value = rng.normal(size=(3, 20, 3)).astype(np.float32)
    discount, cut = column([0.9] * 20).repeat(3, axis=1), rng.random((20, 3)) < 0.1
    left = gae(discount, reward, value, next_value, cut, gae_lambda=1.0)
    right = vtrace(0 * discount, discount, reward, value, next_value, cut)
    np.testing.assert_allclose(left.target_TB, right.target_TB, rtol=1e-5, atol=1e-5)


def test_huge_ratios_are_clipped_without_overflow():
    one = column([1.0, 1.0])
    found = vtrace(column([1e4, -1e4]), 0.5 * one, one, 0 * one, 0 * one, flags([0, 0]))
    assert found.target_TB[:, 0].tolist() == [1.0, 0.0]


def test_advantages_refuse_inputs_of_different_shapes():
    one = column([1.0, 1.0])
    row, no = torch.ones(1, 2), torch.zeros(2, 1, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"\(1, 2\), \(1, 2\), \(1, 2\), \(1, 2\), \(2, 1\)"):
        gae_on_device(row, row, row, row, no, gae_lambda=0.5)
    with pytest.raises(ConfigError, match=r"`rho_clip` is 0.5; it must be at least 1.0"):
        vtrace_on_device(row, row, row, row, row, row > 1, rho_clip=0.5)
    with pytest.raises(ShapeError, match=r"shapes \(2, 1\), \(2, 1\), \(2, 1\), \(1, 1\)"):
        gae(one, one, one, one[:1], flags([0, 0]), gae_lambda=0.5)
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

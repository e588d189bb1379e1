from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import NStep, Step
from ding_lite.rl.formulas.returns import (
    RESCALE_EPSILON,
    bootstrapped_targets,
    rescaled,
    sequence_targets,
    unscaled,
)
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


def test_after_a_reset_nothing_is_pending():
    n_step = NStep(2, 0.9, 1)
    first, second, third = steps_of([[(1.0, (False, False))]] * 3)
    n_step(first)
    n_step.reset()
    assert len(n_step(second)) == 0
    assert reference.rows_of(n_step(third))[0][0] == (1.0, 0.0)


def test_pending_steps_of_a_reset_environment_end_there():
    before = NStep(2, 0.9, 2)
    first, second = steps_of([[(1.0, (False, False))] * 2] * 2)
    before(first)
    n_step = NStep(2, 0.9, 2)
    n_step.load_state_dict(before.state_dict())
    shown = first.next_obs.copy()
    shown[1] += 100.0
    rest = n_step.flush(shown)
    assert rest is not None
    np.testing.assert_array_equal(rest.next_obs, first.next_obs[1:])
    assert n_step.flush(shown) is None
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


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("terminated", np.zeros(2, np.int64), "`terminated` of Step is int64; .* bools was"),
        ("truncated", np.zeros(2, np.float32), "`truncated` of Step is float32; .* bools"),
        ("terminated", [False, False], "`terminated` of Step is a list; .* bools"),
        ("reward", np.zeros((2, 1), np.float32), r"`reward` \(2, 1\), .*`terminated` \(2,\)"),
        ("reward", [0.0, 0.0], r"`reward` a list, .*`terminated` \(2,\)"),
    ],
)
def test_the_ends_of_a_step_are_bools_one_for_each_reward(field, value, message):
    [step] = steps_of([[(1.0, (False, False))] * 2])
    with pytest.raises(ShapeError, match=message):
        replace(step, **{field: value})
    transitions = NStep(1, 0.9, 2)(step)
    with pytest.raises(ShapeError, match=message.replace("Step", "Transitions")):
        replace(transitions, **{field: value})


@pytest.mark.parametrize("field", ["obs", "action", "next_obs", "num_steps"])
def test_each_part_of_transitions_has_a_row_for_each_reward(field):
    [step] = steps_of([[(1.0, (False, False))] * 2])
    transitions = NStep(1, 0.9, 2)(step)
    value = getattr(transitions, field)
    with pytest.raises(ShapeError, match=rf"`{field}` \(1.* a row for each reward"):
        replace(transitions, **{field: value[:1]})


def test_n_step_refuses_invalid_arguments():
    with pytest.raises(ConfigError, match=r"`n` is 2.5.*`gamma` is 1.5"):
        NStep(2.5, 1.5, 1)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"2 environments came to an NStep of 3"):
        NStep(2, 0.9, 3)(steps_of([[(1.0, (False, False))] * 2])[0])
    [step] = steps_of([[(1.0, (False, False))]])
    with pytest.raises(ConfigError, match="`obs` of the step is a Tensor; arrays were expected"):
        NStep(2, 0.9, 1)(replace(step, obs=torch.from_numpy(step.obs)))


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


@pytest.mark.parametrize(("n_step", "gamma"), [(1, 0.9), (3, 0.9), (3, 0.0), (20, 1.0)])
def test_targets_are_sums_within_the_sequence(n_step, gamma):
    rng, count = np.random.default_rng(0), 20
    reward, value = rng.normal(size=(count, 7)), rng.normal(size=(count, 8))
    length = rng.integers(1, 8, size=count)
    mask = np.arange(7) < length[:, None]
    terminated = (np.arange(7) == length[:, None] - 1) & (rng.random((count, 1)) < 0.5)
    found = sequence_targets(
        *map(torch.from_numpy, (reward * mask, terminated, mask, value)), gamma=gamma, n_step=n_step
    )
    assert found.isfinite().all()  # of steps that do not exist, too: a mask multiplies them by 0
    for row in range(count):
        for time in range(length[row]):
            end = min(time + n_step, length[row])
            goal = sum(gamma ** (k - time) * reward[row, k] for k in range(time, end))
            if not terminated[row, end - 1]:
                goal += gamma ** (end - time) * value[row, end]
            assert float(found[row, time]) == pytest.approx(goal, abs=1e-6)


def test_rescaling_is_undone_and_grows_like_a_square_root():
    value = torch.tensor([-1e4, -3.0, -1e-3, 0.0, 0.5, 80.0, 1e5], dtype=torch.float64)
    torch.testing.assert_close(unscaled(rescaled(value)), value, rtol=1e-6, atol=1e-9)
    assert float(rescaled(torch.tensor(99.0))) == pytest.approx(9.0 + 0.099)
    short, exact = value.float(), value.float().double()
    e = RESCALE_EPSILON
    by_definition = exact.sign() * ((exact.abs() + 1.0).sqrt() - 1.0) + e * exact
    torch.testing.assert_close(rescaled(short).double(), by_definition, rtol=1e-6, atol=0.0)
    s = ((1.0 + 4.0 * e * (exact.abs() + 1.0 + e)).sqrt() - 1.0) / (2.0 * e)
    by_definition = exact.sign() * (s.square() - 1.0)
    torch.testing.assert_close(unscaled(short).double(), by_definition, rtol=1e-6, atol=0.0)

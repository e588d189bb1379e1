import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from ding_lite.errors import CheckpointError, ConfigError, ShapeError
from ding_lite.rl import RolloutBuffer, Step, load_checkpoint, make_envs, save_checkpoint
from ding_lite.rl.batch import RolloutBatch
from tests.rl import reference

SPEC = make_envs("CartPole-v1", 1).spec


def step_of(rng, num_envs, ends=0.2):
    """Draw a step; half the value of an observation is its first number."""
    obs, next_obs = rng.normal(size=(2, num_envs, 4)).astype(np.float32)
    reward = rng.normal(size=num_envs).astype(np.float32)
    terminated, truncated = rng.random((2, num_envs)) < ends
    return Step(obs, rng.integers(0, 2, num_envs), reward, next_obs, terminated, truncated)


def value_of(obs):
    return 2.0 * obs[:, 0]


def play(rollout, steps, rng):
    """Add steps that follow from each other, as an environment's do; return them."""
    played = []
    previous = None
    for _ in range(steps):
        step = step_of(rng, rollout.num_envs)
        if previous is not None:
            done = previous.terminated | previous.truncated
            step.obs[~done] = previous.next_obs[~done]
        log_prob = rng.normal(size=rollout.num_envs).astype(np.float32)
        rollout.add(step, value=value_of(step.obs), log_prob=log_prob)
        played.append((step, log_prob))
        previous = step
    return played


def rows_of(batches):
    """Split batches into a row of plain values by observation."""
    rows = {}
    for batch in batches:
        columns = [np.asarray(getattr(batch, name)) for name in RolloutBatch.__match_args__]
        for obs, *row in zip(*columns, strict=True):
            assert tuple(obs.tolist()) not in rows
            rows[tuple(obs.tolist())] = [float(value) for value in row]
    return rows


@given(
    st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**32), st.integers(1, 50), st.booleans()
)
def test_each_epoch_has_every_step_once_with_its_advantage(
    num_envs, num_steps, seed, batch_size, early
):
    rollout = RolloutBuffer(SPEC, num_envs=num_envs, num_steps=num_steps + early, gae_lambda=0.9)
    played = play(rollout, num_steps, np.random.default_rng(seed))
    assert rollout.is_full is not early
    asked = []

    def values_of(obs):
        asked.append(len(obs))
        return torch.from_numpy(value_of(obs))

    rollout.finish(values_of)
    num_cut = sum(int((step.truncated & ~step.terminated).sum()) for step, _ in played)
    assert asked == [num_envs + num_cut]  # once, and only of observations without a value
    rows = rows_of(rollout.minibatches(batch_size))

    assert len(rows) == len(rollout) == num_envs * num_steps
    for env in range(num_envs):
        steps = [step for step, _ in played]
        expected = reference.gae(
            [0.0 if step.terminated[env] else 0.99 for step in steps],
            [float(step.reward[env]) for step in steps],
            [float(value_of(step.obs)[env]) for step in steps],
            [float(value_of(step.next_obs)[env]) for step in steps],
            [bool(step.truncated[env]) for step in steps],
            gae_lambda=0.9,
        )
        for (step, log_prob), advantage in zip(played, expected, strict=True):
            action, found_log_prob, value, *found = rows[tuple(step.obs[env].tolist())]
            assert (action, found_log_prob) == (step.action[env], log_prob[env])
            assert value == value_of(step.obs)[env]
            assert found == pytest.approx([advantage, advantage + value], rel=1e-4, abs=1e-4)


def test_each_epoch_is_shuffled_by_the_seed():
    def orders(seed):
        rollout = RolloutBuffer(SPEC, num_envs=4, num_steps=8, seed=seed)
        play(rollout, 8, np.random.default_rng(0))
        rollout.finish(value_of)
        batches = [batch.obs[:, 0].tolist() for batch in rollout.minibatches(16, epochs=2)]
        return batches[0] + batches[1], batches[2] + batches[3]

    first, second = orders(0)
    assert (first, second) == orders(0) != orders(1)
    assert first != second
    assert sorted(first) == sorted(second)


def test_calls_in_the_wrong_order_are_refused_and_rounds_follow_each_other():
    rollout, rng = RolloutBuffer(SPEC, num_envs=2, num_steps=2), np.random.default_rng(0)
    with pytest.raises(ConfigError, match="no step yet"):
        rollout.finish(value_of)
    play(rollout, 2, rng)
    with pytest.raises(ConfigError, match="This round is not finished"):
        rollout.minibatches(4)
    with pytest.raises(ConfigError, match="has its 2 steps already"):
        play(rollout, 1, rng)
    rollout.clear()
    assert len(rollout) == 0
    rounds = []
    for _ in range(2):
        play(rollout, 2, rng)
        rollout.finish(value_of)
        rounds.append(rows_of(rollout.minibatches(6)))
    assert len(rounds[0]) == len(rounds[1]) == 4
    assert not rounds[0].keys() & rounds[1].keys()
    with pytest.raises(ConfigError, match="`batch_size` is 0"):
        rollout.minibatches(0)


def test_there_is_one_value_for_each_observation():
    rollout, rng = RolloutBuffer(SPEC, num_envs=2, num_steps=2), np.random.default_rng(0)
    play(rollout, 2, rng)
    for wrong in (lambda obs: np.zeros((len(obs), 2)), lambda obs: np.zeros(len(obs) - 1)):
        with pytest.raises(ShapeError, match=r"`value_of` returned .* \(\d,\) was"):
            rollout.finish(wrong)
    rollout.finish(lambda obs: torch.zeros(len(obs), 1, requires_grad=True))


def test_the_last_observations_are_those_of_the_step_also_if_its_array_is_reused():
    rollout = RolloutBuffer(SPEC, num_envs=2, num_steps=1)
    step = step_of(np.random.default_rng(0), 2, ends=0.0)
    rollout.add(step, value=np.zeros(2), log_prob=np.zeros(2))
    seen, expected = [], step.next_obs.copy()
    step.next_obs[:] = 9.0
    rollout.finish(lambda obs: seen.append(obs) or np.zeros(len(obs)))
    np.testing.assert_array_equal(seen, [expected])


def test_steps_of_other_environments_are_refused():
    rollout, rng = RolloutBuffer(SPEC, num_envs=2, num_steps=2), np.random.default_rng(0)
    zeros = np.zeros(2, np.float32)
    with pytest.raises(ShapeError, match=r"`obs` has shape \(3, 4\); 2 environments of CartPole"):
        rollout.add(step_of(rng, 3), value=zeros, log_prob=zeros)
    with pytest.raises(ShapeError, match=r"`log_prob` has shape \(2, 1\)"):
        rollout.add(step_of(rng, 2), value=zeros, log_prob=zeros[:, None])
    assert len(rollout) == 0


def test_settings_out_of_range_and_too_much_memory_are_refused():
    with pytest.raises(ConfigError, match=r"`num_steps` is 0.*`gae_lambda` is 1.5"):
        RolloutBuffer(SPEC, num_envs=2, num_steps=0, gae_lambda=1.5)
    told = r"A rollout buffer for .* of CartPole-v1 with `num_steps` .* GB of memory"
    with pytest.raises(ConfigError, match=told):
        RolloutBuffer(SPEC, num_envs=2, num_steps=10**13)
    rollout = RolloutBuffer(SPEC, num_envs=2, num_steps=10)
    assert rollout.memory_bytes == 2 * 10 * (4 * 4 + 8 + 5 * 4 + 2)


@pytest.mark.parametrize("steps", [0, 4, 6])
def test_a_resumed_round_goes_on_bit_for_bit(tmp_path, steps):
    first, second = (RolloutBuffer(SPEC, num_envs=3, num_steps=6) for _ in range(2))
    play(first, steps, np.random.default_rng(0))
    if steps == 6:
        first.finish(value_of)
    save_checkpoint(tmp_path, first.state_dict())
    second.load_state_dict(load_checkpoint(tmp_path).state)
    found = []
    for rollout in (first, second):
        if steps < 6:
            play(rollout, 6 - steps, np.random.default_rng(1))
            rollout.finish(value_of)
        found.append([*rollout.minibatches(5)])
    for left, right in zip(*found, strict=True):
        for name in RolloutBatch.__match_args__:
            torch.testing.assert_close(getattr(left, name), getattr(right, name), rtol=0, atol=0)


def test_the_state_of_another_buffer_is_refused():
    rollout = RolloutBuffer(SPEC, num_envs=2, num_steps=3)
    play(rollout, 3, np.random.default_rng(0))
    with pytest.raises(CheckpointError, match="The saved `obs` has shape"):
        RolloutBuffer(SPEC, num_envs=3, num_steps=3).load_state_dict(rollout.state_dict())
    with pytest.raises(CheckpointError, match="no state of a RolloutBuffer"):
        rollout.load_state_dict({})

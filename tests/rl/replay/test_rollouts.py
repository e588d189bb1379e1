"""Rollouts: checks, joining, encoding, and the values of next observations."""

from dataclasses import replace

import numpy as np
import pytest

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.parallel.wire.codec import decode, encode
from ding_lite.rl import A2C, IMPALA, PPO, Rollout, make_envs
from ding_lite.rl.replay.rollouts import join_rollouts, merged, next_values, unseen_obs
from tests.rl.rollouts import CARTPOLE, PENDULUM, draw_rollout

FIELDS = Rollout.__slots__


@pytest.mark.parametrize(
    ("policy", "env_id", "num_envs"),
    [(A2C, "CartPole-v1", 40), (PPO, "Pendulum-v1", 40), (IMPALA, "ding_lite/Catch-v0", 4)],
)
def test_a_decoded_rollout_gives_the_same_update(policy, env_id, num_envs):
    """Arrays of decoded rollouts are read-only."""
    with make_envs(env_id, 1) as envs:
        here, there = policy(envs.spec), policy(envs.spec)
    rollout = draw_rollout(0, here.spec, num_steps=50, num_envs=num_envs)
    encoded = encode(rollout)
    received = decode(encoded.meta, [memoryview(bytes(buffer)) for buffer in encoded.buffers])
    assert not received.obs.flags.writeable
    assert here.learn([rollout]) == there.learn([received])
    assert here.learn([rollout, rollout]) == there.learn([received, received])


def test_joined_rollouts_are_concatenated_by_environment():
    rollouts = [
        draw_rollout(x, CARTPOLE, num_envs=n, version=9 - x) for x, n in enumerate((2, 3, 1))
    ]
    together = join_rollouts(rollouts, CARTPOLE)
    assert (together.num_steps, together.num_envs, together.version) == (5, 6, 7)
    assert len(together) == 30
    assert np.shares_memory(merged(together.obs), together.obs)
    start = 0
    for rollout in rollouts:
        mine = slice(start, start + rollout.num_envs)
        for name in ("obs", "action", "reward", "terminated", "truncated", "log_prob"):
            np.testing.assert_array_equal(getattr(together, name)[:, mine], getattr(rollout, name))
        np.testing.assert_array_equal(together.last_obs[mine], rollout.last_obs)
        start += rollout.num_envs
    assert len(together.cut_obs) == sum(len(rollout.cut_obs) for rollout in rollouts) > 0
    join_rollouts([together], CARTPOLE)  # its own checks pass


def test_next_values_follow_the_next_step_the_episode_end_or_the_last_obs():
    rollouts = [draw_rollout(x, CARTPOLE, num_steps=9, num_envs=4) for x in range(3)]
    together = join_rollouts(rollouts, CARTPOLE)

    def value_of(obs):
        return obs.sum(axis=-1)

    found = next_values(together, value_of(together.obs), value_of(unseen_obs(together)))
    ends = zip(together.cut_time, together.cut_env, together.cut_obs, strict=True)
    cut = {(time, env): obs for time, env, obs in ends}
    for time, env in np.ndindex(together.num_steps, together.num_envs):
        after = together.last_obs if time == 8 else together.obs[time + 1]
        expected = cut.get((time, env), after[env])
        assert found[time, env] == pytest.approx(value_of(expected), rel=1e-5)
    assert cut


def test_no_rollouts_and_rollouts_of_several_lengths_are_refused():
    with pytest.raises(ConfigError, match="no rollout to learn from"):
        join_rollouts([], CARTPOLE)
    rollouts = [draw_rollout(0, CARTPOLE, num_steps=steps) for steps in (4, 5)]
    with pytest.raises(ShapeError, match=r"have \[4, 5\] steps; one length was expected"):
        join_rollouts(rollouts, CARTPOLE)


@pytest.mark.parametrize("name", [n for n in FIELDS if n not in ("version", "state")])
def test_a_field_of_another_shape_is_refused_by_name(name):
    rollout = draw_rollout(0, CARTPOLE)
    array = getattr(rollout, name)
    for wrong in (array[..., None], array[:0]):
        with pytest.raises(ShapeError, match=r"rollout"):
            join_rollouts([replace(rollout, **{name: wrong})], CARTPOLE)


def test_states_of_a_policy_with_memory_are_joined_and_checked():
    state = np.arange(6, dtype=np.float32).reshape(3, 2)
    rollout = replace(draw_rollout(0, CARTPOLE), state=state)
    joined = join_rollouts([rollout, rollout], CARTPOLE, state_size=2)
    np.testing.assert_array_equal(joined.state, np.concatenate((state, state)))
    for wrong in (state[:2], state[:, :1], None):
        with pytest.raises(ShapeError, match="`state` of a rollout has shape"):
            join_rollouts([replace(rollout, state=wrong)], CARTPOLE, state_size=2)


def test_rollouts_of_other_environments_are_refused():
    with pytest.raises(ShapeError, match=r"`obs` of a rollout has shape \(5, 3, 3\).*CartPole-v1"):
        join_rollouts([draw_rollout(0, PENDULUM)], CARTPOLE)
    rollout = draw_rollout(0, CARTPOLE)
    for name in ("obs", "last_obs", "cut_obs"):
        wrong = replace(rollout, **{name: getattr(rollout, name).astype(np.float64)})
        with pytest.raises(ShapeError, match=f"`{name}` .* type float64; .* are float32"):
            join_rollouts([wrong], CARTPOLE)


def test_contradictory_episode_ends_are_refused():
    rollout = draw_rollout(0, CARTPOLE)
    assert len(rollout.cut_time) > 1
    for fault in (
        {"truncated": ~rollout.truncated},
        {"cut_time": rollout.cut_time + 99},
        {"cut_env": rollout.cut_env - 1},
        {"cut_time": rollout.cut_time[::-1].copy(), "cut_env": rollout.cut_env * 0},
    ):
        with pytest.raises(ShapeError, match="episodes that were cut off"):
            join_rollouts([replace(rollout, **fault)], CARTPOLE)

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import EnvSpec, Replay, ReplayBuffer, Transitions, make_envs
from ding_lite.rl.batch import to_numpy
from tests.rl import reference

SPEC = make_envs("CartPole-v1", 1).spec


def transitions(numbers):
    """Make transitions that can be told apart by their number."""
    number_B = np.array(numbers)
    obs = np.repeat(number_B[:, None], 4, axis=1).astype(np.float32)
    return Transitions(
        obs=obs,
        action=number_B % 2,
        reward=number_B.astype(np.float32) / 8,
        next_obs=obs + 0.5,
        terminated=number_B % 3 == 0,
        truncated=number_B % 5 == 0,
        num_steps=(number_B % 4 + 1).astype(np.int32),
    )


@given(st.integers(1, 12), st.lists(st.integers(0, 30), max_size=12), st.integers(0, 2**32))
def test_it_holds_what_a_queue_of_that_length_holds(capacity, sizes, seed):
    replay, queue = (
        ReplayBuffer(SPEC, capacity=capacity, seed=seed),
        reference.PlainReplay(capacity),
    )
    start = 0
    for size in sizes:
        batch = transitions(range(start, start + size))
        replay.add(batch)
        queue.add(reference.rows_of(batch))
        start += size

    assert len(replay) == len(queue.queue)
    if not queue.queue:
        return
    sampled = set()
    for _ in range(60):
        sampled |= set(reference.rows_of(replay.sample(len(replay))))
    assert sampled <= set(queue.queue)
    if len(replay) <= 4:
        assert sampled == set(queue.queue)


def test_every_transition_is_equally_likely():
    replay = ReplayBuffer(SPEC, capacity=10)
    replay.add(transitions(range(15)))
    drawn = np.concatenate([to_numpy(replay.sample(10).obs)[:, 0] for _ in range(2_000)])
    numbers, counts = np.unique(drawn, return_counts=True)
    assert numbers.tolist() == list(range(5, 15))
    assert counts == pytest.approx(np.full(10, 2_000), abs=6 * np.sqrt(2_000 * 0.9))


def test_samples_follow_the_seed():
    def draw(seed):
        replay = ReplayBuffer(SPEC, capacity=100, seed=seed)
        replay.add(transitions(range(100)))
        return [replay.sample(20).reward.tolist() for _ in range(3)]

    assert draw(0) == draw(0) != draw(1)


def test_a_sample_has_memory_of_its_own():
    replay = ReplayBuffer(SPEC, capacity=4)
    replay.add(transitions([7] * 4))
    sample = replay.sample(4)
    replay.add(transitions([9] * 4))
    assert sample.obs.tolist() == [[7.0] * 4] * 4
    assert isinstance(sample.obs, torch.Tensor)
    assert sample.action.dtype == torch.int64


def test_memory_is_told_before_it_is_taken():
    replay = ReplayBuffer(SPEC, capacity=1_000)
    assert replay.memory_bytes == 1_000 * (2 * 4 * 4 + 8 + 4 + 1 + 1 + 4)
    assert len(replay) == 0
    with pytest.raises(ConfigError, match=r"50,000,000,000,000.* needs .* GB .* At most"):
        ReplayBuffer(SPEC, capacity=50_000_000_000_000)


def test_more_than_it_holds_cannot_be_sampled():
    replay = ReplayBuffer(SPEC, capacity=100)
    with pytest.raises(ConfigError, match=r"`batch_size` is 8.* holds 0"):
        replay.sample(8)
    replay.add(transitions(range(5)))
    with pytest.raises(ConfigError, match=r"`batch_size` is 8.* holds 5"):
        replay.sample(8)
    with pytest.raises(ConfigError, match=r"`batch_size` is 0"):
        replay.sample(0)


def test_transitions_that_do_not_fit_change_nothing():
    replay = ReplayBuffer(SPEC, capacity=5)
    replay.add(transitions(range(5)))
    before = set(reference.rows_of(replay.sample(5))) | set(reference.rows_of(replay.sample(5)))
    wrong = transitions(range(50, 53))
    with pytest.raises(ShapeError, match=r"`transitions.num_steps` has shape \(2,\)"):
        replay.add(replace(wrong, num_steps=wrong.num_steps[:2]))
    drawn = [row for _ in range(20) for row in reference.rows_of(replay.sample(5))]
    assert before <= set(drawn)
    assert {row[0][0] for row in drawn} == {0.0, 1.0, 2.0, 3.0, 4.0}


def test_transitions_of_another_environment_are_refused():
    replay = ReplayBuffer(SPEC, capacity=100)
    pendulum = make_envs("Pendulum-v1", 1).spec
    assert isinstance(pendulum, EnvSpec)
    with pytest.raises(ShapeError, match=r"`transitions.obs` has shape \(5, 4\).*\(5, 3\)"):
        ReplayBuffer(pendulum, capacity=100).add(transitions(range(5)))
    with pytest.raises(ConfigError, match=r"`capacity` is 0"):
        ReplayBuffer(SPEC, capacity=0)
    assert isinstance(replay, Replay)

import logging
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from ding_lite.errors import CheckpointError, ShapeError
from ding_lite.rl import (
    EnvSpec,
    NStep,
    PrioritizedReplay,
    ReplayBuffer,
    Step,
    Transitions,
    load_checkpoint,
    save_checkpoint,
)
from ding_lite.rl.batch import to_numpy
from ding_lite.rl.replay.frames import Frames

SHAPE = (6, 5)  # 30 bytes: not a multiple of the 8 that are compared at once


def spec_of(stack, *, shape=SHAPE, dtype=np.uint8):
    high = 255 if dtype == np.uint8 else np.inf
    space = Box(0, high, shape, dtype=dtype)
    return EnvSpec(env_id="x", obs_space=space, action_space=Discrete(4), frame_stack=stack)


class Screens:
    """Several environments that show random pictures, in stacks, for episodes of random length."""

    def __init__(self, spec, num_envs, *, seed=0, episode_length=30.0, num_pictures=None):
        self.rng = np.random.default_rng(seed)
        self.spec, self.num_envs, self.episode_length = spec, num_envs, episode_length
        self.few: Any = None
        self.few = None if num_pictures is None else self.picture(num_pictures)
        self.obs = np.concatenate([self.picture(num_envs)] * spec.frame_stack, axis=1)

    def picture(self, count):
        """Draw new pictures, or old ones if there are only a few."""
        if self.few is not None:
            return self.few[self.rng.integers(0, len(self.few), size=count)]
        pictures = self.rng.integers(0, 255, (count, *self.spec.frame_shape))
        return pictures.astype(self.spec.obs_dtype)

    def step(self):
        obs, new = self.obs, self.picture(self.num_envs)
        next_obs = np.concatenate((obs[:, new.shape[1] :], new), axis=1)
        ends = self.rng.random((2, self.num_envs)) < 0.5 / self.episode_length
        done = ends[0] | ends[1]
        self.obs = next_obs.copy()
        begin = np.concatenate([self.picture(self.num_envs)] * self.spec.frame_stack, axis=1)
        self.obs[done] = begin[done]
        reward = self.rng.random(self.num_envs).astype(np.float32)
        return Step(obs, np.zeros(self.num_envs, np.int64), reward, next_obs, *ends)


def assert_holds(replay, given):
    """Compare sampled transitions with those added under the same serial."""
    for _ in range(5):
        batch = replay.sample(min(len(replay), 100))
        for field in fields(Transitions):
            expected = np.stack([given[serial][field.name] for serial in batch.serial.tolist()])
            assert np.array_equal(to_numpy(getattr(batch, field.name)), expected), field.name


def collect(replay, screens, steps, *, n=1, given=None):
    """Add the transitions of some env steps, and record each by its serial."""
    given = [] if given is None else given
    n_step = NStep(n, 0.9, screens.num_envs)
    for _ in range(steps):
        add(replay, n_step(screens.step()), given)
    return given


def add(replay, transitions, given):
    replay.add(transitions)
    for row in range(len(transitions)):
        given.append({f.name: getattr(transitions, f.name)[row] for f in fields(Transitions)})


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("num_envs", [1, 5])
@pytest.mark.parametrize(
    ("stack", "shape", "dtype"),
    [
        *((1, SHAPE, np.uint8), (4, SHAPE, np.uint8), (4, (2, 3), np.float32)),
        *((2, (3, 8, 8), np.uint8), (2, (8, 8, 3), np.float32)),
    ],
)
def test_observations_of_any_kind_are_sampled_unchanged(stack, shape, dtype, num_envs, n):
    spec = spec_of(stack, shape=shape, dtype=dtype)
    replay = PrioritizedReplay(spec, capacity=100)
    screens = Screens(spec, num_envs, episode_length=6)
    given: list[dict[str, Any]] = []
    for _ in range(3):  # three times around
        collect(replay, screens, 120 // num_envs, n=n, given=given)
        assert_holds(replay, given)
    assert len(replay) == 100
    obs = to_numpy(replay.sample(4).obs)
    assert (obs.shape, obs.dtype) == ((4, *spec.obs_shape), dtype)
    replay.clear()
    collect(replay, screens, 20, given=given)
    assert_holds(replay, given)


def test_few_repeated_frames_are_told_apart():
    replay = PrioritizedReplay(spec_of(3), capacity=60)
    given = collect(replay, Screens(spec_of(3), 4, num_pictures=5), 400)
    assert_holds(replay, given)


def test_a_frame_is_kept_once():
    as_it_comes = 2 * 84 * 84 * 20_000
    stacks, single = (ReplayBuffer(spec_of(n, shape=(84, 84)), capacity=20_000) for n in (4, 1))
    assert stacks.memory_bytes < 4 * as_it_comes / 6
    assert single.memory_bytes < 0.6 * as_it_comes


@pytest.mark.parametrize(("num_envs", "n", "capacity"), [(1, 1, 500), (64, 5, 5_000)])
def test_a_replay_of_stacks_holds_its_full_capacity(num_envs, n, capacity, caplog):
    replay = ReplayBuffer(spec_of(4), capacity=capacity)
    screens = Screens(spec_of(4), num_envs, episode_length=12)
    collect(replay, screens, 2 * capacity // num_envs, n=n)
    assert len(replay) == capacity
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_many_environments_leave_a_replay_most_of_its_capacity():
    spec, num_envs, capacity = spec_of(4), 200, 5_000
    replay, again = (ReplayBuffer(spec, capacity=capacity) for _ in range(2))
    screens, n_step = Screens(spec, num_envs, episode_length=500), NStep(3, 0.9, num_envs)
    for _ in range(3 * capacity // num_envs):
        replay.add(n_step(screens.step()))
    assert len(replay) > 0.95 * capacity
    again.load_state_dict(replay.state_dict())
    for _ in range(capacity // num_envs):
        transitions = n_step(screens.step())
        for each in (replay, again):
            each.add(transitions)
    saved, loaded = (each.state_dict()["storage"]["frames"] for each in (replay, again))
    assert saved["next_number"] == loaded["next_number"]


def test_observations_that_share_no_frames_leave_room_for_fewer(caplog):
    replay, rng = PrioritizedReplay(spec_of(4), capacity=4_000), np.random.default_rng(0)
    given: list[dict[str, Any]] = []
    no, zeros, ones = np.zeros(100, np.bool_), np.zeros(100, np.int64), np.ones(100, np.int32)
    for _ in range(70):
        obs, next_obs = rng.integers(0, 255, (2, 100, 4, *SHAPE)).astype(np.uint8)
        reward = zeros.astype(np.float32)
        add(replay, Transitions(obs, zeros, reward, next_obs, no, no, ones), given)
    assert 400 < len(replay) < 1_000
    assert_holds(replay, given)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "a replay for 4000 transitions has room for" in caplog.text


def test_frames_of_one_hash_are_told_apart():
    stack, capacity = 2, 50
    frames = Frames((2, 2, 8), np.dtype(np.uint8), stack=stack, capacity=capacity)
    first, second = map(int, frames._factors)
    # Words a and b with a * first + b * second = 0 have the hash of a black picture.
    words = [(a, -a * first * pow(second, -1, 1 << 64) % (1 << 64)) for a in range(6)]
    pictures = np.array(words, dtype=np.uint64).view(np.uint8).reshape(6, 1, 2, 8)
    hashes = frames._hash(pictures.reshape(6, 16).view("u8"))
    assert len(set(hashes.tolist())) == 1

    rng = np.random.default_rng(0)
    order = rng.integers(0, 6, (3 * capacity, 2, stack))
    for serial, (obs, next_obs) in enumerate(order):
        frames.add(serial, *(np.concatenate(pictures[side])[None] for side in (obs, next_obs)))
    for serial in range(2 * capacity, 3 * capacity):
        found = frames.gather(np.array([serial % capacity]))
        for side in (0, 1):
            np.testing.assert_array_equal(
                found[side][0], np.concatenate(pictures[order[serial, side]])
            )


def test_a_resumed_replay_of_stacks_goes_on_bit_for_bit(tmp_path):
    first, second = (PrioritizedReplay(spec_of(4), capacity=100) for _ in range(2))
    screens, n_step = Screens(spec_of(4), 4, episode_length=8), NStep(3, 0.9, 4)
    collect(first, screens, 60, n=3)
    save_checkpoint(tmp_path, first.state_dict())
    second.load_state_dict(load_checkpoint(tmp_path).state)
    for _ in range(60):
        transitions, batches = n_step(screens.step()), []
        for replay in (first, second):
            replay.add(transitions)
            batches.append(replay.sample(min(20, len(replay))))
            replay.update_priorities(batches[-1], batches[-1].serial % 5 + 0.5)
        for name in (*(field.name for field in fields(Transitions)), "serial", "weight"):
            left, right = (np.asarray(getattr(batch, name)) for batch in batches)
            np.testing.assert_array_equal(left, right)
    saved, again = (replay.state_dict()["storage"]["frames"] for replay in (first, second))
    assert saved["next_number"] == again["next_number"]


def test_a_replay_that_was_saved_as_its_window_widened_goes_on_bit_for_bit():
    spec = spec_of(4)
    screens, n_step = Screens(spec, 900, episode_length=3, num_pictures=20_000), NStep(1, 0.9, 900)
    added = [n_step(screens.step()) for _ in range(8)]
    for num_before in range(1, 5):
        whole, resumed = (ReplayBuffer(spec, capacity=1_500) for _ in range(2))
        for count, transitions in enumerate(added):
            if count == num_before:
                resumed.load_state_dict(whole.state_dict())
            whole.add(transitions)
            if count >= num_before:
                resumed.add(transitions)
                saved, again = (r.state_dict()["storage"]["frames"] for r in (whole, resumed))
                assert saved["next_number"] == again["next_number"], (num_before, count)


def test_stacks_of_another_number_of_frames_are_refused():
    replay = PrioritizedReplay(spec_of(4), capacity=50)
    collect(replay, Screens(spec_of(4), 2), 10)
    with pytest.raises(ShapeError, match=r"has shape \(2, 2, 6, 5\)"):
        collect(replay, Screens(spec_of(2), 2), 1)
    spec = spec_of(2, shape=(2, *SHAPE))  # stacks of the same shape
    other = PrioritizedReplay(spec, capacity=50)
    given = collect(other, Screens(spec, 2, seed=1), 10)
    with pytest.raises(CheckpointError, match="Was it saved with another `frame_stack`"):
        other.load_state_dict(replay.state_dict())
    assert_holds(other, given)

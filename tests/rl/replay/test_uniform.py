import logging
from collections import deque
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from ding_lite.errors import CheckpointError, ConfigError, ShapeError
from ding_lite.rl import (
    PrioritizedReplay,
    ReplayBuffer,
    Transitions,
    load_checkpoint,
    make_envs,
    save_checkpoint,
)
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
def test_it_holds_the_same_as_a_queue_of_that_length(capacity, sizes, seed):
    replay = ReplayBuffer(SPEC, capacity=capacity, seed=seed)
    queue: deque[Any] = deque(maxlen=capacity)
    start = 0
    for size in sizes:
        batch = transitions(range(start, start + size))
        replay.add(batch)
        queue.extend(reference.rows_of(batch))
        start += size

    assert len(replay) == len(queue)
    if not queue:
        return
    sampled = set()
    for _ in range(40):
        sampled |= set(reference.rows_of(replay.sample(len(replay))))
    assert sampled <= set(queue)
    if len(replay) <= 4:
        assert sampled == set(queue)


def test_memory_bytes_is_known_before_allocation():
    replay = ReplayBuffer(SPEC, capacity=1_000)
    fields_and_padding = 2 * 4 * 4 + 8 + 4 + 1 + 1 + 4 + 6
    assert replay.memory_bytes == 1_000 * fields_and_padding
    told = r"50,000,000,000,000 needs 2,800,000.0 GB .* At most [\d,]+ would fit"
    with pytest.raises(ConfigError, match=told):
        ReplayBuffer(SPEC, capacity=50_000_000_000_000)
    shapeless = ReplayBuffer(capacity=10**14)
    with pytest.raises(ConfigError, match=r"A replay with `capacity` 100,000,000,000,000 needs"):
        shapeless.add(transitions(range(5)))
    assert len(shapeless) == 0


@pytest.mark.parametrize(
    ("held", "batch_size", "told"),
    [
        (0, 8, r"`batch_size` is 8.* holds 0"),
        (5, 8, r"`batch_size` is 8.* holds 5"),
        (5, 0, r"`batch_size` is 0; it must be a whole number"),
        (5, 2.0, r"`batch_size` is 2\.0; it must be a whole number"),
    ],
)
def test_more_than_it_holds_cannot_be_sampled(held, batch_size, told):
    replay = ReplayBuffer(SPEC, capacity=100)
    replay.add(transitions(range(held)))
    with pytest.raises(ConfigError, match=told):
        replay.sample(batch_size)


def test_transitions_that_do_not_fit_change_nothing():
    replay = ReplayBuffer(SPEC, capacity=5)
    replay.add(transitions(range(5)))
    wrong = transitions(range(50, 53))
    with pytest.raises(ShapeError, match=r"`transitions.num_steps` has shape \(2,\)"):
        replay.add(replace(wrong, num_steps=wrong.num_steps[:2].tolist()))
    drawn = {row for _ in range(20) for row in reference.rows_of(replay.sample(5))}
    assert drawn == {*reference.rows_of(transitions(range(5)))}


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


def test_without_a_spec_the_first_transitions_set_the_shapes():
    replay, first = ReplayBuffer(capacity=100), transitions(range(5))
    assert replay.memory_bytes == 0
    replay.add(replace(first, obs=first.obs.astype(np.float64)))
    assert replay.memory_bytes == ReplayBuffer(SPEC, capacity=100).memory_bytes
    assert set(reference.rows_of(replay.sample(5))) <= set(reference.rows_of(first))
    assert replay.sample(5).obs.dtype == torch.float32
    with pytest.raises(ShapeError, match=r"`transitions.obs` has shape \(5, 3\); this replay keep"):
        replay.add(replace(first, obs=first.obs[:, :3]))
    with pytest.raises(ConfigError, match=r"`capacity` is 0"):
        ReplayBuffer(SPEC, capacity=0)


def test_the_size_of_a_full_replay_is_logged_at_the_start(caplog):
    with caplog.at_level(logging.INFO):
        ReplayBuffer(SPEC, capacity=1_000_000)
    assert caplog.messages == ["a replay of 1000000 transitions takes 56.0 MB when full"]


def test_transitions_may_be_tensors_and_fractions_in_an_integer_field_are_refused():
    replay, first = ReplayBuffer(SPEC, capacity=100), transitions(range(5))
    with pytest.raises(ShapeError, match=r"`transitions.action` is an array of float64.* int64"):
        replay.add(replace(first, action=first.action + 0.5))
    replay.add(replace(first, action=first.action.astype(np.int32)))
    assert replay.sample(5).action.dtype == torch.int64
    tensors = [torch.from_numpy(getattr(first, f.name)) for f in fields(first)]
    replay.add(Transitions(tensors[0].requires_grad_(), *tensors[1:]))
    replay.add(replace(first, obs=first.obs.tolist()))
    assert set(reference.rows_of(replay.sample(5))) <= set(reference.rows_of(first))


@pytest.mark.parametrize("obs_size", [1, 40, 400])
def test_short_and_long_observations_are_sampled_unchanged(obs_size):
    replay = ReplayBuffer(capacity=300)
    numbers = np.arange(450)
    obs = (numbers[:, None] + np.arange(obs_size) / 512).astype(np.float32)
    for start in range(0, 450, 50):
        part = slice(start, start + 50)
        replay.add(replace(transitions(numbers[part]), obs=obs[part], next_obs=obs[part] + 1))
    for batch_size in (2, 300):
        batch = replay.sample(batch_size)
        number_B = (to_numpy(batch.reward) * 8).astype(int)
        assert number_B.min() >= 150
        np.testing.assert_array_equal(to_numpy(batch.obs), obs[number_B])
        np.testing.assert_array_equal(to_numpy(batch.next_obs), obs[number_B] + 1)
        assert to_numpy(batch.obs).flags.c_contiguous


def test_after_clear_only_later_transitions_are_sampled():
    replay = ReplayBuffer(SPEC, capacity=10)
    replay.add(transitions(range(7)))
    replay.clear()
    assert len(replay) == 0
    with pytest.raises(ConfigError, match="holds 0"):
        replay.sample(1)
    replay.add(transitions(range(20, 26)))  # around the end of the ring
    drawn = {row[0][0] for _ in range(30) for row in reference.rows_of(replay.sample(6))}
    assert drawn == {20.0, 21.0, 22.0, 23.0, 24.0, 25.0}


def test_a_state_shares_the_memory_of_the_replay():
    replay = ReplayBuffer(SPEC, capacity=10)
    replay.add(transitions(range(4)))
    arrays = replay.state_dict()["storage"]["arrays"]
    assert arrays["obs"].shape == (4, 4)  # what is in use
    replay.add(transitions([9]))
    again = replay.state_dict()["storage"]["arrays"]
    assert all(np.shares_memory(arrays[name], again[name]) for name in arrays)


def test_the_state_of_another_replay_is_refused():
    replay, own = ReplayBuffer(SPEC, capacity=10), ReplayBuffer(SPEC, capacity=10, fields=OWN)
    replay.add(transitions(range(4)))
    own.add(transitions(range(3)), **own_of(range(3)))
    state, pendulum = replay.state_dict(), make_envs("Pendulum-v1", 1).spec
    wrong = ({"next": 99}, {"oldest": -1}, {"oldest": 9}, {"next": 2.0}, {"oldest": "0"})
    for other, loaded, told in (
        (ReplayBuffer(pendulum, capacity=10), state, r"The saved `obs` is .*\(4,\).* keeps .*\(3,"),
        (ReplayBuffer(SPEC, capacity=20), state, "a capacity of 10, this one of 20"),
        (replay, {"q_net": 1}, r"no state of a ReplayBuffer: it has \['q_net'\]"),
        (replay, own.state_dict(), r"The saved `\w+` is .*keeps None.* other `fields`"),
        (own, state, r"The saved `log_prob` is None"),
        *((replay, {**state, **each}, "which is impossible") for each in wrong),
    ):
        with pytest.raises(CheckpointError, match=told):
            other.load_state_dict(loaded)
    assert len(replay) == 4


OWN = {"log_prob": ((), np.float32), "hidden": ((2, 3), np.float64), "flag": ((), bool)}


def own_of(numbers):
    """Make own fields that belong to the transitions of these numbers."""
    number_B = np.array(numbers)
    return {
        "log_prob": -number_B.astype(np.float32),
        "hidden": number_B[:, None, None] + np.arange(6).reshape(2, 3) / 8,
        "flag": number_B % 2 == 1,
    }


def check_own(batch):
    expected = own_of(to_numpy(batch.obs)[:, 0].astype(int))
    assert list(batch.extra) == ["log_prob", "hidden", "flag"]
    for name, array in expected.items():
        assert isinstance(batch.extra[name], torch.Tensor)
        np.testing.assert_array_equal(to_numpy(batch.extra[name]), array)


@pytest.mark.parametrize("spec", [SPEC, None])
def test_own_fields_are_sampled_with_their_transitions(spec):
    replay = ReplayBuffer(spec, capacity=10, fields=OWN)
    for start in range(0, 24, 4):  # around the end of the ring
        numbers = range(start, start + 4)
        replay.add(transitions(numbers), **own_of(numbers))
        check_own(replay.sample(4))
    assert replay.memory_bytes >= ReplayBuffer(SPEC, capacity=10).memory_bytes + 10 * 48


def test_own_fields_may_come_with_the_transitions():
    replay = ReplayBuffer(SPEC, capacity=10, fields=OWN)
    own = own_of(range(4))
    flag = own.pop("flag")
    replay.add(transitions(range(4)).with_extra(flag=torch.from_numpy(flag)), **own)
    check_own(replay.sample(4))
    plain = transitions(range(4))
    assert not plain.extra
    assert {**plain.with_extra(x=flag).with_extra(y=flag).extra} == {"x": flag, "y": flag}


def test_own_fields_of_images_lie_beside_the_frames():
    spec = make_envs("ding_lite/Catch-v0", 1).spec
    replay = ReplayBuffer(spec, capacity=10, fields={"log_prob": ((), np.float32)})
    obs = np.arange(3, dtype=np.uint8)[:, None, None, None] + np.zeros(spec.obs_shape, np.uint8)
    batch = replace(transitions(range(3)), obs=obs, next_obs=obs + 1)
    replay.add(batch, log_prob=-np.arange(3, dtype=np.float32))
    sampled = replay.sample(3)
    expected = -to_numpy(sampled.obs)[:, 0, 0, 0].astype(np.float32)
    np.testing.assert_array_equal(to_numpy(sampled.extra["log_prob"]), expected)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplay])
def test_a_step_is_refused_with_what_makes_transitions_of_it(kind):
    with make_envs("CartPole-v1", 2) as envs:
        step = envs.step(envs.random_actions())
    replay, rowless = kind(SPEC, capacity=10), transitions([3])
    rowless = Transitions(*(getattr(rowless, f.name)[0] for f in fields(Transitions)))
    for wrong, told in (
        (step, r"is a Step; .* `NStep\(policy.n_step.*\)\(step\)`"),
        (None, "`transitions` is None"),
        (rowless, r"arrays were expected, with a row for each"),
    ):
        with pytest.raises(ConfigError, match=told):
            replay.add(wrong)
    assert len(replay) == 0


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"hidden": None, "flag": None}, ConfigError, r"fields \['hidden', 'flag'\] are missing"),
        ({"log_prop": 1}, ConfigError, r"'log_prop' is no field.*Did you mean \"log_prob\""),
        ({"log_prob": np.ones(3)}, ShapeError, r"`log_prob` has shape \(3,\); .* \(4,\) for 4"),
        ({"flag": np.ones(4)}, ShapeError, r"`flag` is an array of float64; .* keeps bool"),
        ({"flag": [True] * 4}, ShapeError, r"`flag` is a list; an array or a tensor was expected"),
    ],
)
def test_missing_unknown_and_misshaped_own_fields_are_refused(change, error, told):
    replay = ReplayBuffer(SPEC, capacity=10, fields=OWN)
    own = {k: v for k, v in (own_of(range(4)) | change).items() if v is not None}
    with pytest.raises(error, match=told):
        replay.add(transitions(range(4)), **own)
    assert len(replay) == 0
    with pytest.raises(ConfigError, match="'flag' is no field of this replay, which keeps none"):
        ReplayBuffer(SPEC, capacity=10).add(transitions(range(4)), flag=np.ones(4, bool))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reward": ((), np.float32)}, "has 'reward', which `add` takes already"),
        ({"priority": ((), np.float32)}, "has 'priority', which `add` takes already"),
        ({"log-prob": ((), np.float32)}, "has the name 'log-prob'"),
        (["x"], r"`fields` is a list; a dict of the shape and the dtype"),
        ({"x": np.float32}, "says .*float32.* of 'x'; the shape and the dtype of one row"),
        ({"x": ((0,), np.float32)}, "sizes above 0"),
        ({"x": ((), "U3")}, "numbers that torch knows"),
        ({"x": ((), object)}, "numbers that torch knows"),
    ],
)
def test_fields_that_cannot_be_kept_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(SPEC, capacity=10, fields=fields)


@pytest.mark.parametrize(("spec", "count"), [(SPEC, 0), (None, 3), (SPEC, 10), (None, 27)])
def test_a_resumed_replay_goes_on_bit_for_bit(tmp_path, spec, count):
    first = ReplayBuffer(SPEC, capacity=10, fields=OWN)
    second = ReplayBuffer(spec, capacity=10, fields=OWN, seed=7)
    first.add(transitions(range(count)), **own_of(range(count)))
    if count > 3:
        first.clear()
        first.add(transitions(range(4)), **own_of(range(4)))
    save_checkpoint(tmp_path, first.state_dict())
    second.load_state_dict(load_checkpoint(tmp_path).state)
    assert len(first) == len(second)
    for start in range(100, 140, 4):
        batches = []
        for replay in (first, second):
            replay.add(transitions(range(start, start + 4)), **own_of(range(start, start + 4)))
            batches.append(replay.sample(3))
            check_own(batches[-1])
        assert reference.rows_of(batches[0]) == reference.rows_of(batches[1])
    assert first.memory_bytes == second.memory_bytes


@pytest.mark.parametrize("capacity", [5, 12])
def test_a_replay_on_a_device_holds_and_draws_what_one_on_the_cpu_does(capacity, monkeypatch):
    """The tensors of a CPU stand for those of a device."""
    here = ReplayBuffer(SPEC, capacity=capacity, seed=3)
    monkeypatch.setattr("ding_lite.rl.replay.uniform.is_host", lambda device: False)
    there, resumed = (ReplayBuffer(SPEC, capacity=capacity, seed=3) for _ in range(2))
    for start, count in ((0, 4), (4, 7), (11, 2), (13, 20)):
        for replay in (here, there):
            replay.add(transitions(range(start, start + count)))
        ours, theirs = (reference.rows_of(each.sample(len(each))) for each in (here, there))
        assert ours == theirs
    resumed.load_state_dict(here.state_dict())
    assert reference.rows_of(resumed.sample(5)) == reference.rows_of(there.sample(5))
    assert there.memory_bytes <= here.memory_bytes


def test_a_replay_on_a_device_copies_nothing_to_the_host():
    replay = ReplayBuffer(SPEC, capacity=8, device="meta")
    replay.add(transitions(range(20)))
    batch = replay.sample(4)
    assert {getattr(batch, field.name).device.type for field in fields(batch)} == {"meta"}
    with pytest.raises(ConfigError, match="`device` is 'nowhere'"):
        ReplayBuffer(SPEC, capacity=8, device="nowhere")


@pytest.mark.parametrize(("dtype", "value"), [(np.int8, 300), (np.int8, -129), (np.int32, 2**40)])
def test_whole_numbers_that_a_field_cannot_hold_are_refused(dtype: Any, value: int) -> None:
    replay = ReplayBuffer(SPEC, capacity=10, fields={"count": ((), dtype)})
    two = transitions(range(2))
    replay.add(two, count=np.array([0, np.iinfo(dtype).max]))
    with pytest.raises(ShapeError, match=rf"`count` has numbers from .*{value}.* a wider dtype"):
        replay.add(two, count=np.array([0, value]))
    assert len(replay) == 2

import re
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from ding_lite.errors import CheckpointError, ConfigError, NonFiniteError, ShapeError
from ding_lite.rl import (
    PrioritizedReplay,
    PrioritizedTransitions,
    ReplayBuffer,
    load_checkpoint,
    make_envs,
    save_checkpoint,
)
from ding_lite.rl.batch import to_numpy
from tests.rl import reference
from tests.rl.replay.test_sum_tree import fast_or_not
from tests.rl.replay.test_uniform import transitions

SPEC = make_envs("CartPole-v1", 1).spec


def filled(count=8, **settings):
    replay = PrioritizedReplay(SPEC, **{"capacity": count, "alpha": 1.0, "offset": 1e-9} | settings)
    replay.add(transitions(range(count)))
    return replay


def batch_of(replay, serials):
    """Make a batch of certain transitions, as if they had been drawn."""
    sample = replay.sample(1)
    values = {name: getattr(sample, name) for name in type(sample).__match_args__}
    return PrioritizedTransitions(**values | {"serial": np.array(serials, dtype=np.int64)})


def numbers(batch):
    """Return the numbers that `transitions` gave to transitions."""
    return to_numpy(batch.obs)[:, 0].astype(int).tolist()


steps = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 9)),
    st.tuples(st.just("sample"), st.integers(1, 6)),
    st.tuples(st.just("update"), st.lists(st.integers(0, 80), min_size=6, max_size=6)),
    st.tuples(st.just("clear"), st.none()),
)


@fast_or_not
@given(
    st.integers(1, 12),
    st.sampled_from([0.0, 0.5, 0.6, 1.0]),
    st.floats(0.0, 1.0),
    st.lists(steps, max_size=14),
)
def test_it_behaves_like_a_list_of_priorities(fast, capacity, alpha, beta, history):
    replay = PrioritizedReplay(SPEC, capacity=capacity, alpha=alpha, offset=0.125, fast=fast)
    plain = reference.PlainPrioritized(capacity, alpha, 0.125)
    sampled = []
    for action, amount in history:
        if action == "add":
            batch = transitions(range(plain.count, plain.count + amount))
            replay.add(batch)
            plain.add(reference.rows_of(batch))
        elif action == "sample" and amount <= len(plain.held):
            batch = replay.sample(amount, beta=beta)
            sampled.append(batch)
            serials = batch.serial.tolist()
            assert reference.rows_of(batch) == [plain.held[serial][0] for serial in serials]
            assert batch.weight.tolist() == pytest.approx(plain.weights(serials, beta), rel=1e-5)
        elif action == "update" and sampled:
            late = sampled[amount[0] % len(sampled)]  # however long ago that was
            priorities = np.array(amount[: len(late)], dtype=np.float32) / 8
            found = replay.update_priorities(late, priorities)
            assert found == plain.update(late.serial.tolist(), priorities.tolist())
        elif action == "clear":
            replay.clear()
            plain.held.clear()
        assert len(replay) == len(plain.held)


@fast_or_not
def test_transitions_are_sampled_in_proportion_to_their_priorities(fast):
    replay = filled(8, alpha=0.5, fast=fast)
    assert replay.update_priorities(batch_of(replay, range(8)), np.arange(8.0) ** 2) == 8
    counts = Counter(n for _ in range(1_500) for n in numbers(replay.sample(7)))
    found = np.array([counts[number] for number in range(8)])
    assert found == pytest.approx(10_500 * np.arange(8) / 28, abs=4 * np.sqrt(2_625))


def test_the_replays_own_beta_is_the_default():
    replay = filled(4, beta=1.0)
    replay.update_priorities(batch_of(replay, range(4)), np.array([1.0, 4.0, 4.0, 4.0]))
    weights = {tuple(replay.sample(4).weight.tolist()) for _ in range(40)}
    assert weights == {(1.0, 0.25, 0.25, 0.25), (1.0, 1.0, 1.0, 1.0)}  # with the first, and without
    assert {tuple(replay.sample(4, beta=0.0).weight.tolist()) for _ in range(40)} == {(1.0,) * 4}


def test_a_new_transition_has_the_current_highest_priority():
    replay = filled(3, capacity=6)
    replay.update_priorities(batch_of(replay, range(3)), np.array([8.0, 2.0, 1.0]))
    replay.add(transitions([3]))
    priority = priorities(replay)
    assert priority[3] == priority[0] == pytest.approx(8.0)
    replay.update_priorities(batch_of(replay, [0, 3]), np.array([1.0, 1.0]))  # 2 is highest now
    replay.add(transitions([4]))
    priority = priorities(replay)
    assert priority[4] == priority[1] == pytest.approx(2.0)


def priorities(replay):
    """Return the priority of each transition; each is at least a 500th of the sum."""
    drawn = replay.draw(500)
    return dict(zip(drawn.fields["obs"][:, 0].astype(int), drawn.value, strict=True))


NO_PRIORITIES: list[tuple[Any, type[Exception], str]] = [
    *(
        ([1.0, 2.0, bad, 3.0], error, rf"`priority` 2 of 4 is {re.escape(str(bad))}; .* No priori")
        for bad, error in (
            *((bad, NonFiniteError) for bad in (np.nan, np.inf, 1e39)),
            *((bad, ConfigError) for bad in (-1.0, -1e-6)),
        )
    ),
    (np.ones(3), ShapeError, r"`priority` has shape \(3,\); .* the 4 transitions"),
    (np.ones((4, 1)), ShapeError, r"`priority` has shape \(4, 1\)"),
    (np.ones(4, complex), ConfigError, "`priority` is of complex128; real numbers were exp"),
]


@fast_or_not
@pytest.mark.parametrize(("priority", "error", "told"), NO_PRIORITIES)
def test_invalid_priorities_are_refused_and_change_nothing(fast, priority, error, told):
    replay = filled(4, fast=fast)
    before = replay.state_dict()["values"].copy()
    with pytest.raises(error, match=told):
        replay.update_priorities(batch_of(replay, range(4)), np.array(priority))
    with pytest.raises(error, match=told.replace(" No priori", "")):
        replay.add(transitions(range(4, 8)), priority=np.array(priority))
    with pytest.raises(ConfigError, match="`batch` is a Transitions"):
        replay.update_priorities(transitions(range(4)), np.ones(4))
    assert replay.state_dict()["values"].tolist() == before.tolist()
    assert {*numbers(replay.sample(4))} == {0, 1, 2, 3}


def test_memory_bytes_includes_the_tree():
    plain, prioritized = ReplayBuffer(SPEC, capacity=1_000), filled(1_000)
    tree_bytes = prioritized.memory_bytes - plain.memory_bytes
    assert tree_bytes == pytest.approx(2 * 1_000 * 8 * 8 / 7, rel=0.01)  # two numbers for each node
    with pytest.raises(ConfigError, match="of memory, but this machine has"):
        PrioritizedReplay(SPEC, capacity=10**13)
    with pytest.raises(ConfigError, match=r"`alpha` is -0.1.*`beta` is 1.5.*`offset` is 0"):
        PrioritizedReplay(SPEC, capacity=4, alpha=-0.1, beta=1.5, offset=0.0)


def test_missing_priority_updates_are_warned_of(caplog):
    replay = filled(4)
    for count, warnings in ((999, 0), (50, 1)):
        for _ in range(count):
            replay.sample(2)
        assert len(caplog.records) == warnings
    assert "1000 batches were sampled and no priority updated" in caplog.text


def test_a_resumed_replay_goes_on_bit_for_bit(tmp_path):
    def play(replay, rounds):
        seen = []
        for turn in rounds:
            replay.add(transitions(range(turn * 7, turn * 7 + 7)))
            if turn % 5 == 4:
                replay.clear()
                replay.add(transitions(range(turn, turn + 3)))
            batch = replay.sample(3, beta=0.7)
            seen.append((numbers(batch), batch.weight.tolist(), batch.serial.tolist()))
            replay.update_priorities(batch, np.array([0.1, 1.7, 0.3]) * (1 + turn))
        return seen

    first, second = (PrioritizedReplay(SPEC, capacity=40) for _ in range(2))
    play(first, range(23))
    save_checkpoint(tmp_path, first.state_dict())
    second.load_state_dict(load_checkpoint(tmp_path).state)
    assert len(second) == len(first)
    assert play(first, range(23, 60)) == play(second, range(23, 60))


def test_the_state_of_other_settings_is_refused():
    state = filled(8, alpha=0.6).state_dict()
    for other, told in (
        (filled(8, alpha=0.7), "The saved replay has the `alpha`"),
        (filled(8, alpha=0.6, offset=1e-3), "The saved replay has the `offset`"),
        (filled(9, alpha=0.6), "a capacity of 8, this one of 9"),
        (ReplayBuffer(SPEC, capacity=8), "no state of a ReplayBuffer"),
    ):
        with pytest.raises(CheckpointError, match=told):
            other.load_state_dict(state)


@fast_or_not
def test_threads_may_use_it_at_once(fast):
    replay = filled(2_000, fast=fast)
    batches = [transitions(range(turn * 16, turn * 16 + 16)) for turn in range(200)]
    faults = []

    def add():
        for batch in batches:
            replay.add(batch)

    def learn():
        for turn in range(len(batches)):
            batch = replay.sample(32)
            if (to_numpy(batch.next_obs) != to_numpy(batch.obs) + 0.5).any():
                faults.append(turn)
            replay.update_priorities(batch, np.full(32, 1.0 + turn % 7))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work) for work in (add, learn, add, learn)]:
                done.result()
    finally:
        sys.setswitchinterval(interval)
    assert not faults
    assert replay.state_dict()["next"] == 2_000 + 2 * 16 * len(batches)
    values = replay.state_dict()["values"]
    assert replay._tree.total == pytest.approx(values.sum(), rel=1e-9)
    assert replay._tree.highest == values.max()


@fast_or_not
@given(st.lists(st.lists(st.integers(0, 40), max_size=9), max_size=6), st.integers(1, 7))
def test_initial_priorities_are_those_of_an_update_at_once(fast, parts, capacity):
    given_at_add, updated = (
        PrioritizedReplay(SPEC, capacity=capacity, alpha=0.7, offset=0.125, fast=fast)
        for _ in range(2)
    )
    start = 0
    for part in parts:
        numbers = range(start, start + len(part))
        priority = np.array(part, dtype=np.float64) / 8
        given_at_add.add(transitions(numbers), priority=priority)
        updated.add(transitions(numbers))
        if part:
            updated.update_serials(np.array(numbers, dtype=np.int64), priority)
        start += len(part)
        assert len(given_at_add) == len(updated)
        left, right = (replay.state_dict()["values"] for replay in (given_at_add, updated))
        np.testing.assert_array_equal(left, right)


def test_priorities_of_tensors_and_own_fields_are_added_together():
    replay = PrioritizedReplay(
        SPEC, capacity=8, alpha=1.0, offset=1e-9, fields={"log_prob": ((), np.float32)}
    )
    number_B = np.arange(3, dtype=np.float32)
    replay.add(transitions(range(3)), priority=torch.tensor([1.0, 0.0, 3.0]), log_prob=-number_B)
    replay.add(transitions(range(3, 5)), log_prob=-3 - number_B[:2])  # the highest, 3
    assert replay.state_dict()["values"] == pytest.approx([1.0, 1e-9, 3.0, 3.0, 3.0])
    batch = replay.sample(5)
    assert isinstance(batch, PrioritizedTransitions)
    assert batch.extra["log_prob"].tolist() == [-float(number) for number in numbers(batch)]

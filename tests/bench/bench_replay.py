"""The cost of adding to and sampling from a replay, beside bare numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from ding_lite.rl import EnvSpec, ReplayBuffer, Transitions, make_envs
from ding_lite.rl.envs.vector import EnvsMode
from tests.bench.harness import Row, compare

CAPACITY = 1_000_000
NUM_ADDED = 16
NUM_ENVS = 8
BATCH_SIZE = 256
PIXEL_CAPACITY = 20_000
FIELDS = [field.name for field in fields(Transitions)]


def run() -> list[Row]:
    return [*vector_rows(), *pixel_rows(), *step_rows()]


def vector_rows() -> list[Row]:
    """Measure transitions as CartPole's: 50 bytes each."""
    replay = ReplayBuffer(make_envs("CartPole-v1", 1).spec, capacity=CAPACITY)
    full, few = some(CAPACITY), some(NUM_ADDED)
    replay.add(full)
    ring = BareRing(full)
    return [
        compare(
            f"replay: add {NUM_ADDED}, capacity 1e6",
            lambda: replay.add(few),
            lambda: ring.add(few),
            baseline_name="numpy ring",
            number=2_000,
            target=3.0,
        ),
        compare(
            f"replay: sample {BATCH_SIZE}, capacity 1e6, as tensors",
            lambda: replay.sample(BATCH_SIZE),
            ring.sample,
            baseline_name="numpy ring, np.take, as arrays",
            number=500,
            target=1.6,
            tracked=True,
        ),
    ]


class BareRing:
    """Arrays and a position: the least that does the work."""

    def __init__(self, full: Transitions) -> None:
        self.arrays = {name: np.array(getattr(full, name)) for name in FIELDS}
        self.capacity = len(full)
        self.position = 0
        self.rng = np.random.default_rng(0)

    def add(self, transitions: Transitions) -> None:
        end = self.position + NUM_ADDED
        for name, array in self.arrays.items():
            array[self.position : end] = getattr(transitions, name)
        self.position = end % self.capacity

    def sample(self) -> list[np.ndarray]:
        index = self.rng.integers(0, self.capacity, size=BATCH_SIZE)
        return [np.take(array, index, axis=0) for array in self.arrays.values()]


class BarePixelRing(BareRing):
    """A `BareRing` that samples observations into preallocated arrays."""

    def __init__(self, full: Transitions) -> None:
        super().__init__(full)
        shape = (BATCH_SIZE, *self.arrays["obs"].shape[1:])
        self.outs = {name: np.zeros(shape, np.uint8) for name in ("obs", "next_obs")}

    def sample(self) -> list[np.ndarray]:
        """Copy random rows of every array into buffers that the next call overwrites."""
        index = self.rng.integers(0, self.capacity, size=BATCH_SIZE)
        return [
            # Only with a mode other than "raise" does numpy write straight into `out`.
            np.take(array, index, axis=0, out=self.outs.get(name), mode="clip")
            for name, array in self.arrays.items()
        ]


def pixel_rows() -> list[Row]:
    """Measure stacks of 4 frames of 84x84 bytes, as of Atari games, from 16 environments."""
    space = Box(0, 255, (84, 84), dtype=np.uint8)
    spec = EnvSpec(env_id="pixels", obs_space=space, action_space=Discrete(4), frame_stack=4)
    replay = ReplayBuffer(spec, capacity=PIXEL_CAPACITY)
    played = list(stacks(PIXEL_CAPACITY // NUM_ADDED + 50))
    for transitions in played:
        replay.add(transitions)
    full = concatenate(played[-PIXEL_CAPACITY // NUM_ADDED :])
    newest = played[-50:]
    del played
    ring = BarePixelRing(full)
    turns = {"ours": 0, "theirs": 0}

    def add_next(side: str, add: Callable[[Transitions], object]) -> None:
        turns[side] += 1
        add(newest[turns[side] % len(newest)])

    megabytes = replay.memory_bytes / 1e6
    as_they_come = sum(array.nbytes for array in ring.arrays.values()) / 1e6
    return [
        compare(
            f"replay of 4x84x84 pixels: sample {BATCH_SIZE}, as tensors",
            lambda: replay.sample(BATCH_SIZE),
            ring.sample,
            baseline_name="numpy ring, np.take(out=)",
            unit="ms",
            number=20,
            target=1.2,
            tracked=True,
        ),
        compare(
            f"replay of 4x84x84 pixels: add {NUM_ADDED}, each frame once",
            lambda: add_next("ours", replay.add),
            lambda: add_next("theirs", ring.add),
            baseline_name="numpy ring, each frame 8 times",
            number=50,
        ),
        Row(
            name="replay of 4x84x84 pixels: memory for 20,000 transitions",
            unit="MB",
            median=megabytes,
            spread=0.0,
            n=1,
            baseline=as_they_come,
            baseline_name="numpy ring, each frame 8 times",
            ratio=megabytes / as_they_come,
            target=0.2,
        ),
    ]


def stacks(num_steps: int) -> Iterator[Transitions]:
    """Play env steps of 16 environments that show noise."""
    rng = np.random.default_rng(0)
    shape = (NUM_ADDED, 1, 84, 84)
    obs = np.tile(rng.integers(0, 255, shape, dtype=np.uint8), (1, 4, 1, 1))
    ends = np.zeros(NUM_ADDED, dtype=np.bool_)
    for _ in range(num_steps):
        new = rng.integers(0, 255, shape, dtype=np.uint8)
        next_obs = np.concatenate((obs[:, 1:], new), axis=1)
        yield Transitions(
            obs=obs,
            action=np.zeros(NUM_ADDED, dtype=np.int64),
            reward=np.zeros(NUM_ADDED, dtype=np.float32),
            next_obs=next_obs,
            terminated=ends,
            truncated=ends,
            num_steps=np.ones(NUM_ADDED, dtype=np.int32),
        )
        obs = next_obs


def concatenate(parts: list[Transitions]) -> Transitions:
    return Transitions(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in FIELDS)
    )


def step_rows() -> list[Row]:
    return [
        step_row("vector", mode="native", theirs="vector_entry_point", target=1.5),
        step_row("sync", mode="sync", theirs="sync"),
    ]


def step_row(form: str, *, mode: EnvsMode, theirs: str, target: float | None = None) -> Row:
    ours = make_envs("CartPole-v1", NUM_ENVS, mode=mode)
    bare = gymnasium.make_vec("CartPole-v1", NUM_ENVS, vectorization_mode=theirs)
    bare.reset(seed=0)
    actions = np.tile([0, 1], NUM_ENVS // 2)
    return compare(
        f"CartPole-v1, {NUM_ENVS} envs, {form} form: step, true last observation kept",
        lambda: ours.step(actions),
        lambda: bare.step(actions),
        baseline_name=f"gymnasium's {form} form",
        number=500,
        target=target,
    )


def some(count: int) -> Transitions:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(count, 4)).astype(np.float32)
    return Transitions(
        obs=obs,
        action=rng.integers(0, 2, size=count),
        reward=np.ones(count, dtype=np.float32),
        next_obs=obs + 1.0,
        terminated=rng.random(count) < 0.1,
        truncated=np.zeros(count, dtype=np.bool_),
        num_steps=np.ones(count, dtype=np.int32),
    )

"""Reproducible randomness: every part of a run draws from its own generator.

The global generators of numpy and torch are not used, so that parts do not change each other's
random numbers and user code may draw from the global ones.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ding_lite.errors import CheckpointError, ConfigError

_MASK = (1 << 64) - 1


def make_rng(seed: int | np.integer[Any], stream: str) -> np.random.Generator:
    """Make the generator of one part of a run.

    Parts with one seed and different streams draw independent numbers.
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, stream)))


def spawn_seeds(seed: int | np.integer[Any], stream: str, *, count: int) -> list[int]:
    """Derive seeds that do not collide with those derived from nearby seeds.

    With the usual `seed + i`, the second env of seed 0 and the first env of seed 1 would play the
    same episodes; training and evaluation would then share them.
    """
    return [int(word) for word in _sequence(seed, stream).generate_state(count)]


def _sequence(seed: int | np.integer[Any], stream: str) -> np.random.SeedSequence:
    whole: object = seed  # callers without a type checker pass anything
    if isinstance(whole, bool) or not isinstance(whole, int | np.integer) or whole < 0:
        raise ConfigError(f"`seed` is {seed!r}; a whole number from 0 up was expected.")
    return np.random.SeedSequence([int(seed), zlib.crc32(stream.encode())])


def rng_state(rng: np.random.Generator) -> npt.NDArray[np.uint64]:
    """Return a generator's state as an array of six words, for a checkpoint."""
    state = rng.bit_generator.state
    position, increment = state["state"]["state"], state["state"]["inc"]
    words = [
        position >> 64,
        position & _MASK,
        increment >> 64,
        increment & _MASK,
        state["has_uint32"],
        state["uinteger"],
    ]
    return np.array(words, dtype=np.uint64)


def set_rng_state(rng: np.random.Generator, words: npt.ArrayLike) -> None:
    """Load a state that `rng_state` returned; raise CheckpointError if it is not one."""
    array = np.asarray(words)
    if array.shape != (6,) or array.dtype != np.uint64:
        raise CheckpointError(
            f"A random generator's state has shape {array.shape} and type {array.dtype}; "
            f"six words of uint64 were expected. Was it saved by `rng_state`?"
        )
    word = [int(x) for x in array]
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": word[0] << 64 | word[1], "inc": word[2] << 64 | word[3]},
        "has_uint32": word[4],
        "uinteger": word[5],
    }

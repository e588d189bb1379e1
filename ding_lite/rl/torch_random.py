"""A stream of PyTorch's random numbers for one policy.

Dropout and noisy layers draw from PyTorch's global generators. While a policy computes, its own
stream replaces their state, so that policies do not change each other's numbers and an exact resume
continues the stream. A process has only one generator, so policies of several threads take turns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import CheckpointError
from ding_lite.rl.seeding import spawn_seeds


class TorchRandom:
    """Replaces PyTorch's global generators by its own stream, as a context manager.

    Nested blocks do nothing: only the outermost one counts.
    """

    _turn: ClassVar = threading.RLock()

    @classmethod
    def _renew_turn(cls) -> None:
        """Replace a lock that another thread may have held at a fork."""
        cls._turn = threading.RLock()

    def __init__(self, seed: int, stream: str, *, device: str | torch.device = "cpu") -> None:
        self._generators = [torch.default_generator]
        device = torch.device(device)
        if device.type == "cuda":
            torch.zeros(0, device=device)  # initialises CUDA, which makes its generators
            self._generators.append(torch.cuda.default_generators[device.index or 0])
        self._stream = stream
        self._depth = 0
        self._saved: list[Tensor] = []
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        (word,) = spawn_seeds(seed, self._stream, count=1)
        self._own = [
            torch.Generator(g.device).manual_seed(word).get_state() for g in self._generators
        ]

    def __enter__(self) -> None:
        self._turn.acquire()
        self._depth += 1
        if self._depth > 1:
            return
        self._saved = [generator.get_state() for generator in self._generators]
        for generator, state in zip(self._generators, self._own, strict=True):
            generator.set_state(state)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._own = [generator.get_state() for generator in self._generators]
            for generator, state in zip(self._generators, self._saved, strict=True):
                generator.set_state(state)
        self._turn.release()

    def state_dict(self) -> dict[str, Tensor]:
        return {
            g.device.type: own.clone() for g, own in zip(self._generators, self._own, strict=True)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned; on another kind of device a stream restarts."""
        for index, generator in enumerate(self._generators):
            words = state.get(generator.device.type)
            if words is None:
                continue
            loaded = to_words(words)
            if loaded.shape != self._own[index].shape:
                raise CheckpointError(
                    f"The state of a random stream has the shape {tuple(loaded.shape)}; "
                    f"{tuple(self._own[index].shape)} was expected. Is it of another PyTorch?"
                )
            self._own[index] = loaded


os.register_at_fork(after_in_child=TorchRandom._renew_turn)


def to_words(state: Any) -> Tensor:  # noqa: ANN401 - an array or a tensor
    """Return the state of a PyTorch generator as a tensor; checkpoints return it as an array."""
    return (
        state.clone() if isinstance(state, Tensor) else torch.from_numpy(np.array(state, np.uint8))
    )

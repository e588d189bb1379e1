"""Recurrent states of a policy with memory, one for each environment that it acts in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ding_lite.errors import CheckpointError
from ding_lite.rl.batch import BoolArray, FloatArray
from ding_lite.settings.rules import check_all, whole


class Memory:
    """Holds the recurrent states of N environments for a policy that acts in them.

    It belongs to the code that steps the environments: `collect`, an evaluation, or a loop of your
    own. The policy replaces `state` when it acts, `act(obs, memory=memory)`, and the owner calls
    `reset` after each env step. A state joins those of all layers, for example h and c of an LSTM.

    Args:
        num_envs: The number of environments, N.
        size: The length of the state of one environment, S.

    Raises:
        ConfigError: If a number is below 1.

    Example:
        >>> memory = Memory(num_envs=2, size=3)
        >>> memory.state += 1.0
        >>> memory.reset(np.array([True, False]))
        >>> memory.state
        array([[0., 0., 0.],
               [1., 1., 1.]], dtype=float32)
    """

    def __init__(self, num_envs: int, size: int) -> None:
        check_all(whole(1, num_envs=num_envs, size=size))
        self.state: FloatArray = np.zeros((num_envs, size), dtype=np.float32)
        """The states before the next env step, [N, S]. They change in place: copy to keep them."""

    def __len__(self) -> int:
        return len(self.state)

    def reset(self, done: BoolArray | None = None) -> None:
        """Set states to zeros where an episode ended, `done`, [N]; all states if None."""
        self.state[slice(None) if done is None else done] = 0.0

    def state_dict(self) -> dict[str, npt.NDArray[np.float32]]:
        """Copy everything that an exact resume needs."""
        return {"state": self.state.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        Raises:
            CheckpointError: If the number of environments or the length differs.
        """
        saved = state.get("state")
        if not isinstance(saved, np.ndarray) or saved.shape != self.state.shape:
            found = getattr(saved, "shape", type(saved).__name__)
            raise CheckpointError(
                f"The saved memory has a state of {found}; {self.state.shape} was expected, "
                f"(environments, numbers each). Was it saved with another policy, or with another "
                f"number of environments?"
            )
        self.state[:] = saved


def memory_of(policy: object, num_envs: int) -> Memory | None:
    """Make the memory that a policy acts with; return None if it has no memory.

    A policy with memory has `make_memory(num_envs)`, and takes it as `act(obs, memory=...)`.
    """
    make_memory = getattr(policy, "make_memory", None)
    memory: Memory | None = None if make_memory is None else make_memory(num_envs)
    return memory


def fitted(memory: Memory | None, policy: object, num_envs: int) -> Memory | None:
    """Return the memory for a policy: the given one, or a new one if the states' shape changed.

    It changes if a mutation changes the memory width of an `Agent`.
    """
    needed = memory_of(policy, num_envs)
    if memory is None or needed is None or memory.state.shape != needed.state.shape:
        return needed
    return memory

"""Data-parallel learning: learners average the gradients of their own batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor


class Learners(Protocol):
    """The group of learners, such as a `Group`."""

    @property
    def rank(self) -> int:
        """The rank of this node in the group, from 0."""
        ...

    def broadcast(self, value: object, /) -> Any:  # noqa: ANN401 - of any type, as it was given
        """Return the value that rank 0 has passed."""
        ...

    def averager(self) -> Callable[[Tensor], None]:
        """Return a collective function that replaces a tensor by the mean over the group."""
        ...


class LearnsTogether(ABC):
    """A policy that may average its gradients with other learners."""

    reduce_gradient: Callable[[Tensor], None] | None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Copy everything that an exact resume needs."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned."""

    def data_parallel(self, learners: Learners) -> None:
        """Average gradients with the same policy on other nodes, all of which call this.

        All begin with the state of rank 0. From now on each update takes the mean of their
        gradients, so that their weights stay equal; it waits for the slowest one. Random numbers
        and the running means of `normalize_obs` stay apart.

        Args:
            learners: `World.current().group("learner")`; this node is one of them.

        Raises:
            ConfigError: This node is not one of them.
            DeadlineExceeded: Another node has not joined in time.
            PeerLost: Later, in an update: one of them has died, left, or hangs.
        """
        state = self.state_dict()
        first = learners.broadcast(state if learners.rank == 0 else None)
        if learners.rank > 0:
            self.load_state_dict({**first, "rng": state["rng"]})
        self.reduce_gradient = learners.averager()

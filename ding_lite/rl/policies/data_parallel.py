"""Several learners that improve one policy together: each by its own batches, all by one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor


class Learners(Protocol):
    """The nodes that learn together, as a `Group` is."""

    @property
    def rank(self) -> int:
        """The place of this node among them, from 0."""
        ...

    def broadcast(self, value: object, /) -> Any:  # noqa: ANN401 - of any type, as it was given
        """Return the value of the first one."""
        ...

    def averager(self) -> Callable[[Tensor], None]:
        """Return what replaces a tensor by the mean of theirs; each calls it as often."""
        ...


class LearnsTogether(ABC):
    """A policy whose gradients may be averaged over several learners."""

    reduce_gradient: Callable[[Tensor], None] | None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Copy everything that an exact resume needs."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""

    def data_parallel(self, learners: Learners) -> None:
        """Learn together with the same policy on other nodes, all of which call this.

        They begin as the first of them is. From now on each update takes the mean of their
        gradients, so that their weights stay equal; it waits for the slowest one. What is not
        learned by gradients stays apart: random numbers, and the running means of
        `normalize_obs`.

        Args:
            learners: `World.current().group("learner")`; this node is one of them.

        Raises:
            ConfigError: It is not.
            DeadlineExceeded: Another one has not come in time.
            PeerLost: Later, in an update: one of them has died, left, or hangs.
        """
        state = self.state_dict()
        first = learners.broadcast(state if learners.rank == 0 else None)
        if learners.rank > 0:
            self.load_state_dict({**first, "rng": state["rng"]})
        self.reduce_gradient = learners.averager()

"""What the floors above rely on: any object with these methods will do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor

from ding_lite.rl.batch import (
    FloatArray,
    NumpyArray,
    PrioritizedTransitions,
    Rollout,
    Transitions,
)
from ding_lite.rl.spec import EnvSpec


@runtime_checkable
class BatchConfig(Protocol):
    """What `train` asks of the settings of a policy that learns from replay."""

    @property
    def batch_size(self) -> int:
        """How many transitions one update learns from, unless told otherwise."""


@runtime_checkable
class Policy(Protocol):
    """Acts in environments and learns from what happened there.

    It learns from `Transitions`, or, if it is an `ActorCritic`, from rollouts.
    """

    @property
    def spec(self) -> EnvSpec:
        """The observations and actions it was made for."""

    @property
    def config(self) -> object:
        """Its settings, a frozen dataclass."""

    @property
    def n_step(self) -> int:
        """How many env steps one of its transitions spans, where the episode is long enough."""

    @property
    def gamma(self) -> float:
        """The discount of one env step."""

    def act(self, obs: NumpyArray, *, explore: bool = True) -> NumpyArray:
        """Choose an action for each observation, [N, ...] -> [N] or [N, ...]."""

    def learn(
        self,
        batch: Any,  # noqa: ANN401 - Transitions, or what a narrower protocol says
        /,
    ) -> Mapping[str, float | NumpyArray]:
        """Do one update and return its metrics, `loss` among them.

        From `PrioritizedTransitions` it learns with their weights, and returns beside the metrics
        `td_error`, [B]: how far off the value of each was, which becomes its priority.
        """

    def state_dict(self) -> dict[str, Any]:
        """Copy everything that an exact resume needs."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""

    def weights(self) -> dict[str, Tensor]:
        """Copy what a collector needs to act."""

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights that another policy's `weights` returned."""

    def clone(self) -> Self:
        """Make an independent policy in exactly this state."""


@runtime_checkable
class ReducesGradient(Policy, Protocol):
    """A policy that may learn together with others, by gradients that they average."""

    reduce_gradient: Callable[[Tensor], None] | None
    """Called with each flat gradient before the step along it, to change it in place."""


@runtime_checkable
class ActorCritic(Policy, Protocol):
    """A policy that learns from its own newest experience, in the order it was made."""

    @property
    def train_iter(self) -> int:
        """Updates done."""

    def explore(self, obs: NumpyArray) -> tuple[NumpyArray, FloatArray]:
        """Draw an action for each observation, and say how likely it was.

        Returns:
            The actions, [N] or [N, ...], and the logarithms of their probabilities, or
            densities, [N]. Numbers may lie outside of what the environment takes: they are
            clipped for it, and learned from as they were drawn.
        """

    def learn(self, rollouts: Sequence[Rollout], /) -> Mapping[str, float | NumpyArray]:
        """Do one update or several, and return their metrics, `loss` among them."""


@runtime_checkable
class Replay(Protocol):
    """Keeps transitions and gives random ones back."""

    @property
    def capacity(self) -> int:
        """How many transitions it can hold."""

    def __len__(self) -> int:
        """How many transitions it holds."""

    def add(self, transitions: Transitions) -> None:
        """Keep transitions, in place of the oldest ones once it is full."""

    def sample(self, batch_size: int) -> Transitions:
        """Draw transitions, as torch tensors."""


@runtime_checkable
class Prioritized(Replay, Protocol):
    """A replay in which some transitions are sampled more often than others."""

    def sample(self, batch_size: int, *, beta: float | None = None) -> PrioritizedTransitions:
        """Draw transitions in proportion to their priorities, with importance weights."""

    def update_priorities(self, batch: PrioritizedTransitions, priority: NumpyArray) -> int:
        """Give sampled transitions new priorities, [B]; return how many were still there."""


@runtime_checkable
class FilledElsewhere(Replay, Protocol):
    """A replay that other nodes fill, and that cannot be sampled from while all of them are gone.

    Then `sample` raises `PeerLost`, and its length is 0.
    """

    def wait_for(self, size: int, *, until: Callable[[], bool]) -> None:
        """Wait until it holds so many transitions, or `until()`."""

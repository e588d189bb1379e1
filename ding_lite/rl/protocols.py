"""Protocols of policies and replays, for middleware and recipes."""

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
    """The settings that `train` reads from a policy that learns from replay."""

    @property
    def batch_size(self) -> int:
        """The transitions of one update, by default."""


@runtime_checkable
class Policy(Protocol):
    """Acts in environments and learns from experience.

    It learns from `Transitions`, or, if it is an `ActorCritic`, from rollouts.
    """

    @property
    def spec(self) -> EnvSpec:
        """The spec of the environments that it was made for."""

    @property
    def config(self) -> object:
        """Its settings, a frozen dataclass."""

    @property
    def n_step(self) -> int:
        """The env steps that one of its transitions spans, unless the episode ends."""

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

        It weights `PrioritizedTransitions` by their importance weights, and adds `td_error`, [B],
        to the metrics: the error of each value, which becomes its priority.
        """

    def state_dict(self) -> dict[str, Any]:
        """Copy everything that an exact resume needs."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned."""

    def weights(self) -> dict[str, Tensor]:
        """Copy the weights that a collector acts by."""

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights that another policy's `weights` returned."""

    def clone(self) -> Self:
        """Make an independent policy in exactly this state."""


@runtime_checkable
class LearnsFromSequences(Policy, Protocol):
    """A policy that learns from the sequences of an `EpisodeBuffer`."""

    @property
    def sequence_length(self) -> int:
        """The env steps of a sequence that it learns from."""

    @property
    def burn_in(self) -> int:
        """The env steps before these, which bring the recurrent state up to date."""


@runtime_checkable
class TakesTurns(Policy, Protocol):
    """A policy that takes turns with others in the same environments, such as an `Agent`.

    It leaves them to the next one behind each turn, and its settings may change between two turns.
    """

    @property
    def policy(self) -> Policy:
        """The policy that acts and learns now."""

    @property
    def learn_every(self) -> int | None:
        """Env steps for each update; None leaves that to `train`."""

    def take_updates(self) -> int:
        """Return how many updates `learn_every` asks for since the last call."""


@runtime_checkable
class ReducesGradient(Policy, Protocol):
    """A policy that may average its gradients with other learners."""

    reduce_gradient: Callable[[Tensor], None] | None
    """Called with each flat gradient before the step along it, to change it in place."""


@runtime_checkable
class ActorCritic(Policy, Protocol):
    """A policy that learns from rollouts of its own newest experience."""

    @property
    def train_iter(self) -> int:
        """Updates done."""

    def explore(self, obs: NumpyArray) -> tuple[NumpyArray, FloatArray]:
        """Sample an action for each observation, and return its log-probability.

        Returns:
            The actions, [N] or [N, ...], and their log-probabilities, or log-densities, [N].
            Actions may lie outside the bounds of the action space: they are clipped for the
            environment, and learned from as they were drawn.
        """

    def learn(self, rollouts: Sequence[Rollout], /) -> Mapping[str, float | NumpyArray]:
        """Do one update or several, and return their metrics, `loss` among them."""


@runtime_checkable
class Replay(Protocol):
    """Stores transitions and samples random ones."""

    @property
    def capacity(self) -> int:
        """The most transitions that it can hold."""

    def __len__(self) -> int:
        """Return the number of transitions that it holds."""

    def add(self, transitions: Transitions) -> None:
        """Add transitions, in place of the oldest ones once it is full."""

    def sample(self, batch_size: int) -> Transitions:
        """Sample transitions, as torch tensors."""


@runtime_checkable
class Prioritized(Replay, Protocol):
    """A replay that samples transitions in proportion to their priorities."""

    def sample(self, batch_size: int, *, beta: float | None = None) -> PrioritizedTransitions:
        """Sample transitions in proportion to their priorities, with importance weights."""

    def update_priorities(self, batch: PrioritizedTransitions, priority: NumpyArray) -> int:
        """Set the priorities of sampled transitions, [B]; return how many it still holds."""


@runtime_checkable
class FilledElsewhere(Replay, Protocol):
    """A replay that other nodes fill.

    While all of them are lost, `sample` raises `PeerLost`, and its length is 0.
    """

    def wait_for(self, size: int, *, until: Callable[[], bool]) -> None:
        """Wait until it holds so many transitions, or `until()`."""

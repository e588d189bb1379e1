"""Protocols of policies and replays, for middleware and recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor

from ding_lite.rl.batch import FloatArray, NumpyArray, PrioritizedTransitions, Rollout, Transitions
from ding_lite.rl.spec import EnvSpec


@runtime_checkable
class BatchConfig(Protocol):
    """The settings that `train` reads from a policy that learns from replay."""

    @property
    def batch_size(self) -> int:
        """The default number of transitions of one update."""


@runtime_checkable
class Policy(Protocol):
    """Acts in environments and learns from experience.

    It learns from `Transitions`, or, if it is an `ActorCritic`, from rollouts.
    """

    @property
    def spec(self) -> EnvSpec:
        """The spec of the policy's environments."""

    @property
    def config(self) -> object:
        """The settings, a frozen dataclass."""

    @property
    def n_step(self) -> int:
        """The env steps that a transition spans, unless the episode ends earlier."""

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
        """Do one update and return its metrics, including `loss`.

        It weights `PrioritizedTransitions` by their importance weights, and adds `td_error`, [B],
        to the metrics: the errors of the values, which become the priorities.
        """

    def state_dict(self) -> dict[str, Any]:
        """Copy everything that an exact resume needs."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned."""

    def weights(self) -> dict[str, Tensor]:
        """Copy the weights that collectors act with."""

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights that another policy's `weights` returned."""

    def clone(self) -> Self:
        """Make an independent policy in exactly this state."""


@runtime_checkable
class LearnsFromSequences(Policy, Protocol):
    """A policy that learns from the sequences of an `EpisodeBuffer`."""

    @property
    def sequence_length(self) -> int:
        """The env steps of a sequence that are learned from."""

    @property
    def burn_in(self) -> int:
        """The env steps before these, which update the recurrent state."""


@runtime_checkable
class TakesTurns(Policy, Protocol):
    """A policy that takes turns with others in the same environments, such as an `Agent`.

    After each turn the next policy uses the environments. The settings of a policy may change
    between two turns.
    """

    @property
    def policy(self) -> Policy:
        """The policy that currently acts and learns."""

    @property
    def learn_every(self) -> int | None:
        """The env steps for each update; with None `train` decides."""

    def take_updates(self) -> int:
        """Return the number of updates that `learn_every` requires since the last call."""


@runtime_checkable
class ActorCritic(Policy, Protocol):
    """A policy that learns from rollouts of its own newest experience."""

    @property
    def train_iter(self) -> int:
        """The number of updates done."""

    def explore(self, obs: NumpyArray) -> tuple[NumpyArray, FloatArray]:
        """Sample an action for each observation, and return its log-probability.

        Returns:
            The actions, [N] or [N, ...], and their log-probabilities, or log-densities, [N].
            Actions may lie outside the bounds of the action space: environments get them clipped,
            and learning uses them as drawn.
        """

    def learn(self, rollouts: Sequence[Rollout], /) -> Mapping[str, float | NumpyArray]:
        """Do one or several updates, and return their metrics, including `loss`."""


@runtime_checkable
class Replay(Protocol):
    """Stores transitions and samples random ones."""

    @property
    def capacity(self) -> int:
        """The maximum number of transitions."""

    def __len__(self) -> int:
        """Return the number of stored transitions."""

    def add(self, transitions: Transitions) -> None:
        """Add transitions; once the replay is full, they replace the oldest ones."""

    def sample(self, batch_size: int) -> Transitions:
        """Sample transitions, as torch tensors."""


@runtime_checkable
class Prioritized(Replay, Protocol):
    """A replay that samples transitions in proportion to their priorities."""

    def sample(self, batch_size: int, *, beta: float | None = None) -> PrioritizedTransitions:
        """Sample transitions in proportion to their priorities, with importance weights."""

    def update_priorities(self, batch: PrioritizedTransitions, priority: NumpyArray) -> int:
        """Set the priorities of sampled transitions, [B]; return how many are still stored."""


@runtime_checkable
class FilledByOthers(Replay, Protocol):
    """A replay that other nodes fill.

    While all of these nodes are lost, `sample` raises `PeerLost`, and the length is 0.
    """

    def wait_for(self, size: int, *, until: Callable[[], bool]) -> None:
        """Wait until the replay has `size` transitions, or `until()` is true."""

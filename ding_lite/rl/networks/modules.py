"""The networks of this package as plain `nn.Module`s.

They compute images, and everything on devices other than the CPU. For vectors on a CPU they are
only views of the written-out networks, on the same weights, that a policy returns as its `module`.
Their parameters have the names of the written-out networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from ding_lite.errors import ConfigError
from ding_lite.rl.networks.activations import FUNCTIONS, Activation, through
from ding_lite.rl.networks.conv import Conv, num_features
from ding_lite.rl.networks.layers import dueling
from ding_lite.rl.networks.precision import convolved
from ding_lite.rl.packing import as_floats


@contextmanager
def without_numbers() -> Iterator[None]:
    """Make modules on the device `meta`, because their weights are allocated and drawn later."""
    try:
        with torch.device("meta"):
            yield
    except RuntimeError as error:  # more bytes than 64 bits count
        raise ConfigError(
            f"A network of these widths fits into no memory: {error}. Lower `hidden`."
        ) from error


MemoryKind: TypeAlias = Literal["lstm", "gru"]


class Inputs(NamedTuple):
    """The inputs of a network, and what makes features of images."""

    shape: tuple[int, ...]
    """The shape of one input; behind an encoder that of its output."""
    convs: tuple[Conv, ...] = ()
    """The convolutions of a plain image."""
    encoder: nn.Module | None = None
    """Joins several parts, with convolutions of its own, to one vector."""

    @property
    def are_plain(self) -> bool:
        """Whether there are neither convolutions nor an encoder."""
        return not self.convs and self.encoder is None


class _SinglePixels(nn.Conv2d):
    """A convolution of single pixels, with a stride and without padding.

    The backward pass of oneDNN 3.12 (PyTorch 2.13, CPU) writes outside of its memory for it, if the
    channels of a pixel lie next to each other and rows remain behind the last stride.
    """

    def forward(self, maps: Tensor) -> Tensor:
        rows, columns = self.stride
        return functional.conv2d(maps[..., ::rows, ::columns], self.weight, self.bias)


def make_convolutions(in_channels: int, convs: Sequence[Conv]) -> Iterator[nn.Conv2d]:
    for conv in convs:
        is_of_pixels = conv.kernel == 1 < conv.stride and conv.padding == 0
        kind = _SinglePixels if is_of_pixels else nn.Conv2d
        yield kind(in_channels, conv.channels, conv.kernel, conv.stride, conv.padding)
        in_channels = conv.channels


class Torso(nn.Module):
    """Convolutions with ReLUs, if any, then fully connected layers."""

    def __init__(self, inputs: Inputs, hidden: Sequence[int], *, activation: Activation) -> None:
        super().__init__()
        shape, convs, self.encoder = inputs
        self.conv = nn.ModuleList(make_convolutions(shape[0], convs))
        num_inputs = num_features(shape, convs) if convs else math.prod(shape)
        sizes = (num_inputs, *hidden)
        self.torso = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.activation: Activation = activation
        self._activation = FUNCTIONS[activation].recorded

    def forward(self, obs: Any) -> Any:  # noqa: ANN401 - subclasses return several tensors
        return self.features(obs)

    def features(self, obs: Any) -> Tensor:  # noqa: ANN401 - a tensor, or what the encoder takes
        """Compute the features of observations, [B, ...] -> [B, I]; bytes are scaled."""
        if self.encoder is not None:
            obs = self.encoder(obs)
        if self.conv:
            features_BI = convolved(partial(through, self.conv, function=Tensor.relu_), obs)
        else:
            features_BI = as_floats(obs).flatten(1)
        return through(self.torso, features_BI, self._activation)


class QModule(Torso):
    """The values of all actions, [B, ...] -> [B, A]; a dueling network splits its last layer."""

    def __init__(
        self,
        inputs: Inputs,
        hidden: Sequence[int],
        *,
        num_actions: int,
        dueling: bool,
        activation: Activation = "relu",
    ) -> None:
        widths = (*hidden[:-1], 2 * hidden[-1]) if dueling else hidden
        super().__init__(inputs, widths, activation=activation)
        self.head: nn.Module
        if dueling:
            value, advantage = nn.Linear(hidden[-1], 1), nn.Linear(hidden[-1], num_actions)
            self.head = nn.ModuleDict({"value": value, "advantage": advantage})
        else:
            self.head = nn.Linear(hidden[-1], num_actions)

    def forward(self, obs: Any) -> Tensor:  # noqa: ANN401 - as `features`
        features_BI = self.features(obs)
        if not isinstance(self.head, nn.ModuleDict):
            values_BA: Tensor = self.head(features_BI)
            return values_BA
        for_value, for_advantage = features_BI.chunk(2, dim=1)
        q_BA: Tensor = dueling(self.head["value"](for_value), self.head["advantage"](for_advantage))
        return q_BA


class Branch(nn.Module):
    """Fully connected layers and a head without activation."""

    def __init__(self, sizes: Sequence[int], num_outputs: int, *, activation: Activation) -> None:
        super().__init__()
        for layer, pair in enumerate(pairwise(sizes)):
            self.add_module(str(layer), nn.Linear(*pair))
        self.head = nn.Linear(sizes[-1], num_outputs)
        self.depth = len(sizes) - 1
        """The number of hidden layers."""
        self._activation = FUNCTIONS[activation].recorded

    def forward(self, features_BI: Tensor) -> Tensor:
        *hidden, head = self.children()
        outputs_BO: Tensor = head(through(hidden, features_BI, self._activation))
        return outputs_BO


class ActorCriticModule(Torso):
    """An actor and a critic: two MLPs for vectors, two heads on one torso for images."""

    def __init__(
        self,
        inputs: Inputs,
        hidden: Sequence[int],
        *,
        num_outputs: int,
        activation: Activation,
        num_means: int = 0,
    ) -> None:
        super().__init__(inputs, () if inputs.are_plain else hidden, activation=activation)
        sizes = (math.prod(inputs.shape), *hidden) if inputs.are_plain else (hidden[-1],)
        self.actor = Branch(sizes, num_outputs, activation=activation)
        self.critic = Branch(sizes, 1, activation=activation)
        if num_means:
            self.actor.log_std = nn.Parameter(torch.zeros(num_means))

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 - as `features`
        """Compute the actor's outputs, [B, D], and the values, [B]."""
        features_BI = self.features(obs)
        return self.actor(features_BI), self.critic(features_BI).squeeze(-1)


class MemoryBranch(nn.Module):
    """Fully connected layers, an LSTM or a GRU, and a head without activation."""

    def __init__(
        self,
        sizes: Sequence[int],
        num_outputs: int,
        *,
        activation: Activation,
        memory: MemoryKind,
        memory_size: int,
    ) -> None:
        super().__init__()
        self.torso = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.memory: nn.Module
        if memory == "lstm":
            self.memory = nn.LSTMCell(sizes[-1], memory_size)
        else:
            self.memory = nn.GRUCell(sizes[-1], memory_size)
        self.head = nn.Linear(memory_size, num_outputs)
        self.state_size = memory_size * (2 if memory == "lstm" else 1)
        """The length of the recurrent state: h, or for an LSTM h and c side by side."""
        self._activation = FUNCTIONS[activation].recorded

    def encode(self, features_BI: Tensor) -> Tensor:
        return through(self.torso, features_BI, self._activation)

    def recur(self, encoded_BI: Tensor, state_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the outputs, [B, O], and the next states."""
        if isinstance(self.memory, nn.LSTMCell):
            h_BS, c_BS = self.memory(encoded_BI, state_BS.chunk(2, dim=1))
            return self.head(h_BS), torch.cat((h_BS, c_BS), dim=1)
        h_BS = self.memory(encoded_BI, state_BS)
        return self.head(h_BS), h_BS


class MemoryActorCriticModule(nn.Module):
    """An actor and a critic on one encoder, each with its own memory.

    In a shared memory the gradient of the critic's loss, the larger one, would dominate.
    """

    def __init__(
        self,
        encoder: nn.Module,
        sizes: Sequence[int],
        *,
        num_outputs: int,
        activation: Activation,
        memory: MemoryKind,
        memory_size: int,
        num_means: int = 0,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.actor, self.critic = (
            MemoryBranch(
                sizes, count, activation=activation, memory=memory, memory_size=memory_size
            )
            for count in (num_outputs, 1)
        )
        if num_means:
            self.actor.log_std = nn.Parameter(torch.zeros(num_means))
        self._widths = (sizes[-1], self.actor.state_size)
        self.state_size = 2 * self.actor.state_size
        """The length of the state of one environment: the actor's, then the critic's."""

    def encode(self, obs: Any) -> Tensor:  # noqa: ANN401 - what the encoder takes
        features_BI = self.encoder(obs)
        return torch.cat((self.actor.encode(features_BI), self.critic.encode(features_BI)), dim=1)

    def recur(self, encoded_BI: Tensor, state_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the actor's outputs, [B, D], the values, [B], and the next states, [B, S]."""
        (for_actor, for_critic), (of_actor, of_critic) = (
            torch.split(both, width, dim=1)
            for both, width in zip((encoded_BI, state_BS), self._widths, strict=True)
        )
        outputs_BD, of_actor = self.actor.recur(for_actor, of_actor)
        value_B1, of_critic = self.critic.recur(for_critic, of_critic)
        return outputs_BD, value_B1.squeeze(1), torch.cat((of_actor, of_critic), dim=1)

    def forward(self, obs: Any, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401
        """Compute one time step: outputs, [B, D], values, [B], and the next states, [B, S]."""
        return self.recur(self.encode(obs), state)


class ImageActor(Torso):
    """An actor for box actions with its own convolutions, [B, C, H, W] or trees -> [B, O]."""

    def __init__(
        self,
        inputs: Inputs,
        hidden: Sequence[int],
        num_outputs: int,
        *,
        activation: Activation,
        squashes: bool,
    ) -> None:
        super().__init__(inputs, hidden, activation=activation)
        self.head = nn.Linear(hidden[-1], num_outputs)
        self._squashes = squashes

    def forward(self, obs: Any) -> Tensor:  # noqa: ANN401 - as `features`
        raw_BO: Tensor = self.head(self.features(obs))
        return raw_BO.tanh() if self._squashes else raw_BO


class ImageCritics(nn.Module):
    """Several critics on shared convolutions, [B, C, H, W] or trees, and [B, A] -> [B, E].

    The loss of the critics does not change the features of the actor, and vice versa.

    The first hidden layer is shared; its output is joined with the action.
    """

    def __init__(
        self,
        inputs: Inputs,
        hidden: Sequence[int],
        *,
        num_actions: int,
        num_critics: int,
        activation: Activation,
    ) -> None:
        super().__init__()
        first, *rest = hidden
        self.encoder = Torso(inputs, (first,), activation=activation)
        sizes = (first + num_actions, *(rest or (first,)))
        self.critics = nn.ModuleList(
            Branch(sizes, 1, activation=activation) for _ in range(num_critics)
        )

    def forward(self, obs: Any, action: Tensor) -> Tensor:  # noqa: ANN401 - as `features`
        x_BI = torch.cat((self.encoder(obs), action), dim=1)
        return torch.cat([critic(x_BI) for critic in self.critics], dim=1)

"""Q-networks: one value per action.

The network for vectors has a written-out backward; the one for images uses autograd. A test
compares both with plain PyTorch. Both move their inputs to their own device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.formulas.q_learning import Values
from ding_lite.rl.host_or_device import placed
from ding_lite.rl.networks.activations import Activation
from ding_lite.rl.networks.conv import Conv
from ding_lite.rl.networks.inputs import as_floats
from ding_lite.rl.networks.layers import MLP, DuelingHead, Linear, MLPOutputs, mlp_shapes, names_of
from ding_lite.rl.networks.modules import QModule, hidden_widths
from ding_lite.rl.recorded.checks import check_outputs, sample_obs
from ding_lite.rl.recorded.network import RecordedQNetwork
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.flat import FlatWeights
from ding_lite.rl.weights.flat_module import FlatModule, seeded
from ding_lite.rl.weights.network import Network, Written


class QNetwork(Network, Values, Protocol):
    """Computes values, and the gradient of the weights from that of the values."""

    def backward(self, saved: Any, grad_BA: Tensor) -> None:  # noqa: ANN401 - differs by network
        """Write `grads`, given the activations and the gradient of the values."""

    def values(self, obs: NumpyArray) -> FloatArray:
        """Compute the values of observations, [N, A], as an array."""

    def copy_buffers(self, leader: Self) -> None:
        """Copy the buffers of another network, such as running means."""


class MLPQNetwork(Written, MLPOutputs):
    """An MLP for vectors; images are flattened."""

    def __init__(
        self,
        num_inputs: int,
        hidden: Sequence[int],
        *,
        num_actions: int,
        dueling: bool = False,
        activation: Activation = "relu",
        device: str | torch.device = "cpu",
    ) -> None:
        sizes = (num_inputs, *hidden_widths(hidden, dueling=dueling))
        names = names_of("torso", len(hidden))
        of_head = (
            DuelingHead.shapes(sizes[-1], num_actions)
            if dueling
            else Linear.shapes("head", sizes[-1], num_actions)
        )
        make_module = partial(
            QModule,
            (num_inputs,),
            (),
            hidden,
            num_actions=num_actions,
            dueling=dueling,
            activation=activation,
        )
        Written.__init__(self, mlp_shapes(names, of_head, sizes), make_module, device=device)
        self._device = self.weights.flat.device
        head = DuelingHead(self.weights, self.grads) if dueling else "head"
        layers = MLP(self.weights, self.grads, names, head, activation=activation)
        MLPOutputs.__init__(self, layers)

    def forward_pair(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        if obs.dim() > 2:
            obs, next_obs = obs.flatten(1), next_obs.flatten(1)
        return super().forward_pair(obs, next_obs)

    def forward_saving(self, obs: Tensor) -> tuple[Tensor, list[Tensor]]:
        return super().forward_saving(self._vectors(obs))

    def backward(self, saved: Sequence[Tensor], grad_BA: Tensor) -> None:
        super().backward(saved, grad_BA.to(self._device))

    def values(self, obs: NumpyArray) -> FloatArray:
        return self._layers.infer(as_floats(obs).reshape(len(obs), -1))

    def copy_buffers(self, leader: Self) -> None:
        """Do nothing, because there are no buffers."""

    def _vectors(self, obs: Tensor) -> Tensor:
        floats = as_floats(placed(obs, self._device))
        return floats if floats.dim() == 2 else floats.flatten(1)


def make_q_network(
    obs_shape: Sequence[int],
    convs: Sequence[Conv],
    hidden: Sequence[int],
    *,
    device: str | torch.device = "cpu",
    **shape: Any,  # noqa: ANN401 - what both kinds take
) -> QNetwork:
    """Make the network for observations: with convolutions and ReLUs, or an MLP."""
    if not convs:
        return MLPQNetwork(math.prod(obs_shape), hidden, device=device, **shape)
    with seeded(0, "unused"):
        module = QModule(obs_shape, convs, hidden, **shape)
    return RecordedQNetwork(FlatModule(module, device=device))


def recorded_q_networks(
    module: nn.Module,
    spec: EnvSpec,
    num_actions: int,
    *,
    random: TorchRandom,
    device: str | torch.device,
) -> tuple[QNetwork, QNetwork]:
    """Make the network of a user's module, and a target network of a copy of it."""
    module.to(device)
    seen = spec.unpack(sample_obs(spec, device=device))
    check_outputs(module, [seen], [(num_actions,)], spec=spec)
    flat, unpack = FlatModule(module, device=device), spec.unpack if spec.packing else None
    online, target = (
        RecordedQNetwork(each, unpack=unpack, random=random) for each in (flat, flat.twin())
    )
    return online, target


def draw_weights(weights: FlatWeights, rng: np.random.Generator, *, first_input: int = 1) -> None:
    """Initialise weights as PyTorch's layers do: uniform within 1 / sqrt(inputs of a unit).

    `first_input` is the first axis of inputs in the shape of a weight; 2 after an axis of members.
    """
    for name, shape in weights.shapes.items():
        weight_shape = weights.shapes[name.rpartition(".")[0] + ".weight"]
        bound = 1.0 / math.sqrt(math.prod(weight_shape[first_input:]))
        drawn: FloatArray = rng.uniform(-bound, bound, size=shape).astype(np.float32)
        weights[name].copy_(torch.from_numpy(drawn))

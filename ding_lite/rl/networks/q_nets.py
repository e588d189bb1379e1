"""Q-networks: one value per action.

The network for vectors has a written-out backward; the one for images uses autograd. A test
compares both with plain PyTorch. Both move their inputs to their own device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.host_or_device import placed
from ding_lite.rl.networks.layers import MLP, DuelingHead, Members, MLPOutputs, names_of
from ding_lite.rl.networks.modules import Inputs, QModule, without_numbers
from ding_lite.rl.packing import as_floats, vectors
from ding_lite.rl.recorded.checks import check_outputs, sample_obs
from ding_lite.rl.recorded.network import RecordedQNetwork
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.flat import FlatWeights
from ding_lite.rl.weights.flat_module import FlatModule, Written


class MLPQNetwork(Written, MLPOutputs):
    """An MLP for vectors; images are flattened."""

    def __init__(self, module: QModule, *, device: str | torch.device = "cpu") -> None:
        Written.__init__(self, module, device=device)
        self._device = self.weights.flat.device
        MLPOutputs.__init__(self, q_layers(module, self.weights, self.grads))

    def forward_pair(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        return super().forward_pair(vectors(obs), vectors(next_obs))

    def forward_saving(self, obs: Tensor) -> tuple[Tensor, list[Tensor]]:
        return super().forward_saving(vectors(as_floats(placed(obs, self._device))))

    def backward(self, saved: Sequence[Tensor], grad_BA: Tensor) -> None:
        super().backward(saved, grad_BA.to(self._device))

    def values(self, obs: NumpyArray) -> FloatArray:
        """Compute the values of observations, [N, A], as an array."""
        return self._layers.infer(vectors(as_floats(obs)))

    def copy_buffers(self, leader: object) -> None:
        """Do nothing, because there are no buffers."""


def q_layers(module: QModule, weights: Members, grads: Members, *, first: int | None = None) -> MLP:
    """Return the layers of a module for vectors, on weights of its own or of several members."""
    is_dueling = isinstance(module.head, nn.ModuleDict)
    head = DuelingHead(weights, grads, first=first) if is_dueling else "head"
    names = names_of("torso", len(module.torso))
    return MLP(weights, grads, names, head, activation=module.activation, first=first)


QNetwork: TypeAlias = MLPQNetwork | RecordedQNetwork


def make_q_network(
    inputs: Inputs,
    hidden: Sequence[int],
    *,
    device: str | torch.device = "cpu",
    unpack: Callable[[Tensor], Any] | None = None,
    **shape: Any,  # noqa: ANN401 - of `QModule`
) -> QNetwork:
    """Make the network for observations: with convolutions and ReLUs, or an MLP.

    Its weights are still to be drawn. `unpack` turns packed observations into trees, for a network
    with an `encoder` of them.
    """
    if inputs.are_plain:
        return MLPQNetwork(_mlp(inputs, tuple(hidden), **shape), device=device)
    with without_numbers():
        module = QModule(inputs, hidden, **shape)
    return RecordedQNetwork(FlatModule(module.to_empty(device=device)), unpack=unpack)


@lru_cache
def _mlp(inputs: Inputs, hidden: tuple[int, ...], **shape: Any) -> QModule:  # noqa: ANN401
    """Make a module, cached, as it takes longer to make than the weights of a network."""
    with without_numbers():
        return QModule(inputs, hidden, **shape)


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

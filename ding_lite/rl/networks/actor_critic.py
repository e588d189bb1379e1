"""Actor-critic networks.

For vectors they are two MLPs with a written-out backward, for images one torso of convolutions
under both, with autograd. On another device than the CPU all use autograd. A test compares both
with plain PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.networks.conv import Conv, ConvTorso, num_features, recorded
from ding_lite.rl.networks.flat import FlatWeights
from ding_lite.rl.networks.inputs import as_floats
from ding_lite.rl.networks.q_nets import MAX_NUMPY_PRODUCTS
from ding_lite.rl.networks.torso import MLP, Activation, Linear


class ActorCriticNetwork(Protocol):
    """Computes an actor's outputs and values, and the gradient of the weights."""

    weights: FlatWeights
    grads: FlatWeights

    def act(self, obs: NumpyArray) -> FloatArray:
        """Compute the actor's outputs, [N, D], as an array; nothing is recorded."""

    def values(self, obs: NumpyArray) -> FloatArray:
        """Compute the values, [N], as an array; nothing is recorded."""

    def forward(self, obs: NumpyArray) -> tuple[FloatArray, FloatArray, Any]:
        """Compute both, [B, D] and [B], and return the activations for `backward`."""

    def backward(
        self,
        saved: Any,  # noqa: ANN401 - each keeps its own
        outputs_grad_BD: FloatArray,
        value_grad_B: FloatArray,
    ) -> None:
        """Write `grads`, given the saved activations and the gradients of both."""


class MLPActorCritic:
    """Two separate MLPs, for vectors; images are flattened.

    Args:
        num_inputs: The length of an observation.
        hidden: The widths of the hidden layers of each.
        num_outputs: The number of the actor's outputs.
        activation: Of the hidden layers.
        more_shapes: Further tensors among the weights.
    """

    def __init__(
        self,
        num_inputs: int,
        hidden: Sequence[int],
        *,
        num_outputs: int,
        activation: Activation,
        more_shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        """Make the weights, all zero, their gradients, and the layers that share them."""
        sizes = (num_inputs, *hidden)
        shapes = mlp_shapes(sizes, num_outputs) | dict(more_shapes)
        largest = max(math.prod(shape) for shape in shapes.values())
        self._max_numpy_rows = MAX_NUMPY_PRODUCTS // largest
        self.weights = FlatWeights(shapes)
        self.grads = FlatWeights(shapes)
        self._actor, self._critic = (
            _Half(self.weights, self.grads, sizes=sizes, name=name, activation=activation)
            for name in ("actor", "critic")
        )

    def act(self, obs: NumpyArray) -> FloatArray:
        """Compute the actor's outputs, [N, D], as an array."""
        return self._look(self._actor, obs)

    def values(self, obs: NumpyArray) -> FloatArray:
        """Compute the values, [N], as an array."""
        return self._look(self._critic, obs)[:, 0]

    def forward(
        self, obs: NumpyArray
    ) -> tuple[FloatArray, FloatArray, tuple[list[Tensor], list[Tensor]]]:
        """Compute both, and return the output of each layer for `backward`."""
        vectors_BI = _tensor(_vectors(obs))
        outputs_BD, of_actor = self._actor.forward(vectors_BI)
        value_B1, of_critic = self._critic.forward(vectors_BI)
        return outputs_BD.numpy(), value_B1.numpy()[:, 0], (of_actor, of_critic)

    def backward(
        self,
        saved: tuple[list[Tensor], list[Tensor]],
        outputs_grad_BD: FloatArray,
        value_grad_B: FloatArray,
    ) -> None:
        """Write `grads`, given the saved activations and the gradients of both."""
        of_actor, of_critic = saved
        self._actor.backward(of_actor, torch.from_numpy(outputs_grad_BD))
        self._critic.backward(of_critic, torch.from_numpy(value_grad_B[:, None]))

    def _look(self, half: _Half, obs: NumpyArray) -> FloatArray:
        vectors_NI = _vectors(obs)
        if len(obs) <= self._max_numpy_rows:
            return half.forward_numpy(vectors_NI)
        found: FloatArray = half.forward(_tensor(vectors_NI))[0].numpy()
        return found


class _Half:
    """One of the two MLPs, and its head."""

    def __init__(
        self,
        weights: FlatWeights,
        grads: FlatWeights,
        *,
        sizes: Sequence[int],
        name: str,
        activation: Activation,
    ) -> None:
        self._torso = MLP(weights, grads, sizes=sizes, name=name, activation=activation)
        self._head = Linear(weights, grads, name=f"{name}.head")

    def forward(self, x_BI: Tensor) -> tuple[Tensor, list[Tensor]]:
        layers = self._torso.forward(x_BI)
        return self._head.forward(layers[-1]), layers

    def forward_numpy(self, x_NI: FloatArray) -> FloatArray:
        return self._head.forward_numpy(self._torso.forward_numpy(x_NI))

    def backward(self, layers: Sequence[Tensor], grad_BO: Tensor) -> None:
        self._head.backward(layers[-1], grad_BO)
        self._torso.backward(layers, self._head.backward_input(grad_BO))


class RecordedActorCritic:
    """An actor-critic network with autograd, on any device: two MLPs, or one torso for images.

    Args:
        obs_shape: Of an observation.
        convs: The convolutions; none for vectors.
        hidden: The widths of the hidden layers.
        num_outputs: The number of the actor's outputs.
        activation: Of the hidden layers; behind convolutions it is a ReLU.
        more_shapes: Further tensors among the weights.
        device: Of the network.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        convs: Sequence[Conv],
        hidden: Sequence[int],
        *,
        num_outputs: int,
        activation: Activation,
        more_shapes: Mapping[str, tuple[int, ...]],
        device: torch.device,
    ) -> None:
        """Make the weights, all zero, their gradients, and the layers that share them."""
        shapes: dict[str, tuple[int, ...]] = {}
        if convs:
            sizes = (num_features(obs_shape, convs), *hidden)
            shapes |= ConvTorso.shapes(obs_shape[0], convs) | MLP.shapes(sizes)
            for name, width in (("actor", num_outputs), ("critic", 1)):
                shapes |= Linear.shapes(f"{name}.head", sizes[-1], width)
        else:
            shapes |= mlp_shapes((math.prod(obs_shape), *hidden), num_outputs)
        num_own = sum(math.prod(shape) for shape in shapes.values())
        shapes |= more_shapes
        self.weights = FlatWeights(shapes, device=device)
        self.grads = self.weights.zeros_like()
        self._own_grads = self.grads.flat[:num_own]
        self._device = device
        self._convs = ConvTorso(self.weights, self.grads, convs=convs) if convs else None
        self._activation = torch.relu if convs or activation == "relu" else torch.tanh
        layers = range(len(hidden))
        self._torso = [self._layer(f"torso.{layer}") for layer in layers] if convs else []
        self._actor, self._critic = (
            [
                *([] if convs else [self._layer(f"{name}.{layer}") for layer in layers]),
                self._layer(f"{name}.head"),
            ]
            for name in ("actor", "critic")
        )

    @torch.no_grad()
    def act(self, obs: NumpyArray) -> FloatArray:
        """Compute the actor's outputs, [N, D], as an array."""
        return _on_host(self._run(self._actor, self._features(obs)))

    @torch.no_grad()
    def values(self, obs: NumpyArray) -> FloatArray:
        """Compute the values, [N], as an array."""
        return _on_host(self._run(self._critic, self._features(obs)))[:, 0]

    @torch.enable_grad()
    def forward(self, obs: NumpyArray) -> tuple[FloatArray, FloatArray, list[Tensor]]:
        """Compute both, recorded by autograd."""
        features_BI = self._features(obs)
        outputs_BD = self._run(self._actor, features_BI)
        value_B = self._run(self._critic, features_BI)[:, 0]
        return _on_host(outputs_BD), _on_host(value_B), [outputs_BD, value_B]

    def backward(
        self, saved: list[Tensor], outputs_grad_BD: FloatArray, value_grad_B: FloatArray
    ) -> None:
        """Write `grads`, given the saved activations and the gradients of both."""
        self._own_grads.zero_()  # autograd adds to them
        given = (torch.from_numpy(grad) for grad in (outputs_grad_BD, value_grad_B))
        torch.autograd.backward(saved, [grad.to(self._device) for grad in given])

    def _layer(self, name: str) -> tuple[Tensor, Tensor]:
        weight, bias = f"{name}.weight", f"{name}.bias"
        return recorded(self.weights, self.grads, weight), recorded(self.weights, self.grads, bias)

    def _features(self, obs: NumpyArray) -> Tensor:
        floats = as_floats(_tensor(obs).to(self._device))
        if self._convs is None:
            return floats.flatten(1)
        features_BI = self._convs.forward(floats)
        for weight_OI, bias_O in self._torso:
            features_BI = torch.relu(F.linear(features_BI, weight_OI, bias_O))
        return features_BI

    def _run(self, layers: Sequence[tuple[Tensor, Tensor]], x_BI: Tensor) -> Tensor:
        *hidden, head = layers
        for weight_OI, bias_O in hidden:
            x_BI = self._activation(F.linear(x_BI, weight_OI, bias_O))
        return F.linear(x_BI, *head)


def mlp_shapes(sizes: Sequence[int], num_outputs: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of two separate MLPs, by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, width in (("actor", num_outputs), ("critic", 1)):
        shapes |= MLP.shapes(sizes, name=name) | Linear.shapes(f"{name}.head", sizes[-1], width)
    return shapes


def make_actor_critic(
    obs_shape: Sequence[int],
    convs: Sequence[Conv],
    hidden: Sequence[int],
    *,
    num_outputs: int,
    activation: Activation,
    more_shapes: Mapping[str, tuple[int, ...]],
    device: torch.device,
) -> ActorCriticNetwork:
    """Make the network for the observations and the device."""
    if convs or device.type != "cpu":
        return RecordedActorCritic(
            obs_shape,
            convs,
            hidden,
            num_outputs=num_outputs,
            activation=activation,
            more_shapes=more_shapes,
            device=device,
        )
    return MLPActorCritic(
        math.prod(obs_shape),
        hidden,
        num_outputs=num_outputs,
        activation=activation,
        more_shapes=more_shapes,
    )


def draw_orthogonal(weights: FlatWeights, rng: np.random.Generator) -> None:
    """Initialise weights orthogonally (Saxe et al. 2014).

    The heads differ, as is usual (Huang et al. 2022, "The 37 implementation details of PPO"):
    the actor's is so small that all actions begin about equally likely. Biases are 0.
    """
    gains = {"actor.head.weight": 0.01, "critic.head.weight": 1.0}
    for name, shape in weights.shapes.items():
        if name.endswith(".weight"):
            drawn = gains.get(name, math.sqrt(2.0)) * _orthogonal(shape, rng)
            weights[name].copy_(torch.from_numpy(drawn.astype(np.float32)))


def _orthogonal(shape: tuple[int, ...], rng: np.random.Generator) -> NumpyArray:
    rows, columns = shape[0], math.prod(shape[1:])
    tall = rng.normal(size=(max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(tall)
    q *= np.sign(np.diag(r))  # else the signs are not even
    return (q if rows >= columns else q.T).reshape(shape)


def _vectors(obs: NumpyArray) -> FloatArray:
    return as_floats(obs).reshape(len(obs), -1)


def _tensor(array: NumpyArray) -> Tensor:
    """Return an array as a tensor; read-only arrays, as from other nodes, are copied."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _on_host(tensor: Tensor) -> FloatArray:
    array: FloatArray = tensor.detach().cpu().numpy()
    return array

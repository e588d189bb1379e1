"""Heads: from features to what a policy asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ding_lite.rl.batch import FloatArray
from ding_lite.rl.flat import FlatWeights
from ding_lite.rl.networks.torso import MLP, Linear

MAX_NUMPY_PRODUCTS = 2**17
"""Layers of up to so many multiplications are faster in numpy; its threads start at twice that."""


class QNetwork:
    """An MLP torso with a linear head: one value per action.

    Args:
        num_inputs: The length of an observation.
        hidden: The widths of the hidden layers.
        num_actions: How many values to give.
    """

    def __init__(self, num_inputs: int, hidden: Sequence[int], *, num_actions: int) -> None:
        """Make the weights, all zero, their gradients, and the layers that share them."""
        sizes = (num_inputs, *hidden)
        shapes = MLP.shapes(sizes) | Linear.shapes("head", sizes[-1], num_actions)
        largest = max(math.prod(shape) for shape in shapes.values())
        self._max_numpy_rows = MAX_NUMPY_PRODUCTS // largest
        self.weights = FlatWeights(shapes)
        self.grads = FlatWeights(shapes)
        self._torso = MLP(self.weights, self.grads, sizes=sizes)
        self._head = Linear(self.weights, self.grads, name="head")

    def forward(self, obs_BI: Tensor) -> Tensor:
        """Compute the values, [B, A]."""
        return self._head.forward(self._torso.forward(obs_BI)[-1])

    def forward_saving(self, obs_BI: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Compute the values, and keep what `backward` needs."""
        outputs = self._torso.forward(obs_BI)
        return self._head.forward(outputs[-1]), outputs

    def backward(self, outputs: Sequence[Tensor], grad_BA: Tensor) -> None:
        """Write `grads`, given the gradient of the values.

        Args:
            outputs: What `forward_saving` kept, or the first B rows of each.
            grad_BA: The gradient of the loss with respect to the values.
        """
        self._head.backward(outputs[-1], grad_BA)
        self._torso.backward(outputs, self._head.backward_input(grad_BA))

    def greedy(self, obs_NI: FloatArray) -> npt.NDArray[np.int64]:
        """Choose the action of the highest value for each observation, [N]."""
        greedy_N: npt.NDArray[np.int64] = self.values(obs_NI).argmax(axis=1)
        return greedy_N

    def values(self, obs_NI: FloatArray) -> FloatArray:
        """Compute the values of few or many observations, [N, A], as an array."""
        if len(obs_NI) <= self._max_numpy_rows:
            return self._head.forward_numpy(self._torso.forward_numpy(obs_NI))
        values_NA: FloatArray = self.forward(torch.from_numpy(obs_NI)).numpy()
        return values_NA

    def draw_weights(self, rng: np.random.Generator) -> None:
        """Draw first weights as `torch.nn.Linear` does: uniform within 1 / sqrt(inputs)."""
        for name, shape in self.weights.shapes.items():
            weight_shape = self.weights.shapes[name.rpartition(".")[0] + ".weight"]
            bound = 1.0 / math.sqrt(weight_shape[1])
            drawn = rng.uniform(-bound, bound, size=shape).astype(np.float32)
            self.weights[name].copy_(torch.from_numpy(drawn))

"""The written-out activations are those of autograd, for tensors and arrays."""

from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ding_lite.rl.networks.activations import FUNCTIONS, Activation

PLAIN: Any = {"relu": F.relu, "tanh": torch.tanh, "gelu": F.gelu, "elu": F.elu, "silu": F.silu}
NAMES = pytest.mark.parametrize("name", get_args(Activation))


@NAMES
def test_forward_and_backward_are_those_of_autograd(name):
    function = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    x, grad = (torch.from_numpy(rng.normal(size=(9, 7), scale=3.0)).float() for _ in range(2))
    leaf = x.clone().requires_grad_()
    expected = PLAIN[name](leaf)
    expected.backward(grad)

    outputs: list[torch.Tensor] = []
    function.extend(outputs, x.clone())
    torch.testing.assert_close(outputs[-1], expected.detach())
    torch.testing.assert_close(function.recorded(x), expected.detach())
    array = x.numpy().copy()
    function.forward_numpy(array)
    np.testing.assert_allclose(array, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(function.backward(grad.clone(), outputs[0]), leaf.grad)
    assert len(outputs) == function.stride

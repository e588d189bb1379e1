"""The written-out layers of several members compute what autograd does for each member alone."""

from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ding_lite.rl.networks.activations import FUNCTIONS, Activation
from ding_lite.rl.networks.layers import MLP, ONE_THREAD_PRODUCTS, DuelingHead, names_of, one_member
from ding_lite.rl.networks.modules import Inputs, QModule
from ding_lite.rl.weights.flat import FlatWeights

HIDDEN = names_of("torso", 2)
PLAIN: Any = {"relu": F.relu, "tanh": torch.tanh, "gelu": F.gelu, "elu": F.elu, "silu": F.silu}


class Members(dict[str, Tensor]):
    """Tensors of several members."""

    @classmethod
    def drawn(cls, shapes: dict[str, tuple[int, ...]], count: int) -> "Members":
        rng = np.random.default_rng(1)
        drawn = {name: rng.normal(size=(count, *shape)) for name, shape in shapes.items()}
        return cls({name: torch.from_numpy(array).float() for name, array in drawn.items()})


def shapes_of(num_outputs: int, *, dueling: bool = False) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a network of 5 inputs, with layers of 8 and 6 units."""
    hidden = (8, 3) if dueling else (8, 6)
    module = QModule(Inputs((5,)), hidden, num_actions=num_outputs, dueling=dueling)
    return {key: tuple(parameter.shape) for key, parameter in module.named_parameters()}


def plain(name: Activation, dueling: bool, named: dict[str, Tensor], x_BI: Tensor) -> Tensor:
    """Compute one member as users write it."""
    for layer in HIDDEN:
        x_BI = F.linear(x_BI, named[f"{layer}.weight"], named[f"{layer}.bias"])
        x_BI = PLAIN[name](x_BI)
    if not dueling:
        return F.linear(x_BI, named["head.weight"], named["head.bias"])
    value, advantage = (
        F.linear(part, named[f"head.{which}.weight"], named[f"head.{which}.bias"])
        for which, part in zip(("value", "advantage"), x_BI.chunk(2, dim=-1), strict=True)
    )
    return value + advantage - advantage.mean(-1, keepdim=True)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("name", get_args(Activation))
def test_members_compute_and_learn_as_each_alone(name: Activation, dueling: bool) -> None:
    shapes = shapes_of(4, dueling=dueling)
    weights, grads = Members.drawn(shapes, 4), Members.drawn(shapes, 4)
    mlp = MLP(
        weights,
        grads,
        HIDDEN,
        DuelingHead(weights, grads, first=3) if dueling else "head",
        activation=name,
        first=3,
    )
    x_GBI, grad_GBO = torch.randn(3, 11, 5), torch.randn(3, 11, 4)
    untouched = grads["torso.0.weight"][3].clone()
    outputs = mlp.forward(x_GBI)
    mlp.backward(outputs, grad_GBO.clone())
    x_grad_GBI = mlp.backward_input(outputs, grad_GBO.clone(), last=2)
    for member in range(3):
        named = {key: weights[key][member].clone().requires_grad_() for key in shapes}
        x_BI = x_GBI[member].clone().requires_grad_()
        expected = plain(name, dueling, named, x_BI)
        expected.backward(grad_GBO[member])
        torch.testing.assert_close(outputs[-1][member], expected.detach())
        for key, leaf in named.items():
            torch.testing.assert_close(grads[key][member], leaf.grad, rtol=1e-4, atol=1e-5)
        assert x_BI.grad is not None
        torch.testing.assert_close(x_grad_GBI[member], x_BI.grad[:, -2:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grads["torso.0.weight"][3], untouched, rtol=0, atol=0)
    torch.testing.assert_close(FUNCTIONS[name].recorded(x_GBI), PLAIN[name](x_GBI))
    numbers = mlp.forward_numpy(x_GBI[0].numpy())
    np.testing.assert_allclose(numbers, outputs[-1][0].numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [7, ONE_THREAD_PRODUCTS // 40 + 1])
def test_a_single_network_has_no_axis_of_members(rows: int) -> None:
    shapes = shapes_of(1)
    weights, grads = FlatWeights(shapes), FlatWeights(shapes)
    alone = MLP(weights, grads, HIDDEN, "head", activation="tanh")
    of_member = FlatWeights(shapes)
    member = one_member(weights), one_member(of_member)
    as_member = MLP(*member, HIDDEN, "head", activation="tanh")
    weights.flat.copy_(torch.randn(len(weights.flat)))  # seen through the views
    x_BI, grad_B1 = torch.randn(rows, 5), torch.randn(rows, 1)
    outputs, stacked = alone.forward(x_BI), as_member.forward(x_BI[None])
    torch.testing.assert_close(outputs[-1], stacked[-1][0])
    alone.backward(outputs, grad_B1)
    as_member.backward(stacked, grad_B1[None])
    torch.testing.assert_close(grads.flat, of_member.flat, rtol=1e-4, atol=1e-3)

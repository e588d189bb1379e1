"""A traced function and its gradients are those that autograd computes."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ding_lite.rl.recorded.traced import trace, trace_gradients


def layers(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.relu(x @ a) @ b


def in_place(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    hidden = x @ a
    hidden[:, 0] = 1.0
    hidden.relu_()
    return (hidden @ b).tanh_()


def views(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    both = torch.cat((x, x @ a), dim=-1)
    first, second = both.chunk(2, dim=-1)
    return (first.t().contiguous().view(-1, len(x)).t() * second).sum(-1, keepdim=True) @ b[:1]


def one_unused(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (x @ a).square()


def one_as_it_is(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return b + (x.sum() * a.mean()).exp()


def by_autograd(values: Tensor, by: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(values, by, grad, allow_unused=True, materialize_grads=True)


def draw(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for shape in ((5, 4), (4, 4), (4, 4))]


@pytest.mark.parametrize("by", [slice(1, None), slice(0, 1)])
@pytest.mark.parametrize("function", [layers, in_place, views, one_unused, one_as_it_is])
def test_values_and_gradients_are_those_of_autograd_also_for_other_numbers(function, by):
    traced = trace_gradients(function, draw(0), by_autograd, by)
    for seed in range(3):
        given = draw(seed)
        with torch.no_grad():
            values, *saved = traced.forward(*given)
            grad = torch.randn_like(values)
            gradients = traced.backward(*saved, grad)
        leaves = [each.clone().requires_grad_() for each in given]
        expected = function(*leaves)
        torch.testing.assert_close(values, expected.detach(), rtol=0.0, atol=0.0)
        for found, right in zip(gradients, by_autograd(expected, leaves[by], grad), strict=True):
            torch.testing.assert_close(found, right)


def test_a_trace_runs_without_the_function() -> None:
    calls = []

    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return x.exp()

    x = torch.arange(3.0)
    forward, traced = trace(counted, [x]), trace_gradients(counted, [x], by_autograd, slice(0, 1))
    made = len(calls)
    values, *saved = traced.forward(x + 1.0)
    (gradient,) = traced.backward(*saved, torch.full((3,), 2.0))
    torch.testing.assert_close(forward(x + 1.0), (x + 1.0).exp())
    torch.testing.assert_close(gradient, 2.0 * (x + 1.0).exp())
    assert not values.requires_grad
    assert len(calls) == made

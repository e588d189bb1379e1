"""Batched DQN policies with modules of a user: one `vmap` for all modules of one kind.

The parameters of the modules are stacked, and `torch.func.functional_call` computes all of them as
one. `vmap` takes 0.7 ms in Python for a small module, so that its operations are traced, once for
each shape of a batch. What `vmap` cannot compute learns alone: modules with buffers, such as
BatchNorm, with random numbers, such as Dropout, or with branches that depend on the values of
tensors. One try with random observations compares values and gradients with those of the module
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ding_lite.evolution.batched_dqn import DQNStack
from ding_lite.evolution.batched_policies import Layout, StackedTensors
from ding_lite.rl.batch import FloatArray, NumpyArray, Transitions
from ding_lite.rl.formulas.q_learning import best_values
from ding_lite.rl.networks.layers import MLP
from ding_lite.rl.policies.base import check_obs
from ding_lite.rl.policies.dqn import DQN
from ding_lite.rl.weights.flat_module import copied

_can_stack: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Whether `vmap` computes a module, for each that was tried."""
_MAX_GRAPHS = 64
"""The traces that one stack keeps."""


class ModuleDQNStack(DQNStack):
    """A stack of DQN policies with modules of one architecture, made by one function.

    Example:
        >>> from ding_lite.rl import DQNConfig, make_envs
        >>> spec = make_envs("CartPole-v1", 1).spec
        >>> make = lambda spec: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        >>> policies = [DQN(spec, DQNConfig(seed=seed), network=make) for seed in range(3)]
        >>> ModuleDQNStack(policies[0], 3).q_values(policies, np.zeros((3, 5, 4), np.float32)).shape
        (3, 5, 2)
    """

    def __init__(self, like: DQN, count: int) -> None:
        """Allocate memory."""
        self._module = copied(like.module)
        super().__init__(like, count)

    @classmethod
    def key(cls, policy: DQN) -> Hashable | None:
        """Return None for modules that `vmap` cannot compute, and for shared gradients."""
        config = policy.config
        if not policy.has_own_network or policy.has_own_optimizer or policy.reduce_gradient:
            return None
        if config.normalize_obs or policy.spec.packing is not None:
            return None
        module = policy.module
        if module not in _can_stack:
            _can_stack[module] = _is_stackable(module, policy.spec.obs_shape, policy.spec.obs_dtype)
        if not _can_stack[module]:
            return None
        weights, _ = policy.flat_weights
        kinds = tuple(type(part) for part in module.modules())
        return tuple(weights.shapes.items()), kinds, repr(module), config.loss, config.double

    def q_values(self, policies: Sequence[DQN], obs: FloatArray) -> FloatArray:
        """Estimate the returns of the actions for observations of each policy.

        Each computes its own: their numbers change from call to call, and tracing takes longer.
        """
        rows = obs if len(obs) == len(policies) else [obs[0]] * len(policies)
        pairs = zip(policies, rows, strict=True)
        return np.stack([policy.q_values(row) for policy, row in pairs])

    def hold(self, policies: Sequence[DQN]) -> Callable[[NumpyArray], NumpyArray]:
        """Return a function that acts greedily by some policies."""
        return lambda obs: self.q_values(policies, obs).argmax(axis=2)

    def _evaluate(
        self, layout: Layout[DQN], batch: Transitions
    ) -> tuple[FloatArray, list[Tensor], FloatArray]:
        """Return Q(x, .), recorded values for the backward, and the value of x'."""
        count = layout.count
        online, target = self._first_online(count), self._first_target(count)
        obs, next_obs = (self._inputs(found, count) for found in (batch.obs, batch.next_obs))
        with torch.no_grad():
            value_GBA = rank_GBA = target.forward(next_obs)[-1].numpy()
            if self._is_double:
                rank_GBA = online.forward(next_obs)[-1].numpy()
        with torch.enable_grad():
            saved = online.forward(obs)
        next_q_GB = best_values(layout, value_GBA, rank_GBA)
        return saved[-1].detach().numpy(), saved, next_q_GB

    def _inputs(self, obs: Tensor | NumpyArray, count: int) -> Tensor:
        check_obs(obs, self._spec)
        return torch.as_tensor(obs).reshape(count, -1, *self._spec.obs_shape)

    def _make_network(self, weights: StackedTensors, first: int) -> MLP:
        names = [name for name, _ in self._module.named_parameters()]
        grads = [self._grads[name][:first] for name in names]
        stacked = _StackedModule(self._module, {n: weights[n][:first] for n in names}, grads)
        return cast(MLP, stacked)  # with the methods that a DQNStack calls


class _StackedModule:
    """Modules of one architecture, computed together."""

    def __init__(
        self,
        module: nn.Module,
        parameters: Mapping[str, Tensor],
        grads: Sequence[Tensor],
    ) -> None:
        self._module, self._names = module, [*parameters]
        self._leaves = [one.detach().requires_grad_() for one in parameters.values()]
        self._grads = grads
        self._graphs: dict[Hashable, Callable[..., Tensor]] = {}

    def forward(self, obs: Tensor) -> list[Tensor]:
        """Compute the values of each module, [G, B, A]; recorded where gradients are."""
        key = (obs.shape, torch.is_grad_enabled())
        graph = self._graphs.get(key)
        if graph is None:
            if len(self._graphs) >= _MAX_GRAPHS:
                self._graphs.clear()
            graph = self._graphs[key] = self._trace(obs)
        return [graph(obs, *self._leaves)]

    def backward(self, saved: Sequence[Tensor], grad_GBA: Tensor) -> None:
        """Write the gradients, given those of the values."""
        found = torch.autograd.grad(  # zeros for parameters that are not used
            saved[-1], self._leaves, grad_GBA, allow_unused=True, materialize_grads=True
        )
        for grad, tensor in zip(self._grads, found, strict=True):
            grad.copy_(tensor)

    def _trace(self, obs: Tensor) -> Callable[..., Tensor]:
        """Return the operations of all modules for inputs of this shape."""
        self._module.train(torch.is_grad_enabled())

        def compute_one(parameters: dict[str, Tensor], obs: Tensor) -> Tensor:
            values: Tensor = functional_call(self._module, parameters, (obs,))
            return values

        def compute(obs: Tensor, *leaves: Tensor) -> Tensor:
            with _FastLinear():
                values: Tensor = vmap(compute_one)(dict(zip(self._names, leaves, strict=True)), obs)
            return values

        with torch.no_grad():
            traced = make_fx(compute)(obs, *(leaf.detach() for leaf in self._leaves))
        forward: Callable[..., Tensor] = traced.forward
        return forward


class _FastLinear(TorchFunctionMode):
    """Computes linear layers under `vmap` by one call each; its own rule takes four."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - any function of torch
        if func is F.linear and not kwargs and len(args) == 3 and args[2] is not None:
            apply: Any = _Linear.apply
            return apply(*args)
        return func(*args, **(kwargs or {}))


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
    """Return a tensor with the dimension of the modules as its first one."""
    if dim is None:
        return tensor.expand(count, *tensor.shape)
    return tensor if dim == 0 else tensor.movedim(dim, 0)


def _is_stackable(module: nn.Module, obs_shape: Sequence[int], dtype: Any) -> bool:  # noqa: ANN401
    """Return whether two copies of a module compute and learn together as alone."""
    parameters = dict(module.named_parameters())
    if not all(parameter.requires_grad for parameter in parameters.values()):
        return False
    if next(module.buffers(), None) is not None:
        return False
    drawn = np.random.default_rng(0).integers(0, 3, size=(2, 3, *obs_shape)).astype(dtype)
    obs = torch.from_numpy(drawn)
    # A module that draws random numbers leaves the state of the generator as it was.
    state, twin = torch.get_rng_state(), copied(module).train()
    try:
        stacked = {n: torch.stack([p.detach(), p.detach()]) for n, p in parameters.items()}
        grads = [torch.zeros_like(tensor) for tensor in stacked.values()]
        together = _StackedModule(twin, stacked, grads)
        with torch.enable_grad():
            found = together.forward(obs)
            together.backward(found, torch.ones_like(found[-1]))
            alone = [twin(part) for part in obs]
            expected = [
                torch.autograd.grad(
                    values.sum(), [*twin.parameters()], allow_unused=True, materialize_grads=True
                )
                for values in alone
            ]
        pairs = [
            (found[-1], torch.stack(alone)),
            *zip(grads, map(torch.stack, zip(*expected, strict=True)), strict=True),
        ]
        return all(torch.allclose(*pair, rtol=1e-3, atol=1e-4) for pair in pairs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return False
    finally:
        torch.set_rng_state(state)

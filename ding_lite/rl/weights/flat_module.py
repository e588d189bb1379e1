"""Any `nn.Module` on flat weights: its parameters and their gradients become views.

Publishing, averaging of gradients, checkpoints and Adam then treat a user's module like the
networks of this package, of which some have a backward that is written out.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from ding_lite.errors import ConfigError, kind_of
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.flat import FlatWeights, load_all

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_UNUSED = 1e-35
"""The gradient of a parameter that the loss does not use: with 0 other nodes would take it for one
that is used. Clipping, and a mean with 0, may make it smaller."""
MakeModule: TypeAlias = nn.Module | Callable[[EnvSpec], nn.Module]
"""A module, or a function of the spec, such as a class, that makes one."""


class FlatModule:
    """Holds a module's parameters in flat weights, and its buffers separately.

    Args:
        module: The module. Its parameters become views into `weights`, and their gradients views
            into `grads`.
        memory: Existing weights and gradients with the names of its parameters, such as a part of
            the weights of several modules; new ones if None.
        last: The name of a parameter that comes after all others, if the module has it.

    Raises:
        ConfigError: If a parameter is not float32, is not initialised, or shares its memory with
            another policy's.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        device: str | torch.device = "cpu",
        name: str = "network",
        memory: tuple[FlatWeights, FlatWeights] | None = None,
        last: str = "",
    ) -> None:
        self.module = module.to(device)
        check_parameters(module, name=name)
        parameters = parameters_of(module, last=last)
        if memory is None:
            weights = FlatWeights({n: p.shape for n, p in parameters.items()}, device=device)
            memory = (weights, weights.zeros_like())
        self.weights = memory[0]
        self.grads = memory[1]
        """The gradients of the parameters; autograd adds to them."""
        for key, parameter in parameters.items():
            self.weights[key].copy_(parameter.detach())
        self._bound = [
            (p, self.weights[n].data_ptr(), self.grads[n]) for n, p in parameters.items()
        ]
        bind(self.module, self.weights, self.grads)
        if not self.weights.flat.is_cpu and any(
            isinstance(p, nn.RNNBase) for p in module.modules()
        ):
            # cuDNN copies them into memory of their own in each call, which takes little time.
            warnings.filterwarnings(
                "ignore", "RNN module weights are not part of single contiguous"
            )
        kept = module.state_dict().keys()
        parts = dict(module.named_modules())
        self._buffers = {
            name: (parts[name.rpartition(".")[0]]._buffers, name.rpartition(".")[2])
            for name, _ in module.named_buffers()
            if name in kept
        }
        for owner, key in self._buffers.values():
            owner[key] = owner[key].contiguous()  # numbers of an expanded one share memory
        self.run: Callable[..., Any] = module
        """The function that updates call: the module, compiled or not."""
        self._tree: list[tuple[dict[str, Any], str, object]] = [
            (held, key, value)
            for part in parts.values()
            for held in (part._modules, part._parameters)
            for key, value in held.items()
        ]
        self._modes: list[dict[str, Any]] = [part.__dict__ for part in parts.values()]
        self._switches = all(
            "training" in vars(part) and getattr(part.train, "__func__", None) is nn.Module.train
            for part in parts.values()
        )

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of the module, in the order of the flat weights."""
        return [parameter for parameter, *_ in self._bound]

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The buffers that are saved, such as the running means of BatchNorm.

        They are read anew at each access, as `forward` may replace them.
        """
        return {name: owner[key].detach() for name, (owner, key) in self._buffers.items()}

    def train(self, is_training: bool) -> None:
        if not self._switches:  # a user's module overrides `train`
            self.module.train(is_training)
            return
        for attributes in self._modes:  # nn.Module.train takes ten times as long
            attributes["training"] = is_training

    def zero_grad(self, num_apart: int = 0) -> None:
        """Set the gradients to zero, as autograd adds to them.

        Gradients that the user dropped are bound again, also those of parameters that the user
        unfroze. If the user moved a parameter, an error is raised.
        """
        self.check_bound()
        for parameter, _, grad in self._bound:
            if parameter.grad is not grad and parameter.requires_grad:
                parameter.grad = grad
        grad_P = self.grads.flat
        (grad_P[:-num_apart] if num_apart else grad_P).zero_()

    def backward(self, loss: Tensor) -> list[bool]:
        """Write the gradient of a loss; return which parameters it depends on.

        The gradient of other parameters is too small to have an effect, but not zero.
        """
        self.check_bound()
        for parameter, *_ in self._bound:
            parameter.grad = None  # autograd sets it, if the loss depends on the parameter
        torch.autograd.backward([loss])
        found = [(grad, parameter.grad) for parameter, _, grad in self._bound]
        used = [(grad, new) for grad, new in found if new is not None]
        if len(used) < len(found):
            self.grads.flat.fill_(_UNUSED)
        torch._foreach_copy_([grad for grad, _ in used], [_dense(new) for _, new in used])
        for parameter, _, grad in self._bound:
            if parameter.requires_grad:
                parameter.grad = grad
        return [new is not None for _, new in found]

    def are_used(self) -> list[bool]:
        """Return which parameters the loss depends on, by a gradient of this or other nodes."""
        sizes = [grad.abs() for *_, grad in self._bound]
        return [not bool(((size > 0.0) & (size < 1e5 * _UNUSED)).all()) for size in sizes]

    def check_bound(self) -> None:
        for held, key, value in self._tree:
            if held.get(key) is not value:
                raise ConfigError(
                    f"{key!r} in the {type(self.module).__name__} of a policy was replaced, so "
                    f"that it would be neither learned nor saved. Replace it before the policy is "
                    f"made, or copy weights into it: `policy.module.load_state_dict(...)`."
                )
        for parameter, address, _ in self._bound:
            if parameter.data_ptr() != address:
                raise ConfigError(
                    f"The parameters of the {type(self.module).__name__} of a policy were moved, "
                    f"as `half()`, `to(...)` or `parameter.data = ...` do, so that it would learn "
                    f"weights that it does not use. Change a copy, `copy.deepcopy(policy.module)`, "
                    f"or values in place: `with torch.no_grad(): parameter.copy_(...)`."
                )

    def snapshot(self) -> dict[str, Tensor]:
        self.check_bound()
        of_buffers = {n: b.to("cpu", copy=True) for n, b in self.buffers.items()}
        return {**self.weights.snapshot(), **of_buffers}

    def load(self, tensors: Mapping[str, Any]) -> None:
        self.check_bound()
        load_all(({**self.weights.views, **self.buffers}, tensors))

    def twin(self) -> FlatModule:
        """Make an independent copy, for example as a target network."""
        return FlatModule(copied(self.module), device=self.weights.flat.device)

    def copy_buffers(self, leader: FlatModule) -> None:
        if self._buffers:
            source = leader.buffers
            for name, buffer in self.buffers.items():
                buffer.copy_(source[name])


class Written:
    """The weights of a module on the device `meta`, beside a written-out backward."""

    def __init__(
        self,
        module: nn.Module,
        *,
        device: str | torch.device = "cpu",
        last: str = "",
    ) -> None:
        self._undrawn = module
        shapes = {name: each.shape for name, each in parameters_of(module, last=last).items()}
        self.weights = FlatWeights(shapes, device=device)
        self.grads = self.weights.zeros_like()
        self.snapshot, self.load = self.weights.snapshot, self.weights.load
        self.buffers: Mapping[str, Tensor] = {}

    @cached_property
    def module(self) -> nn.Module:
        """The network as a plain module in the same memory."""
        module = copy.deepcopy(self._undrawn)
        bind(module, self.weights, self.grads)
        return module


def _dense(grad: Tensor) -> Tensor:
    return grad if grad.layout is torch.strided else grad.to_dense()


def acting(module: nn.Module) -> nn.Module:
    for part in module.modules():
        part.training = False
    return module


def parameters_of(module: nn.Module, *, last: str) -> dict[str, nn.Parameter]:
    """Return parameters by name, a shared one once, and the one named `last` as the last one."""
    parameters = dict(module.named_parameters())
    if last in parameters:
        parameters[last] = parameters.pop(last)
    return parameters


def bind(module: nn.Module, weights: FlatWeights, grads: FlatWeights) -> None:
    """Make a module's parameters views into flat weights of the same names."""
    if next(module.parameters()).is_meta and not weights.flat.is_meta:
        # The `data` of these parameters cannot move to another device.
        module.load_state_dict({name: weights[name] for name in weights.shapes}, assign=True)
    for name, parameter in module.named_parameters():
        parameter.data = weights[name]
        if parameter.requires_grad:
            parameter.grad = grads[name]


def made_module(make: MakeModule, spec: EnvSpec, *, seed: int, name: str = "network") -> nn.Module:
    """Return a user's module: the given one, or the one that a function of the spec makes."""
    if isinstance(make, nn.Module):
        return make
    if not callable(make):
        raise ConfigError(
            f"`{name}` is {kind_of(make)}; an nn.Module was expected, or a function of the "
            f"spec that makes one, such as `lambda spec: MyNetwork(spec.obs_shape[0])`."
        )
    with TorchRandom(seed, name):
        try:
            module = make(spec)
        except TypeError as error:
            given = getattr(make, "__name__", kind_of(make))
            raise ConfigError(
                f"`{name}={given}` was called with the spec of the environments, its only "
                f"argument, and raised: {error}. Write `{name}=lambda spec: "
                f"{given if inspect.isclass(make) else 'MyNetwork'}(...)`."
            ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"The function given as `{name}` returned {kind_of(module)}; an nn.Module was expected."
        )
    return module


def copied(module: nn.Module) -> nn.Module:
    """Copy a module; raise ConfigError if it cannot be copied."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise ConfigError(
            f"The module {type(module).__name__} is TorchScript, of which PyTorch makes no copies "
            f"that can be learned, and targets and clones are copies. Give the module itself, "
            f'without `torch.jit`; `compile="torch"` compiles it for updates.'
        )
    try:
        twin = copy.deepcopy(module)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"The module {type(module).__name__} cannot be copied, which targets and clones need: "
            f"{str(error).splitlines()[0]} Tensors that are computed from parameters belong into "
            f"`forward`, or use torch.nn.utils.parametrizations, such as its spectral_norm; an "
            f"output that `forward` keeps must be detached, `self.last = output.detach()`; locks "
            f"and open files belong elsewhere."
        ) from error
    new: Any
    for own, new in zip(module.parameters(), twin.parameters(), strict=True):
        if new.requires_grad:  # PyTorch does not copy hooks
            adders = new.register_hook, new.register_post_accumulate_grad_hook
            for kind, add in zip(_HOOKS, adders, strict=True):
                for hook in _hooks(own, kind):
                    add(hook)
    return twin


def has_hooks(parameter: nn.Parameter) -> bool:
    """Return whether functions of the user see, and may change, the gradient of a parameter."""
    return any(_hooks(parameter, kind) for kind in _HOOKS)


def _hooks(parameter: nn.Parameter, kind: str) -> list[Callable[..., Any]]:
    return [*(getattr(parameter, kind, None) or {}).values()]


def check_held(outputs: Iterable[Tensor], module: nn.Module, *, name: str) -> None:
    """Raise if outputs depend on a parameter that a module does not hold."""
    held = {id(parameter) for parameter in module.parameters()}
    nodes, seen = [output.grad_fn for output in outputs], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [before for before, _ in node.next_functions]
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter) and id(leaf) not in held:
            raise ConfigError(
                f"{name} depends on a parameter of shape {tuple(leaf.shape)} that is not found "
                f"among its modules, so that it would be neither learned nor saved. Layers in a "
                f"plain list, a dict or an object of another class are not found: make each an "
                f"attribute, or use an nn.ModuleList or an nn.ModuleDict."
            )


def check_parameters(module: nn.Module, *, name: str = "network") -> None:
    parameters = dict(module.named_parameters())
    if not parameters:
        raise ConfigError(
            f"`{name}` is {kind_of(module)} without parameters, so nothing can be learned. "
            f"Layers in a plain list are not found: put them into an nn.ModuleList."
        )
    for part in module.modules():
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            raise ConfigError(
                f"{type(part).__name__}, in `{name}`, has a `get_extra_state`, which policies do "
                f"not save. Make that state a buffer: `self.register_buffer(...)`."
            )
    for key, parameter in parameters.items():
        if isinstance(parameter, UninitializedParameter):
            raise ConfigError(
                f"The parameter {key!r} of `{name}` has no shape yet. Run the module once on an "
                f"observation before it is given."
            )
        if parameter.is_inference():
            raise ConfigError(
                f"The parameter {key!r} of `{name}` was made within `torch.inference_mode()`, so "
                f"that it cannot be learned. Make the module outside."
            )
        if parameter.dtype != torch.float32:
            is_half = parameter.element_size() < 4
            hint = ", and use `torch.autocast` within `forward` to compute in half precision"
            raise ConfigError(
                f"The parameter {key!r} of `{name}` has the type {parameter.dtype}; torch.float32 "
                f"was expected, of which all weights are. Make it `.float()`{hint * is_half}."
            )
        storage = parameter.untyped_storage().nbytes()
        if storage > parameter.nbytes and parameter.grad is not None:
            raise ConfigError(
                f"The parameter {key!r} of `{name}` lies in the memory of another policy, or of "
                f"other parameters. Give each policy a module of its own: a function of the spec "
                f"that makes one, or `copy.deepcopy(module)`."
            )

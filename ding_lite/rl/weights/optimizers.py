"""Optimisers of policies: a fused Adam on flat weights, or any optimiser of PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import CheckpointError, ConfigError, kind_of
from ding_lite.nest import map_leaves
from ding_lite.rl.weights.flat import FlatAdam

MakeOptimizer: TypeAlias = Callable[..., torch.optim.Optimizer]
"""Makes an optimiser from a list of parameters, such as `torch.optim.RMSprop`."""


class TorchOptimizer:
    """An optimiser of PyTorch on parameters that are views into flat weights.

    Args:
        make: Makes the optimiser from a list of parameters. If it has an argument `lr`, as the
            classes of `torch.optim` do, it gets the learning rate of the policy's config and
            follows its schedule; otherwise it keeps its own learning rate. The ratios between the
            learning rates of parameter groups stay the same.
        parameters: The parameters to learn; the gradient of each is a view into `grad_P`.
    """

    def __init__(
        self,
        make: MakeOptimizer,
        parameters: Sequence[nn.Parameter],
        grad_P: Tensor,
        *,
        lr: float,
        lr_end: float | None = None,
    ) -> None:
        self._takes_lr = takes_lr(make)
        if lr_end is not None and not self._takes_lr:
            raise ConfigError(
                f"`lr_end` is {lr_end}, and `optimizer` takes no `lr` that could fall to it. Write "
                f"`optimizer=lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9)`, or "
                f"leave `lr_end` out."
            )
        learning = [parameter for parameter in parameters if parameter.requires_grad]
        self._frozen = [parameter for parameter in parameters if not parameter.requires_grad]
        self._grads = [(k, p, p.grad) for k, p in enumerate(parameters) if p.requires_grad]
        self._optimizer = _made(make, learning, **({"lr": lr} if self._takes_lr else {}))
        _check_interface(self._optimizer)
        self._check_schedulers()
        groups = self._optimizer.param_groups
        _check_parameters(groups, parameters)
        self._grad_P = grad_P
        self._lr = lr
        self._ratios = [float(group["lr"]) / lr for group in groups] if self._takes_lr else []
        self._settings = [[*group] for group in groups]  # before a `step` has added any

    @property
    def learned(self) -> list[nn.Parameter]:
        """The parameters that learned when the optimiser was made."""
        return [parameter for _, parameter, _ in self._grads]

    @property
    def lr(self) -> float:
        """The learning rate that the optimiser gets, or that of its first parameter group."""
        return self._lr if self._takes_lr else float(self._optimizer.param_groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        self._lr = value
        for group, ratio in zip(self._optimizer.param_groups, self._ratios, strict=False):
            group["lr"] = ratio * value

    def step(
        self,
        grad_P: Tensor,
        weights_P: Tensor | None = None,
        *,
        skip: Tensor | None = None,
        used: Sequence[bool] = (),
    ) -> None:
        """Do one update of its own weights along a gradient, [P], of the parameters `used`, or all.

        The host waits for `skip`, if given, because PyTorch's optimisers have no such argument.
        """
        if skip is not None and float(skip):
            return
        if grad_P.data_ptr() != self._grad_P.data_ptr():
            self._grad_P.copy_(grad_P)
        if any(parameter.requires_grad for parameter in self._frozen):
            raise ConfigError(
                f"A layer that was frozen when the policy was made is frozen no more, and the "
                f"{type(self._optimizer).__name__} of the policy does not have its parameters. "
                f"Make the policy with the layer learning, and freeze it afterwards: "
                f"`policy.module.layer.requires_grad_(False)`."
            )
        for index, parameter, grad in self._grads:
            is_used = parameter.requires_grad and (not used or used[index])
            wanted = grad if is_used else None  # without one it stays unchanged
            if parameter.grad is not wanted:  # a module's `zero_grad()` drops it
                parameter.grad = wanted
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Copy the state of the optimiser to the CPU; keys are strings, as in checkpoints."""
        state = self._optimizer.state_dict()
        of_parameters = {str(index): values for index, values in state["state"].items()}
        copied: dict[str, Any] = map_leaves(_copied, {**state, "state": of_parameters})
        return copied

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = self._optimizer.state_dict()["param_groups"]
        try:
            _check_settings(state["param_groups"], self._settings)
            groups = [
                {name: _like(value, ours.get(name)) for name, value in group.items()}
                for group, ours in zip(state["param_groups"], own, strict=True)
            ]
            loaded = map_leaves(_tensor, state)
            of_parameters = {
                int(index) if index.isdecimal() else index: values
                for index, values in loaded["state"].items()
            }
            self._optimizer.load_state_dict(
                {**loaded, "state": of_parameters, "param_groups": groups}
            )
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"This is no state of {kind_of(self._optimizer)} of these parameters: "
                f"{error}. Was it saved with another `optimizer`, or another network?"
            ) from error

    def _check_schedulers(self) -> None:
        """Raise if a scheduler of PyTorch would have no effect, or start anew in a resumed run."""
        own = self._optimizer
        is_saved = type(own).state_dict is not torch.optim.Optimizer.state_dict
        if hasattr(own.step, "_wrapped_by_lr_sched") and (self._takes_lr or not is_saved):
            reason = (
                "takes `lr`, so that the policy sets the learning rate of each update"
                if self._takes_lr
                else "has no place for its progress in `state_dict`, so that a resumed run or a "
                "copy of the policy would start it anew"
            )
            raise ConfigError(
                f"A scheduler changes the learning rate of the {type(own).__name__} that "
                f"`optimizer` made, and `optimizer` {reason}. Set `lr_end`, where the config has "
                f"it, for a learning rate that falls. Or write a subclass of the optimiser without "
                f"an argument `lr`: its `step` steps the scheduler too, and its `state_dict` and "
                f"`load_state_dict` contain the scheduler's state."
            )


Optimizer: TypeAlias = FlatAdam | TorchOptimizer


def make_optimizer(
    make: MakeOptimizer | None,
    weights_P: Tensor,
    grad_P: Tensor,
    parameters: Callable[[], Sequence[nn.Parameter]],
    *,
    lr: float,
    lr_end: float | None = None,
    **of_adam: Any,  # noqa: ANN401 - arguments of `FlatAdam`
) -> Optimizer:
    if make is None:
        return FlatAdam(weights_P, lr=lr, **of_adam)
    if not callable(make):
        raise ConfigError(
            f"`optimizer` is {kind_of(make)}; a function of the parameters that makes an "
            f"optimiser was expected, such as `torch.optim.RMSprop` or "
            f"`lambda params: torch.optim.RMSprop(params, lr=1e-3)`."
        )
    return TorchOptimizer(make, parameters(), grad_P, lr=lr, lr_end=lr_end)


def _made(
    make: MakeOptimizer, parameters: Sequence[nn.Parameter], **lr: float
) -> torch.optim.Optimizer:
    try:
        return make(parameters, **lr)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"`optimizer` was called with the parameters{' and `lr`' if lr else ''}, and "
            f"raised: {error}. Write `lambda params: torch.optim.RMSprop(params, lr=1e-3)`."
        ) from error


def _check_interface(optimizer: object) -> None:
    """Raise unless it is an optimiser that steps along a given gradient and can be saved."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"`optimizer` returned {kind_of(optimizer)}; a torch.optim.Optimizer "
            f"was expected, as of `lambda params: torch.optim.RMSprop(params, lr=1e-3)`."
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"`optimizer` is {type(optimizer).__name__}, which computes the loss several "
            f"times in a step. Take one that steps along a gradient that is given, such as "
            f"torch.optim.Adam or torch.optim.RMSprop."
        )
    found = optimizer.state_dict()
    if not {"state", "param_groups"} <= found.keys():
        raise ConfigError(
            f"`state_dict` of {type(optimizer).__name__} returned {sorted(found)}; "
            f"'state' and 'param_groups' were expected, as of every PyTorch optimiser. Add "
            f"to them: `super().state_dict() | {{'scheduler': self.scheduler.state_dict()}}`."
        )


def _check_parameters(
    groups: Sequence[Mapping[str, Any]], parameters: Sequence[nn.Parameter]
) -> None:
    known = set(map(id, parameters))
    if any(id(parameter) not in known for group in groups for parameter in group["params"]):
        raise ConfigError(
            "`optimizer` made an optimiser of other parameters than those that it got, and the "
            "policy, or a copy of it, would not learn. Pass those on: "
            "`optimizer=lambda params: torch.optim.RMSprop(params, lr=1e-3)`."
        )


def _check_settings(groups: Sequence[Mapping[str, Any]], expected: Sequence[Sequence[str]]) -> None:
    for group, names in zip(groups, expected, strict=True):
        if missing := [name for name in names if name not in group]:
            raise KeyError(", ".join(missing))


def takes_lr(make: MakeOptimizer) -> bool:
    """Return whether `make` has an argument `lr` that is not bound already."""
    bound = make.keywords if isinstance(make, partial) else {}
    try:
        return "lr" in inspect.signature(make).parameters and "lr" not in bound
    except ValueError:  # a `partial` with an unknown argument has no signature
        return False


def unused_settings(make: object) -> frozenset[str]:
    """Return the settings that have no effect with an optimiser of the user, or with None."""
    if not callable(make) or takes_lr(make):
        return frozenset()
    return frozenset(("lr", "lr_end", "lr_updates", "actor_lr", "critic_lr"))


def _copied(leaf: Any) -> Any:  # noqa: ANN401 - any part of an optimiser's state
    return leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf


def _like(value: Any, own: Any) -> Any:  # noqa: ANN401 - any setting of an optimiser
    if own is None or isinstance(own, Tensor):
        return map_leaves(_tensor, value)
    return tuple(value) if isinstance(own, tuple) else value


def _tensor(leaf: Any) -> Any:  # noqa: ANN401 - any part of an optimiser's state
    if isinstance(leaf, Tensor):
        return leaf.clone()
    return torch.from_numpy(np.array(leaf)) if isinstance(leaf, np.ndarray) else leaf

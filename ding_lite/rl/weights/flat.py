"""Flat weights: all parameters of a policy in one contiguous tensor.

A small network's time is spent on the number of calls, not on arithmetic. With the parameters as
views into one tensor, and the gradients into another, publishing weights is one copy, a soft
target update one `lerp_`, Adam one fused call, and a gradient one message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ding_lite.errors import ShapeError, did_you_mean
from ding_lite.io.memory import check_fits
from ding_lite.rl.host_or_device import is_host

_LARGE = 1 << 24
"""The number of weights from which on the free memory is checked."""
_COPIES_THAT_LEARN = 4
"""The copies of learning weights: the weights, their gradient, and two moments of Adam."""


class SavedNetwork(Protocol):
    """Tensors that are copied and loaded by name."""

    def snapshot(self) -> dict[str, Tensor]:
        """Copy all tensors to the CPU."""

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Overwrite all tensors; if one does not fit, overwrite none."""


class LearnedNetwork(SavedNetwork, Protocol):
    """A network with flat weights and gradients."""

    weights: FlatWeights
    grads: FlatWeights

    @property
    def module(self) -> nn.Module:
        """The network as a module on these weights."""

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """The tensors that are saved but not learned by gradients, such as running means."""


class FlatWeights:
    """Named tensors that are views into one contiguous float32 tensor, in the order of `shapes`.

    The tensor is `flat` if it is given, else a new one of zeros.
    """

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        *,
        device: str | torch.device = "cpu",
        flat: Tensor | None = None,
    ) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        if flat is None:
            size = sum(map(math.prod, self.shapes.values()))
            if size >= _LARGE and torch.device(device).type == "cpu":
                _check_fits(size, self.shapes)
            flat = torch.zeros(size, device=device)
        self.flat = flat
        """All numbers, [P]. Change them in place; never bind another tensor to this name."""
        self.views = self._views_of(self.flat)

    def __getitem__(self, name: str) -> Tensor:
        return self.views[name]

    def zeros_like(self) -> FlatWeights:
        return FlatWeights(self.shapes, device=self.flat.device)

    def part(self, prefix: str) -> FlatWeights:
        """Return the tensors of a prefix as flat weights in the same memory.

        The prefix is removed from their names.

        Example:
            >>> whole = FlatWeights({"actor.bias": (2,), "critic.bias": (3,)})
            >>> critic = whole.part("critic.")
            >>> critic["bias"].fill_(1.0)
            tensor([1., 1., 1.])
            >>> whole.flat
            tensor([0., 0., 1., 1., 1.])
        """
        names = list(self.shapes)
        chosen = [index for index, name in enumerate(names) if name.startswith(prefix)]
        if not chosen or chosen[-1] - chosen[0] >= len(chosen):
            raise ShapeError(
                f"The tensors that begin with {prefix!r} do not lie side by side, or there are "
                f"none; the order is: {', '.join(names)}."
            )
        of_part = {names[index]: self.shapes[names[index]] for index in chosen}
        start = self[names[chosen[0]]].storage_offset() - self.flat.storage_offset()
        size = sum(map(math.prod, of_part.values()))
        return FlatWeights(
            {name.removeprefix(prefix): shape for name, shape in of_part.items()},
            flat=self.flat[start : start + size],
        )

    def snapshot(self) -> dict[str, Tensor]:
        """Copy all tensors to the CPU, by a single copy of their shared memory."""
        return self._views_of(self.flat.to("cpu", copy=True))

    def load(self, tensors: Mapping[str, Any]) -> None:
        load_all((self.views, tensors))

    def _views_of(self, flat: Tensor) -> dict[str, Tensor]:
        views: dict[str, Tensor] = {}
        start = 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            views[name] = flat[start : start + size].view(shape)
            start += size
        return views


_BETAS = (0.9, 0.999)
"""The decay rates of Adam's two means, as the paper proposes."""


class FlatAdam:
    """Adam (Kingma and Ba 2015, algorithm 1) on flat weights: one fused call per update.

    The arithmetic is that of `torch.optim.Adam`. The overhead of its Python code would take several
    times as long as the update of a small network.

    Args:
        weights_P: The weights.
        views: The parameters of a module that are views into the weights, in their order from the
            first on. One that is frozen, or not used in an update, stays unchanged, and each has
            its own number of updates.
        captured: Whether CUDA graphs contain its steps, so that the learning rate is also kept on
            the device.
    """

    def __init__(
        self,
        weights_P: Tensor,
        *,
        lr: float,
        views: Sequence[nn.Parameter] = (),
        eps: float = 1e-8,
        captured: bool = False,
    ) -> None:
        self._weights_P = weights_P
        self._views = views
        self._sizes = [view.numel() for view in views]
        rest = len(weights_P) - sum(self._sizes)
        self._rest = [True] * (rest > 0)
        """Weights that are no parameters of the module are learned in each update."""
        self._sizes += [rest] * (rest > 0)
        self._mean_P = torch.zeros_like(weights_P)
        self._square_P = torch.zeros_like(weights_P)
        self._num_updates = torch.zeros(len(self._sizes), device=weights_P.device)
        self._steps = [*self._num_updates]
        self._is_even = True
        """Whether all numbers of updates are equal."""
        # A view for numpy: an addition by PyTorch takes 20 times as long.
        self._counts = self._num_updates.numpy() if weights_P.is_cpu else None
        self._everywhere = slice(None) if len(self._sizes) > 1 else 0  # takes less time
        self._lr = lr
        self._lr_there = torch.tensor(lr, device=weights_P.device) if captured else None
        self._eps = eps

    @property
    def lr(self) -> float:
        """The learning rate of the next update; it may be changed at any time."""
        return self._lr

    @lr.setter
    def lr(self, value: float) -> None:
        if self._lr_there is not None and value != self._lr:
            self._lr_there.fill_(value)
        self._lr = value

    def step(
        self,
        grad_P: Tensor,
        weights_P: Tensor | None = None,
        *,
        skip: Tensor | None = None,
        used: Sequence[bool] = (),
    ) -> None:
        """Do one update along a gradient, [P], of the optimiser's own weights or of `weights_P`.

        `skip` is a tensor of one number: with 1.0 nothing changes, with 0.0 the update is done. The
        host does not read it. `used` tells the parameters that change; () for all.
        """
        own_P = self._weights_P if weights_P is None else weights_P
        tensors, steps = (own_P, grad_P, self._mean_P, self._square_P), self._steps
        learns = [view.requires_grad for view in self._views] + self._rest
        if used:
            learns = [each and also for each, also in zip(learns, used, strict=True)]
        is_whole = all(learns)
        self._is_even &= is_whole
        if self._is_even:
            weights, grads, means, squares = ([tensor] for tensor in tensors)
        else:
            weights, grads, means, squares = (
                [*compress(torch.split(tensor, self._sizes), learns)] for tensor in tensors
            )
            steps = [*compress(steps, learns)]
        if not steps:
            return
        if self._counts is not None and skip is None:
            self._counts[self._everywhere if is_whole else learns] += 1.0
        else:
            torch._foreach_add_(steps, 1.0 if skip is None else [1.0 - skip] * len(steps))
        torch._fused_adam_(
            weights,
            grads,
            means,
            squares,
            [],
            steps[: len(weights)],
            lr=self._lr if self._lr_there is None else self._lr_there,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
            found_inf=skip,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Copy the moments and the number of updates: a number, or one for each parameter."""
        count = self._steps[0] if self._is_even else self._num_updates
        state = {"mean": self._mean_P, "square": self._square_P, "num_updates": count}
        return {name: tensor.to("cpu", copy=True) for name, tensor in state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned; raise ShapeError if it is of other weights."""
        ours = {"mean": self._mean_P, "square": self._square_P, "num_updates": self._num_updates}
        is_even = np.ndim(state.get("num_updates", 0)) == 0
        for name, tensor in ours.items():
            found = tuple(np.shape(state[name])) if name in state else None
            if found != tuple(tensor.shape) and not (found == () and name == "num_updates"):
                raise ShapeError(
                    f"The optimiser state to load has shape {found} for {name!r}; "
                    f"{tuple(tensor.shape)} was expected. Is it of a network of the same size?"
                )
        for name, tensor in ours.items():
            assign(tensor, state[name])
        self._is_even = is_even


def clip_norm(grad_P: Tensor, limit: float | None) -> Tensor | float:
    """Clip a gradient in place to a norm, and return the norm before.

    The norm is a number on a CPU, and a tensor on a device, for which the host does not wait.

    Example:
        >>> grad_P = torch.tensor([3.0, 4.0])
        >>> clip_norm(grad_P, 1.0), [round(each, 3) for each in grad_P.tolist()]
        (5.0, [0.6, 0.8])
    """
    if limit is None and is_host(grad_P.device):
        array_P = grad_P.numpy()  # NumPy's call takes less time than PyTorch's
        return math.sqrt(array_P.dot(array_P))
    norm: Tensor = torch.linalg.vector_norm(grad_P)
    if not is_host(grad_P.device):
        if limit is not None:
            grad_P.mul_((limit / norm).clamp(max=1.0))
        return norm
    found = float(norm)
    if limit is not None and found > limit:
        grad_P.mul_(limit / found)
    return found


def load_all(*pairs: tuple[Mapping[str, Tensor], Mapping[str, Any]]) -> None:
    """Overwrite tensors by others of the same names; if one does not fit, overwrite none."""
    for views, tensors in pairs:
        _check_names(tensors, views)
    for views, tensors in pairs:
        for name, view in views.items():
            assign(view, tensors[name])


def _check_names(tensors: Mapping[str, Any], views: Mapping[str, Tensor]) -> None:
    for name in tensors:
        if name not in views:
            raise ShapeError(
                f"There is no tensor {name!r} in these weights."
                f"{did_you_mean(str(name), views)} Known are: {', '.join(views)}."
            )
    for name, view in views.items():
        if name not in tensors:
            raise ShapeError(f"The tensor {name!r} is missing from the weights to load.")
        found, shape = tuple(np.shape(tensors[name])), tuple(view.shape)
        if found != shape:
            raise ShapeError(
                f"The tensor {name!r} to load has shape {found}; these weights have {shape} "
                f"there. Was the other network made with the same sizes?"
            )


def assign(view: Tensor, values: Tensor | npt.ArrayLike) -> None:
    """Overwrite a tensor; arrays may be read-only, such as those that other nodes send."""
    if isinstance(values, Tensor):
        view.copy_(values.detach())
    elif view.device.type == "cpu":
        np.copyto(view.numpy(), values)
    else:
        view.copy_(torch.from_numpy(np.array(values)))


def _check_fits(size: int, shapes: Mapping[str, Sequence[int]]) -> None:
    widest = max(shapes.values(), key=math.prod)
    check_fits(
        _COPIES_THAT_LEARN * 4 * size,
        what=f"Learning {size:,} weights" if size < 10**15 else "Learning that many weights",
        hidden="x".join(map(str, widest)),
    )

"""Checks, means and metrics of the results of `loss` of an algorithm in plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat, TypeAlias

import numpy as np
from torch import Tensor

from ding_lite.errors import ConfigError, ShapeError, kind_of
from ding_lite.rl.batch import PrioritizedTransitions
from ding_lite.rl.host_or_device import computable, number

LossMetrics: TypeAlias = Mapping[str, Tensor | float]


def checked(value: object, shape: tuple[int, ...], *, what: str) -> Tensor:
    """Return what a user's method returned; raise ShapeError unless it is a tensor of a shape."""
    if isinstance(value, Tensor) and tuple(value.shape) == shape:
        return value
    found = tuple(value.shape) if isinstance(value, Tensor) else kind_of(value)
    raise ShapeError(f"{what} {found}; a tensor of the shape {shape} was expected.")


def loss_and_metrics(found: Any, kind: str) -> tuple[Tensor, LossMetrics]:  # noqa: ANN401 - of a user
    match found:
        case [Tensor() as loss_B, Mapping() as metrics]:
            return loss_B, metrics
    raise ShapeError(
        f"`loss` of {kind} returned {kind_of(found)}; the loss of each transition and "
        f"metrics were expected, such as `return loss, {{}}`."
    )


def mean_loss(loss_B: Tensor, batch: Any, kind: str) -> Tensor:  # noqa: ANN401 - what `loss` takes
    is_weighted = isinstance(batch, PrioritizedTransitions)
    if loss_B.dim() == 0 and not is_weighted:
        return loss_B
    if tuple(loss_B.shape) != (len(batch),):
        raise ShapeError(
            f"`loss` of {kind} returned the shape {tuple(loss_B.shape)} for {len(batch)} "
            f"transitions; ({len(batch)},) was expected, the loss of each"
            f"{', as importance weights apply to each' if is_weighted else ''}."
        )
    return (loss_B * batch.weight).mean() if is_weighted else loss_B.mean()


def read_metrics(metrics: LossMetrics, batch: Any, kind: str) -> dict[str, Any]:  # noqa: ANN401
    """Return metrics without their graph; metrics on another device stay there."""
    found: dict[str, Any] = {}
    is_weighted = isinstance(batch, PrioritizedTransitions)
    for name, value in metrics.items():
        if name == "td_error":
            if not is_weighted:
                continue
            errors = checked(value, (len(batch),), what=f"The metric `td_error` of {kind} is")
            found[name] = computable(errors.detach().abs())
        elif isinstance(value, Tensor):
            if value.dim():
                raise ShapeError(
                    f"The metric {name!r} of {kind} has the shape {tuple(value.shape)}; a single "
                    f"number was expected, such as its mean."
                )
            found[name] = number(computable(value))
        elif not isinstance(value, SupportsFloat) or np.ndim(value):
            raise ShapeError(
                f"The metric {name!r} of {kind} is {kind_of(value)}; a single number was expected."
            )
        else:
            found[name] = value
    if is_weighted and "td_error" not in found:
        raise ConfigError(
            f"The replay has priorities, and `loss` of {kind} reports no `td_error`. Return it "
            f'among the metrics, [B]: `{{"td_error": error.abs()}}`.'
        )
    return found

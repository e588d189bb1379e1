"""Run a module once, and check that its inputs and outputs fit a policy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import ConfigError, ShapeError, kind_of
from ding_lite.nest import leaves, map_leaves
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.flat_module import check_held, check_parameters, copied

_NUM_SAMPLES = 2
"""The number of observations of the first forward; the next one has one observation."""


def check_outputs(
    module: nn.Module,
    inputs: Sequence[Any],
    expected: Sequence[tuple[int, ...] | list[tuple[int, ...]]],
    *,
    spec: EnvSpec,
    name: str = "network",
    num_states: int = 0,
    hint: str = "",
) -> Sequence[Tensor]:
    """Run a module once, and raise unless its outputs have the shapes that a policy needs.

    `expected` has the shape of each output without the axis of the batch, or a list of the shapes
    that are allowed. A module may return a single output as a tensor, several as a tuple. The last
    `num_states` outputs are states, which need no gradient. `hint` says what to return instead.
    """
    outputs = run_once(module, inputs, spec=spec, name=name)
    shapes = [
        [(_NUM_SAMPLES, *shape) for shape in (some if isinstance(some, list) else [some])]
        for some in expected
    ]
    if not any(are_floats(outputs, each) for each in product(*shapes)):
        each = [" or ".join(f"float32 {shape}" for shape in some) for some in shapes]
        expectation = " and ".join(each)
        raise wrong_outputs(module, outputs, expectation, spec=spec, name=name, hint=hint)
    check_learning(
        module, inputs, outputs, spec=spec, name=name, num_learned=len(outputs) - num_states
    )
    return outputs


def are_floats(outputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> bool:
    return len(outputs) == len(shapes) and all(
        isinstance(output, Tensor) and output.dtype == torch.float32 and output.shape == shape
        for output, shape in zip(outputs, shapes, strict=True)
    )


def run_once(
    module: nn.Module, inputs: Sequence[Any], *, spec: EnvSpec, name: str
) -> Sequence[Any]:
    """Run a module once without training; its state and PyTorch's generator stay the same."""
    check_parameters(module, name=name)
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            return _run(module, inputs, spec=spec, name=name)
    finally:
        module.train(was_training)


def check_learning(
    module: nn.Module,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    spec: EnvSpec,
    name: str,
    num_learned: int = 0,
) -> None:
    """Run a copy of a module in training mode; raise unless it can be learned, and copied again."""
    _check_rows(module, inputs, outputs, spec=spec, name=name)
    copy = copied(module).train()
    with torch.enable_grad(), warnings.catch_warnings(action="ignore"):
        found = _run(copy, inputs, spec=spec, name=name)
    if list(map(_describe, found)) != list(map(_describe, outputs)):
        expectation = f"{', '.join(map(_describe, outputs))}, as without training,"
        raise wrong_outputs(copy, found, expectation, spec=spec, name=name, when="in training mode")
    have = [output.requires_grad for output in found[: num_learned or None]]
    if not (all(have) if num_learned else any(have)):
        frozen = not any(parameter.requires_grad for parameter in module.parameters())
        reason = (
            "all its parameters are frozen, `requires_grad=False`."
            if frozen
            else "does `forward` use `torch.no_grad()`, `detach()` or numpy?"
        )
        raise ConfigError(
            f"`{name}` ({type(module).__name__}) cannot be learned, as its outputs have no "
            f"gradient: {reason}"
        )
    check_held(
        (output for output in found if isinstance(output, Tensor)),
        copy,
        name=f"`{name}` ({type(module).__name__})",
    )
    copied(copy)  # some modules cannot be copied after a forward in training mode


def _check_rows(
    module: nn.Module,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    spec: EnvSpec,
    name: str,
) -> None:
    """Raise unless a single observation has a row of outputs; axes may be swapped, or dropped."""
    found = run_once(module, map_leaves(_first_row, [*inputs]), spec=spec, name=name)
    expected = [*map(_describe, map_leaves(_first_row, [*outputs]))]
    if [*map(_describe, found)] != expected:
        raise wrong_outputs(module, found, ", ".join(expected), spec=spec, name=name, count=1)


def _first_row(value: Tensor) -> Tensor:
    return value[:1]


def _run(module: nn.Module, inputs: Sequence[Any], *, spec: EnvSpec, name: str) -> Sequence[Any]:
    """Run a module, and raise if it does not accept its inputs or changes them."""
    tensors = [leaf for _, leaf in leaves(list(inputs))]
    versions = [tensor._version for tensor in tensors]
    try:
        with TorchRandom(0, "check"):
            found = module(*inputs)
    except Exception as error:
        given = ", ".join(_describe(value) for value in inputs)
        reason = str(error).partition("\n")[0].rstrip(".")
        hint = ""
        if spec.obs_dtype is np.uint8:
            hint = " Observations are bytes here: begin `forward` with `obs / 255`, for example."
        if len(inputs) == 1 and "missing 1 required positional argument" in reason:
            hint = " For memory, give the module a `state_size`, and take A2C, PPO, IMPALA or R2D2."
        raise ConfigError(
            f"`{name}` ({type(module).__name__}) does not take what {spec.env_id} gives, {given}: "
            f"{type(error).__name__}: {reason}.{hint}"
        ) from error
    if [tensor._version for tensor in tensors] != versions:
        raise ConfigError(
            f"`{name}` ({type(module).__name__}) changes its inputs in place, and with them what "
            f"a replay holds. Write `obs = obs * 2` for `obs *= 2`, and leave `inplace=True` out "
            f"of its first layer."
        )
    return listed(found)


def listed(found: Any) -> Sequence[Any]:  # noqa: ANN401 - what a module returns
    return found if isinstance(found, tuple | list) and len(found) != 1 else [found]


def wrong_outputs(
    module: nn.Module,
    outputs: Sequence[Any],
    expectation: str,
    *,
    spec: EnvSpec,
    name: str,
    when: str = "",
    hint: str = "",
    count: int = _NUM_SAMPLES,
) -> ShapeError:
    tensors = [leaf for _, leaf in leaves(list(outputs)) if isinstance(leaf, Tensor)]
    if any(tensor.is_floating_point() and tensor.dtype != torch.float32 for tensor in tensors):
        hint = "Let `forward` return float32, with `.float()`, also when it uses `torch.autocast`."
    return ShapeError(
        f"`{name}` ({type(module).__name__}) returned {', '.join(map(_describe, outputs))} for "
        f"{count} observation{'s' * (count > 1)} of {spec.env_id}{when and ' '}{when}; "
        f"{expectation} was "
        f"expected.{hint and ' '}{hint}"
    )


def sample_obs(spec: EnvSpec, *, device: str | torch.device = "cpu") -> Tensor:
    """Make observations of zeros, to run a module once."""
    dtype = torch.uint8 if spec.obs_dtype is np.uint8 else torch.float32
    return torch.zeros((_NUM_SAMPLES, *spec.obs_shape), dtype=dtype, device=device)


def _describe(value: object) -> str:
    if isinstance(value, dict):
        parts = (f"{key!r}: {_describe(part)}" for key, part in value.items())
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_describe, value))}{',' * (len(value) == 1)})"
    if not isinstance(value, Tensor):
        return kind_of(value)
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"

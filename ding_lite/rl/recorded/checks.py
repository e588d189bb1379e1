"""Run a module once, and check that its inputs and outputs fit a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.weights.flat_module import check_parameters

_NUM_SAMPLES = 2
"""Observations of the first forward. One would hide outputs without an axis for the batch."""


def check_outputs(
    module: nn.Module,
    inputs: Sequence[Any],
    expected: Sequence[tuple[int, ...] | list[tuple[int, ...]]],
    *,
    spec: EnvSpec,
    name: str = "network",
) -> Any:  # noqa: ANN401 - what the module returns
    """Run a module once, and raise unless its outputs have the shapes of a policy.

    Args:
        module: It is run as for acting, and draws from PyTorch's global generator.
        inputs: Its arguments, such as `sample_obs(spec)`.
        expected: The shape of each output without the batch's axis. One output may be returned as
            it is, several as a tuple. A list has the shapes of which an output may have any.
        spec: The environments', for errors.
        name: The argument that gave the module, for errors.

    Returns:
        What the module returned.

    Raises:
        ConfigError: If the module does not take such inputs, or its parameters cannot be learned.
        ShapeError: If the outputs have other shapes or types.
    """
    found = run_once(module, inputs, spec=spec, name=name)
    outputs = found if isinstance(found, tuple | list) else (found,)
    shapes = [
        [(_NUM_SAMPLES, *shape) for shape in (some if isinstance(some, list) else [some])]
        for some in expected
    ]
    fits = len(outputs) == len(shapes) and all(
        isinstance(output, Tensor) and tuple(output.shape) in some and output.dtype == torch.float32
        for output, some in zip(outputs, shapes, strict=True)
    )
    if not fits:
        each = [" or ".join(f"float32 {shape}" for shape in some) for some in shapes]
        expectation = " and ".join(each)
        raise wrong_outputs(module, outputs, expectation, spec=spec, name=name)
    return found


def run_once(module: nn.Module, inputs: Sequence[Any], *, spec: EnvSpec, name: str) -> Any:  # noqa: ANN401 - what the module returns
    """Run a module once as for acting; nothing of it changes, nor PyTorch's global generator.

    Raises:
        ConfigError: If the module does not take such inputs, or its parameters cannot be learned.
    """
    check_parameters(module, name=name)
    was_training = module.training
    module.eval()
    state = torch.get_rng_state()
    try:
        with torch.no_grad():
            found = module(*inputs)
    except Exception as error:
        given = ", ".join(_describe(value) for value in inputs)
        hint = ""
        if spec.obs_dtype is np.uint8:
            hint = " Observations are bytes here: begin `forward` with `obs / 255`, for example."
        raise ConfigError(
            f"`{name}` ({type(module).__name__}) does not take what {spec.env_id} gives, {given}: "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}.{hint}"
        ) from error
    finally:
        torch.set_rng_state(state)
        module.train(was_training)
    return found


def wrong_outputs(
    module: nn.Module, outputs: Sequence[Any], expectation: str, *, spec: EnvSpec, name: str
) -> ShapeError:
    """Make the error of a module with outputs of other shapes or types."""
    return ShapeError(
        f"`{name}` ({type(module).__name__}) returned {', '.join(map(_describe, outputs))} for "
        f"{_NUM_SAMPLES} observations of {spec.env_id}; {expectation} was expected."
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
        return f"({', '.join(map(_describe, value))})"
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"

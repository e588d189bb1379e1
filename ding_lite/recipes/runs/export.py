"""Write the network of a policy into a file that other programs run without this package."""

from __future__ import annotations

import importlib
import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import tree_map

from ding_lite.errors import ConfigError, MissingExtraError, pip_line
from ding_lite.io.files import naming
from ding_lite.rl.policies.open_policy import OpenPolicy
from ding_lite.rl.protocols import Policy
from ding_lite.rl.recorded.checks import sample_obs
from ding_lite.rl.torch_policies.torch_policy import TorchPolicy

ExportFormat: TypeAlias = Literal["onnx", "torch"]
SUFFIXES: dict[str, str] = {"onnx": ".onnx", "torch": ".pt2"}
"""The end of a file's name in each format."""
INPUT = "obs"
"""The name of the input of an ONNX file."""


def export_policy(
    policy: Policy, path: str | os.PathLike[str], *, format: ExportFormat | None = None
) -> Path:
    """Write the network of a policy into a file, for programs without this package.

    The file computes what `policy.module` computes, for any number of observations at a time, as
    the environment gives them: [B, ...], bytes as bytes. Dropout is off, and `normalize_obs` is
    part of it. Of a policy with memory it takes states, [B, S], and returns the next ones, too;
    they are zeros where an episode begins.

    Args:
        policy: A trained one. It is left as it is.
        path: The file to write. It is replaced if it exists.
        format: `onnx` for ONNX runtimes, with the input `obs`, or one for each part, such as
            `obs.position`, and `state`; `torch` for `torch.export.load`. By
            default the end of the path says which: .onnx or .pt2.

    Returns:
        The file.

    Raises:
        ConfigError: If the format is unknown, or the network cannot be exported.
        MissingExtraError: If ONNX is not installed.

    Example:
        >>> import tempfile
        >>> from ding_lite.rl import DQN, make_envs
        >>> policy = DQN(make_envs("CartPole-v1", 1).spec)
        >>> export_policy(policy, f"{tempfile.mkdtemp()}/policy.pt2").name
        'policy.pt2'
    """
    path = Path(path)
    chosen = format or _format_of(path)
    if chosen not in SUFFIXES:
        raise ConfigError(f"`format` is {chosen!r}. Choose one of: {', '.join(SUFFIXES)}.")
    if path.suffix in SUFFIXES.values() and path.suffix != SUFFIXES[chosen]:
        raise ConfigError(
            f"The name of the file is {str(path)!r}, and the format is {chosen!r}. Let it end in "
            f"{SUFFIXES[chosen]}, or leave the format out."
        )
    if not isinstance(policy, OpenPolicy):
        raise ConfigError(
            f"A {type(policy).__name__} has no `module` to export. Policies of this package have "
            f"one; your own gets it from `TorchPolicy`."
        )
    if chosen == "onnx":
        check_onnx()
    with _quietly():
        program = _traced(policy)
        content = io.BytesIO()
        if chosen == "torch":
            torch.export.save(program, content)
        else:
            content.write(_as_onnx(program, _inputs(policy)))
    with naming(path):
        path.write_bytes(content.getbuffer())
    return path


def describe_inputs(policy: Policy) -> str:
    """Describe what the file of a policy takes: names where there are several, types, shapes."""
    if not isinstance(policy, OpenPolicy):
        return ""
    named = _named(_inputs(policy))
    return "; ".join(
        f"{name if len(named) > 1 else 'observations'}, {str(one.dtype).removeprefix('torch.')} "
        f"[{', '.join(['B', *map(str, one.shape[1:])])}]"
        for name, one in named.items()
    )


def check_onnx() -> None:
    """Raise unless ONNX files can be written.

    Raises:
        MissingExtraError: If a package is not installed.
    """
    try:
        for name in ("onnx", "onnxscript"):
            importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            "Writing ONNX needs packages that are not installed. Install them: "
            f"{pip_line('export')}. The format `torch` needs none."
        ) from error


def _format_of(path: Path) -> str:
    for name, suffix in SUFFIXES.items():
        if path.suffix == suffix:
            return name
    raise ConfigError(
        f"The name of the file is {str(path)!r}, which does not say the format. Let it end in "
        f"{' or '.join(SUFFIXES.values())}, or give the `format`."
    )


def _traced(policy: OpenPolicy) -> ExportedProgram:
    """Trace the network with an axis of any length for the batch."""
    module = policy.module
    with _as_for_inference(module):
        try:
            inputs, batch = _inputs(policy), Dim("batch", min=1)
            open_axes = tree_map(lambda _: {0: batch}, inputs)
            return torch.export.export(module, inputs, dynamic_shapes=open_axes)
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"The network of this {type(policy).__name__} cannot be exported: "
                f"{type(error).__name__}: {first} torch.export follows tensors only: `forward` may "
                f"not branch on their values or on the number of observations."
            ) from error


def _inputs(policy: OpenPolicy) -> tuple[Any, ...]:
    """Return what its module takes: observations, in parts where they have several, and states."""
    obs: Any = sample_obs(policy.spec, device=policy.device)
    size: int = getattr(policy, "state_size", 0)
    state = (torch.zeros((len(obs), size), device=policy.device),) if size else ()
    return (obs if isinstance(policy, TorchPolicy) else policy.spec.unpack(obs), *state)


def _named(inputs: tuple[Any, ...]) -> dict[str, torch.Tensor]:
    """Name the tensors: `obs`, or of several parts `obs.position`, `obs.0`; and `state`."""
    return {**_named_parts(inputs[0], INPUT), **dict(zip(["state"], inputs[1:], strict=False))}


def _named_parts(obs: Any, name: str) -> dict[str, torch.Tensor]:  # noqa: ANN401 - a tree
    if isinstance(obs, torch.Tensor):
        return {name: obs}
    parts = obs.items() if isinstance(obs, dict) else enumerate(obs)
    return {k: v for key, part in parts for k, v in _named_parts(part, f"{name}.{key}").items()}


def _as_onnx(program: ExportedProgram, inputs: tuple[Any, ...]) -> bytes:
    try:
        converted: Any = torch.onnx.export(program, input_names=[*_named(inputs)], verbose=False)
    except torch.onnx.OnnxExporterError as error:
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"The network cannot be written as ONNX: {first} The format `torch` takes all that "
            f"PyTorch computes."
        ) from error
    content: bytes = converted.model_proto.SerializeToString()
    return content


@contextmanager
def _as_for_inference(module: nn.Module) -> Iterator[None]:
    """Put a module into the mode for inference, and back."""
    modes = {each: each.training for each in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for each, mode in modes.items():
            each.training = mode


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the exporters from telling of packages and internals that are of no concern here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

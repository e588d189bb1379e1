"""Export the network of a policy to a file that programs run without this package."""

from __future__ import annotations

import importlib
import inspect
import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import tree_map

from ding_lite.errors import ConfigError, MissingExtraError, kind_of, pip_line
from ding_lite.io.files import replacing
from ding_lite.recipes.runs.directory import make_directory
from ding_lite.rl.formulas.distributions import BoxUnits, num_outputs
from ding_lite.rl.networks.precision import computing_in
from ding_lite.rl.packing import Tree
from ding_lite.rl.policies.actor_critic import ActorCriticPolicy
from ding_lite.rl.policies.base.open_policy import OpenPolicy
from ding_lite.rl.protocols import Policy
from ding_lite.rl.recorded.checks import sample_obs
from ding_lite.rl.torch_policies.torch_policy import TorchPolicy

ExportFormat: TypeAlias = Literal["onnx", "torch"]
SUFFIXES: dict[str, str] = {"onnx": ".onnx", "torch": ".pt2"}
"""The suffix of the file in each format."""
INPUT = "obs"
"""The name of the input of an ONNX file."""

_MAX_BATCH = 2**31 - 1
"""A limit of the batch size, without which PyTorch 2.6 does not export."""


def export_policy(
    policy: Policy, path: str | os.PathLike[str], *, format: ExportFormat | None = None
) -> Path:
    """Export the network of a policy to a file, for programs without this package.

    The file computes `policy.module` for a batch of any size of the environment's observations,
    [B, ...], with bytes as bytes. It includes `normalize_obs`, without dropout. For A2C, PPO and
    IMPALA with Box actions it returns actions of the environment instead of means. If the
    environment has an action mask, the file also takes `action_mask`, [B, A] bool, and the outputs
    of illegal actions are minus infinity. For a policy with memory it also takes states, [B, S],
    and returns the next states; at the beginning of an episode they are zeros.

    Args:
        policy: A trained policy. It is not changed.
        path: The file to write. It is replaced if it exists.
        format: `onnx` for ONNX runtimes, with the input `obs`, or an input for each part, such as
            `obs.position`, then `action_mask` and `state`; `torch` for `torch.export.load`. By
            default the suffix of the path decides: .onnx or .pt2.

    Returns:
        The path of the file.

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
    of_suffix = {suffix: name for name, suffix in SUFFIXES.items()}
    chosen = format or of_suffix.get(path.suffix)
    if chosen is None:
        raise ConfigError(
            f"The name of the file is {str(path)!r}, which does not say the format. Let it end in "
            f"{' or '.join(of_suffix)}, or give the `format`."
        )
    if chosen not in SUFFIXES:
        raise ConfigError(f"`format` is {chosen!r}. Choose one of: {', '.join(SUFFIXES)}.")
    if of_suffix.get(path.suffix, chosen) != chosen:
        raise ConfigError(
            f"The name of the file is {str(path)!r}, and the format is {chosen!r}. Let it end in "
            f"{SUFFIXES[chosen]}, or leave the format out."
        )
    if not isinstance(policy, OpenPolicy):
        given = f"the class {policy.__name__}" if isinstance(policy, type) else kind_of(policy)
        raise ConfigError(
            f"`policy` is {given}, which has no `module` to export. Policies of this "
            f"package have one; your own gets it from `TorchPolicy`."
        )
    if chosen == "onnx":
        check_onnx()
    with _quietly():
        program = _traced(policy)
        content = io.BytesIO()
        if chosen == "torch":
            torch.export.save(program, content)
        else:
            content.write(_as_onnx(program, [*_named(policy)]))
    make_directory(path.parent)
    with replacing(path) as unfinished:
        unfinished.write_bytes(content.getbuffer())
    return path


def describe_inputs(policy: Policy, format: str) -> str:
    """Describe the inputs of a policy's file: types, shapes, and names if there are several."""
    if not isinstance(policy, OpenPolicy):
        return ""
    named, obs = _named(policy), _inputs(policy)[0]
    inputs = "; ".join(
        f"{name if len(named) > 1 else 'observations'}, {str(one.dtype).removeprefix('torch.')} "
        f"[{', '.join(['B', *map(str, one.shape[1:])])}]"
        for name, one in named.items()
    )
    if format == "onnx" or isinstance(obs, Tensor):
        return inputs
    kind = "dict" if isinstance(obs, dict) else "tuple"
    return f"{inputs}. Its first argument is a {kind} of the parts of obs, in this order"


def check_onnx() -> None:
    if not all(map(find_spec, ("onnx", "onnxscript"))):  # importing them takes a second
        raise MissingExtraError(
            "Writing ONNX needs packages that are not installed. Install them: "
            f"{pip_line('export')}. The format `torch` needs none."
        )


def _traced(policy: OpenPolicy) -> ExportedProgram:
    """Trace the network with a dynamic batch size."""
    with _keeping_modes(policy), _without_validation(), computing_in("float32"):
        try:
            module = _served(policy)
            inputs, batch = _inputs(policy), Dim("batch", min=1, max=_MAX_BATCH)
            open_axes = tree_map(lambda _: {0: batch}, inputs)
            kinds = [p.kind for p in inspect.signature(module.forward).parameters.values()]
            rest = inspect.Parameter.VAR_POSITIONAL  # all inputs of a compiled module, or the state
            if rest in kinds[: len(inputs)]:
                first = kinds.index(rest)
                open_axes = (*open_axes[:first], open_axes[first:])
            export = partial(torch.export.export, module, inputs, dynamic_shapes=open_axes)
            try:
                return export(strict=False)  # the default of newer versions
            except Exception:  # noqa: BLE001 - of any kind; the second way says what is wrong
                return export(strict=True)  # also follows `len(obs)`
        except Exception as error:
            said = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"The network of this {type(policy).__name__} cannot be exported: "
                f"{type(error).__name__}: {said} torch.export follows tensors only: `forward` may "
                f"not branch on their values or on the number of observations."
            ) from error


def _served(policy: OpenPolicy) -> nn.Module:
    """Return a policy's module, wrapped to return actions in bounds or to mask illegal actions."""
    space = policy.spec.action_space
    if isinstance(policy, ActorCriticPolicy) and isinstance(space, Box):
        return _InBounds(policy.module, BoxUnits(space), policy.device)
    return _OnlyLegal(policy.module) if _takes_mask(policy) else policy.module


def _takes_mask(policy: OpenPolicy) -> bool:
    """Return whether the action mask is an input; a `TorchPolicy` has it in its observations."""
    return policy.spec.has_action_mask and not isinstance(policy, TorchPolicy)


class _InBounds(nn.Module):
    """An actor-critic that returns actions of the environment instead of scaled means."""

    def __init__(self, network: nn.Module, units: BoxUnits, device: torch.device) -> None:
        super().__init__()
        self.network, self._shape = network, units.shape
        self.bounds: Tensor
        ends = (units.middle_D, units.unit_D, units.low, units.high)
        self.register_buffer("bounds", torch.from_numpy(np.stack(ends)).to(device))

    def forward(self, obs: Tree, state: Tensor | None = None) -> tuple[Tensor, ...]:
        inputs = (obs,) if state is None else (obs, state)
        outputs_BD, *others = self.network(*inputs)
        middle_A, unit_A, low_A, high_A = self.bounds.unbind()
        action_BA = middle_A + unit_A * outputs_BD[:, : len(middle_A)]
        return action_BA.clamp(low_A, high_A).reshape(-1, *self._shape), *others


class _OnlyLegal(nn.Module):
    """A network that returns minus infinity for illegal actions."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Tree, action_mask: Tensor, state: Tensor | None = None) -> Any:  # noqa: ANN401 - a tensor or several
        found = self.network(obs) if state is None else self.network(obs, state)
        outputs_BD, *others = (found,) if isinstance(found, Tensor) else found
        legal_BD = outputs_BD.masked_fill(~action_mask, -torch.inf)
        return (legal_BD, *others) if others else legal_BD


def _inputs(policy: OpenPolicy) -> tuple[Any, ...]:
    """Return the example inputs of the export: observations, then an action mask and a state."""
    spec = policy.spec
    obs: Any = sample_obs(spec, device=policy.device)
    further: list[Tensor] = []
    if _takes_mask(policy):
        further.append(torch.ones((len(obs), num_outputs(spec)), dtype=torch.bool).to(obs.device))
    if size := getattr(policy, "state_size", 0):
        further.append(torch.zeros((len(obs), size), device=obs.device))
    return (obs if isinstance(policy, TorchPolicy) else spec.unpack(obs), *further)


def _named(policy: OpenPolicy) -> dict[str, Tensor]:
    """Return the inputs by name: `obs` or its parts, such as `obs.position`, then the others."""
    obs, *further = _inputs(policy)
    names = (["action_mask"] if _takes_mask(policy) else []) + ["state"]
    return {**_parts(obs, INPUT), **dict(zip(names, further, strict=False))}


def _parts(obs: Any, name: str) -> dict[str, Tensor]:  # noqa: ANN401 - a tree
    if isinstance(obs, Tensor):
        return {name: obs}
    parts = obs.items() if isinstance(obs, dict) else enumerate(obs)
    return {k: v for key, part in parts for k, v in _parts(part, f"{name}.{key}").items()}


def _as_onnx(program: ExportedProgram, names: list[str]) -> bytes:
    if len(names) < len(program.graph_signature.user_inputs):
        raise ConfigError(
            f"The parts of the observations have the names {', '.join(names)}, and of some of them "
            f"there are two; one of each was expected, as the inputs of an ONNX file are told "
            f"apart by name. Leave dots out of the keys of the Dict, or export it as `.pt2`."
        )
    onnx = importlib.import_module("onnx")
    refusals = torch.onnx.OnnxExporterError, onnx.checker.ValidationError
    try:
        converted: Any = torch.onnx.export(program, input_names=names, verbose=False)
        onnx.checker.check_model(converted.model_proto, full_check=True)
    except (*refusals, onnx.shape_inference.InferenceError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the outer ones are advice for developers of PyTorch
            cause = cause.__cause__
        first = str(cause).strip().partition("\n")[0].rstrip(".")
        why = f"{first}. A newer one may"
        if torch.ops.aten.view.dtype in {node.target for node in program.graph.nodes}:
            why = (
                "ONNX cannot read the bytes of a number, as `spec.unpack` does for observations "
                "of both numbers and bytes"
            )
        raise ConfigError(
            f"PyTorch {torch.__version__} cannot write this network as ONNX: {why}. Export it as "
            f"`.pt2`: the format `torch` takes all that PyTorch computes."
        ) from error
    content: bytes = converted.model_proto.SerializeToString()
    return content


@contextmanager
def _keeping_modes(policy: OpenPolicy) -> Iterator[None]:
    """Restore the training mode of each of the user's modules."""
    own = [part for parts in policy.own_modules.values() for part in parts.values()]
    modes = {each: each.training for part in own for each in part.modules()}
    try:
        yield
    finally:
        for each, mode in modes.items():
            each.training = mode


@contextmanager
def _without_validation() -> Iterator[None]:
    """Let distributions in a user's `choose` skip their checks, which branch on values."""
    before = bool(Distribution._validate_args)
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress log lines and warnings of the exporters."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

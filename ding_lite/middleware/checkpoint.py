"""Keep what a run needs to go on, come what may."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from torch import Tensor

from ding_lite.errors import CheckpointError, ConfigError, NonFiniteError
from ding_lite.middleware.checks import check_has, due
from ding_lite.nest import leaves, path_name
from ding_lite.rl.checkpoint import load_checkpoint, save_checkpoint
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.runtime.saving import Stateful
from ding_lite.settings import at_least, check_all

_KINDS = "kinds"


def checkpoint(
    parts: Policy | Mapping[str, Stateful], directory: str | os.PathLike[str], *, every: int
) -> Middleware:
    """Save a policy, or all that a run consists of, now and then and when the run ends.

    It saves behind the step, when all middleware have done their part, and also after Ctrl-C. A
    save replaces the one before only when it is complete. After any other error, or a second
    Ctrl-C in the middle of a step, nothing is saved, and a weight that is not finite is
    refused: the last good checkpoint stays.

    Context:
        reads: env_step, total_step, train_iter

    Args:
        parts: A policy, which `load_checkpoint(directory).state` is the state of; or everything
            that is to go on exactly, by names of yours, for `resume`: the policy, the replay,
            the envs, the task.
        directory: Made when the run begins, if need be.
        every: Steps from one save to the next. A save of a small policy costs milliseconds; of
            a large replay what has changed since the last one is written.

    Raises:
        ConfigError: `directory` is a file, or a setting is out of range.
        NonFiniteError: In a step: the policy is broken, and was not saved.

    Example:
        >>> from ding_lite import Task
        >>> from ding_lite.rl import DQN, ReplayBuffer, make_envs
        >>> envs = make_envs("CartPole-v1", 2)
        >>> parts = {"policy": DQN(envs.spec), "envs": envs, "task": Task()}
        >>> parts["task"] = parts["task"].use(checkpoint(parts, "runs/x/checkpoint", every=1_000))
    """
    if not isinstance(parts, Mapping):
        check_has(parts, "state_dict", "policy")
    else:
        for name, part in parts.items():
            check_has(part, "state_dict", name)
            check_has(part, "load_state_dict", name)
    check_all(at_least(1, every=every))
    path = Path(directory)
    if path.exists() and not path.is_dir():
        raise ConfigError(
            f"The checkpoint directory {path} is a file. Name a directory, or move the file away."
        )
    return _Checkpoint(parts, path, every)


def resume(parts: Mapping[str, Stateful], directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Make everything what it was when `checkpoint` saved the same parts.

    Call it before `task.run`, once all middleware are in use. A run in one process then goes on
    as if it had never ended, bit for bit.

    Args:
        parts: What was saved, by the same names.
        directory: Where.

    Returns:
        The counters: `total_step`, `env_step` and `train_iter`.

    Raises:
        CheckpointError: There is no checkpoint, it is damaged, or it is one of other parts.
    """
    saved = load_checkpoint(directory)
    kinds = saved.meta.pop(_KINDS, None)
    wanted = _kinds(parts)
    if kinds != wanted:
        raise CheckpointError(
            f"The checkpoint in {directory} holds {_listed(kinds)}; this program has "
            f"{_listed(wanted)}. Resume with the program, and the choice of policy, that saved it."
        )
    for name, part in parts.items():
        try:
            part.load_state_dict(saved.state[name])
        except CheckpointError as error:
            raise CheckpointError(
                f"The `{name}` in {directory} does not fit this program: {error}"
            ) from error
    return saved.meta


def _kinds(parts: Mapping[str, Stateful]) -> dict[str, str]:
    return {name: type(part).__name__ for name, part in parts.items()}


def _listed(kinds: Mapping[str, str] | None) -> str:
    if not kinds:
        return "a policy alone"
    return ", ".join(f"a {kind} as `{name}`" for name, kind in kinds.items())


class _Checkpoint:
    """Saves behind its steps, and once more when the run ends with the policy intact."""

    __name__ = "checkpoint"

    def __init__(
        self, parts: Policy | Mapping[str, Stateful], directory: Path, every: int
    ) -> None:
        self._parts = parts
        self._directory = directory
        self._every = every
        self._counters: dict[str, Any] = {}
        self._saved = True

    def __enter__(self) -> Self:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint directory {self._directory} cannot be made: {error}. "
                f"Choose one that you may write to."
            ) from error
        return self

    def __call__(self, ctx: Context) -> Iterator[None]:
        yield
        self._saved = False
        self._counters = {
            "total_step": ctx.total_step,
            "env_step": ctx.get("env_step", 0),
            "train_iter": ctx.get("train_iter", 0),
        }
        if due(ctx, self._every):
            self._save()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._saved and (error is None or _came_between_steps(error)):
            self._save()

    def _save(self) -> None:
        parts, meta = self._parts, dict(self._counters)
        if isinstance(parts, Mapping):
            state = {name: part.state_dict() for name, part in parts.items()}
            meta[_KINDS] = _kinds(parts)
            policies = {name: state[name] for name in parts if hasattr(parts[name], "act")}
        else:
            state = parts.state_dict()
            policies = {"policy": state}
        for name, policy in policies.items():
            self._check_finite(policy, name)
        save_checkpoint(self._directory, state, meta=meta)
        self._saved = True

    def _check_finite(self, state: dict[str, Any], name: str) -> None:
        for path, leaf in leaves(state):
            numbers = leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else np.asarray(leaf)
            if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
                raise NonFiniteError(
                    f"{path_name(path, name)} is no longer finite after update "
                    f"{self._counters['train_iter']:,}, so the policy was not saved; what "
                    f"{self._directory} holds is the last good one. Lower the learning rate."
                )


def _came_between_steps(error: BaseException) -> bool:
    """Tell whether a run was stopped from outside, with its last step done.

    What is raised within a step carries the runtime's note that says where, also a second
    Ctrl-C: then an update may be half done.
    """
    stopped = isinstance(error, KeyboardInterrupt | SystemExit)
    return stopped and not getattr(error, "__notes__", ())

"""Keep what a policy has learned, come what may."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from torch import Tensor

from ding_lite.errors import CheckpointError, ConfigError, NonFiniteError
from ding_lite.middleware.checks import check_has, due
from ding_lite.nest import leaves, path_name
from ding_lite.rl.checkpoint import save_checkpoint
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings import at_least, check_all


def checkpoint(policy: Policy, directory: str | os.PathLike[str], *, every: int) -> Middleware:
    """Save a policy now and then, at the end of the run, and after Ctrl-C.

    A save replaces the one before only when it is complete. After any other error, or a second
    Ctrl-C in the middle of a step, nothing is saved, and a policy with a weight that is not
    finite is refused: the last good checkpoint stays. `load_checkpoint(directory)` reads it.

    Context:
        reads: env_step, total_step, train_iter

    Args:
        policy: Saved with everything that `load_state_dict` needs to go on exactly.
        directory: Made when the run begins, if need be.
        every: Steps from one save to the next. A save of a small policy costs milliseconds.

    Raises:
        ConfigError: `directory` is a file, or a setting is out of range.
        NonFiniteError: In a step: the policy is broken, and was not saved.
    """
    check_has(policy, "state_dict", "policy")
    check_all(at_least(1, every=every))
    path = Path(directory)
    if path.exists() and not path.is_dir():
        raise ConfigError(
            f"The checkpoint directory {path} is a file. Name a directory, or move the file away."
        )
    return _Checkpoint(policy, path, every)


class _Checkpoint:
    """Saves in its steps, and once more when the run ends with the policy intact."""

    __name__ = "checkpoint"

    def __init__(self, policy: Policy, directory: Path, every: int) -> None:
        self._policy = policy
        self._directory = directory
        self._every = every
        self._counters: dict[str, int] = {}
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

    def __call__(self, ctx: Context) -> None:
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
        state = self._policy.state_dict()
        self._check_finite(state)
        save_checkpoint(self._directory, state, meta=dict(self._counters))
        self._saved = True

    def _check_finite(self, state: dict[str, Any]) -> None:
        for path, leaf in leaves(state):
            numbers = leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else np.asarray(leaf)
            if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
                raise NonFiniteError(
                    f"{path_name(path, 'policy')} is no longer finite after update "
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

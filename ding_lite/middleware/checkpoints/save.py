"""Save all parts of a run.

Each of several Accelerate processes saves its own parts, since it has its own replay, environments
and random numbers. The other processes save first, alternating between two directories. Then the
main process saves, which makes the new checkpoint valid. Whichever process is killed meanwhile, all
other processes have a checkpoint of the main process's step.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from ding_lite.distributed.accelerate.processes import Processes
from ding_lite.errors import CheckpointError, ConfigError, NonFiniteError, SaveError, kind_of
from ding_lite.interruption import is_interrupted
from ding_lite.middleware.checkpoints.description import PARTS, POLICY, describe
from ding_lite.middleware.checks import Period, check_has
from ding_lite.nest import Path as TreePath, leaves, path_name
from ding_lite.rl.checkpoint.save_load import check_saveable, save_checkpoint
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context, latch_of
from ding_lite.runtime.middleware import LAST, Middleware
from ding_lite.runtime.saving import Stateful
from ding_lite.runtime.task import Task


def checkpoint(
    parts: Policy | Mapping[str, object],
    directory: str | os.PathLike[str],
    processes: Processes | None = None,
    *,
    every: int | None = None,
    every_env_steps: int | None = None,
) -> Middleware:
    """Save a policy, or all parts of a run, periodically and when the run ends.

    It saves after the step, when all middleware are done, and also after Ctrl-C. A checkpoint
    replaces the previous one only when it is complete. After any other error, or a second Ctrl-C
    in the middle of a step, nothing is saved, and weights that are not finite are not saved: the
    last good checkpoint remains. If an environment hangs or fails after Ctrl-C, only that step is
    lost: the complete steps before it are saved.

    Context:
        reads: env_step, eval_steps (of a population), eval_value, total_step, train_iter

    Args:
        parts: A policy, with its state in `load_checkpoint(directory).state`; or all parts that an
            exact `resume` needs, by names of your choice: the policy, the replay, the envs, the
            task.
        directory: The directory of the checkpoint. It is made when the run begins.
        processes: The processes that save at the same step; all must run this middleware in every
            step. The main process saves in `directory`, the others beside it: rank 1 alternates
            between `<directory>-1-0` and `<directory>-1-1`. They may run on several machines.
        every: Steps of the pipeline from one save to the next. Saving a small policy takes
            milliseconds; of a large replay only changes since the last save are written.
        every_env_steps: Env steps of the ctx from one save to the next, instead of `every`.

    Raises:
        ConfigError: `directory` is a file, or a setting is out of range.
        CheckpointError: The state of a policy cannot be saved. Other parts, which may be used on
            another node only, are checked when the run begins; state that exists only after running
            or learning is checked after the first step and after the first update.
        NonFiniteError: In a step: a weight of the policy is no longer finite; nothing was saved.
        MiddlewareError: In a step: another process is at another place of its program.
        PeerLost: In a step: another process has ended, or has not responded in time.

    Example:
        >>> from ding_lite import Task
        >>> from ding_lite.rl import DQN, make_envs
        >>> envs = make_envs("CartPole-v1", 2)
        >>> task = Task()
        >>> parts = {"policy": DQN(envs.spec), "envs": envs, "task": task}
        >>> _ = task.use(checkpoint(parts, "runs/x/checkpoint", every=1_000))
    """
    is_alone = not isinstance(parts, Mapping)
    if is_alone:
        check_has(parts, "state_dict", "policy")
    named = parts if isinstance(parts, Mapping) else {POLICY: parts}
    for name, part in named.items():
        stateful(part, name)
    period = Period(every, every_env_steps)
    path = Path(directory)
    if path.exists() and not path.is_dir():
        raise ConfigError(
            f"The checkpoint directory {path} is a file. Name a directory, or move the file away."
        )
    if processes is not None:
        check_has(processes, "gather", "processes")
    return _Checkpoint(named, path, period, processes, is_alone=is_alone)


def stateful(part: object, name: str) -> Stateful:
    """Return a part that can be saved; refuse one without `state_dict` and `load_state_dict`."""
    if not isinstance(part, Stateful):
        raise ConfigError(
            f"`{name}` is {kind_of(part)}, which cannot be saved: it has no `state_dict` "
            f"and `load_state_dict`. Give it both, or leave it out of the parts."
        )
    return part


class _Checkpoint:
    """Saves after steps, and once more when the run ends without an error within a step.

    Of several processes each saves its own parts, the main process last.
    """

    __name__ = "checkpoint"

    def __init__(
        self,
        parts: Mapping[str, object],
        directory: Path,
        period: Period,
        processes: Processes | None,
        *,
        is_alone: bool,
    ) -> None:
        self._parts = parts
        self._is_alone = is_alone
        self._base = directory
        self._processes = processes
        self._turn = 0
        self._period = period
        self._counters: dict[str, Any] = {}
        self._eval_value: float | None = None
        self._saved = True
        self._checked_at: int | None = None
        """The updates done at the newest check by a step; None before the first."""
        self._known: dict[str, list[TreePath]] = {}
        """The policies, and their arrays that are not finite before the first update."""
        for name, part in parts.items():
            if is_alone or hasattr(part, "act"):
                state = stateful(part, name).state_dict()
                check_saveable(state, name)
                self._known[name] = not_finite(state)

    def __enter__(self) -> Self:
        self._make_directory(parents=True)
        self._check(but=Task)  # of which other middleware may not be entered yet
        return self

    def _make_directory(self, *, parents: bool) -> None:
        try:
            self._directory.mkdir(parents=parents, exist_ok=True)
        except OSError as error:
            raise SaveError(
                f"The checkpoint directory {self._directory} cannot be made: {error}. "
                f"Choose one that you may write to."
            ) from error

    def __call__(self, ctx: Context) -> Iterator[Any]:
        yield
        yield LAST  # generators before it in the pipeline, too, may change what it saves
        self._saved = False
        self._counters = {
            "total_step": ctx.total_step,
            "env_step": ctx.get("env_step", 0),
            "train_iter": ctx.get("train_iter", 0),
            "finish": latch_of(ctx).was_finished,
        }
        if "eval_steps" in ctx:
            self._counters["eval_steps"] = ctx.eval_steps
        if "eval_value" in ctx:
            self._eval_value = float(ctx.eval_value)
        # An interrupted run may be killed soon, and the last curve takes seconds to draw.
        if self._period.is_due(ctx) or (self._processes is None and is_interrupted()):
            self._save()
        elif self._checked_at in (None, 0) and self._checked_at != self._counters["train_iter"]:
            # The first step, or the first update, after which optimisers have a state.
            self._checked_at = self._counters["train_iter"]
            self._check()

    def _check(self, *, but: type | tuple[()] = ()) -> None:
        """Check that the parts which are not changed by `state_dict` can be saved."""
        for name, part in self._parts.items():
            if not (isinstance(part, but) or getattr(part, "is_changed_by_saving", False)):
                check_saveable(stateful(part, name).state_dict(), name)

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if not self._saved and (error is None or _came_between_steps(error)):
            self._save()

    def state_dict(self) -> dict[str, Any]:
        state = {"eval_value": self._eval_value, **self._period.state_dict()}
        if self._processes is not None:
            state |= {"turn": self._turn, "processes": self._processes.size}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved_by, size = state.get("processes", 1), self._processes.size if self._processes else 1
        if saved_by != size:
            raise CheckpointError(
                f"{saved_by} processes have saved this, and {size} are to go on. Start as many as "
                f"there were."
            )
        self._eval_value = state["eval_value"]
        self._period.load_state_dict(state)
        self._turn = int(state.get("turn", 0))

    @property
    def _directory(self) -> Path:
        """The directory of the newest save, or before it of the first one."""
        rank = self._processes.rank if self._processes else 0
        return place_of(self._base, rank, self._turn)

    def _save(self) -> None:
        processes = self._processes
        if processes is None:
            self._save_own()
            return
        self._turn = 1 - self._turn
        if not processes.is_main:
            self._save_own()
        processes.gather("all others have saved", [])
        if processes.is_main:
            self._save_own()

    def _save_own(self) -> None:
        parts, meta, directory = self._parts, dict(self._counters), self._directory
        if self._eval_value is not None:
            meta["eval_value"] = self._eval_value
        states = {name: stateful(part, name).state_dict() for name, part in parts.items()}
        for name, known in self._known.items():
            check_finite(
                states[name], name, known=known, train_iter=meta["train_iter"], directory=directory
            )
        if self._is_alone:
            meta[POLICY] = describe(parts[POLICY])
        else:
            meta[PARTS] = {name: describe(part) for name, part in parts.items()}
        self._make_directory(parents=False)  # as a run may have been moved meanwhile
        save_checkpoint(directory, states[POLICY] if self._is_alone else states, meta=meta)
        self._saved = True


def place_of(directory: Path, rank: int, turn: int) -> Path:
    return directory if rank == 0 else directory.with_name(f"{directory.name}-{rank}-{turn}")


def _came_between_steps(error: BaseException) -> bool:
    """Return whether a run was interrupted between two steps.

    An exception that is raised within a step, also by a second Ctrl-C, has a note of the runtime
    with its place; an update may then be incomplete.
    """
    stopped = isinstance(error, KeyboardInterrupt | SystemExit)
    return stopped and not getattr(error, "__notes__", ())


def check_finite(
    state: Mapping[str, Any],
    name: str,
    *,
    known: Collection[TreePath],
    train_iter: int,
    directory: Path,
) -> None:
    """Refuse to save a policy with weights that are no longer finite.

    `known` is the result of `not_finite` before the first update.
    """
    for path in not_finite(state):
        if path not in known:
            raise NonFiniteError(
                f"{path_name(path, name)} is no longer finite after update "
                f"{train_iter:,}, so the policy was not saved; what "
                f"{directory} holds is the last good one. Lower the learning rate."
            )


def not_finite(state: Mapping[str, Any]) -> list[TreePath]:
    """Return the paths of arrays that contain NaN or infinity, such as a mask of attention."""
    return [path for path, leaf in leaves(state) if not _is_finite(leaf)]


def _is_finite(leaf: object) -> bool:
    if isinstance(leaf, Tensor):
        return not leaf.is_floating_point() or bool(leaf.detach().double().isfinite().all())
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind != "f" or bool(np.isfinite(leaf).all())
    return True  # a PyTorch scheduler may begin with the number infinity

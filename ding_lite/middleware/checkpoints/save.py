"""Save all parts of a run.

Of several Accelerate processes each saves its own parts, as its replay, its environments and its
random numbers are its own. The others do so first, by turns in one of two places; then the main
process saves, which is what makes the new checkpoint the valid one. Whichever process is killed on
the way, the main process's checkpoint is of a step that all others have saved, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from ding_lite.distributed.accelerate import Processes
from ding_lite.errors import CheckpointError, ConfigError, SaveError, kind_of
from ding_lite.middleware.checkpoints.description import (
    PARTS,
    POLICY,
    describe,
    describe_alone,
)
from ding_lite.middleware.checkpoints.finite import check_finite, not_finite
from ding_lite.middleware.checks import Period, check_has
from ding_lite.rl.checkpoint.save_load import check_saveable, save_checkpoint
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
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
    """Save a policy, or all that a run consists of, now and then and when the run ends.

    It saves behind the step, when all middleware have done their part, and also after Ctrl-C. A
    save replaces the one before only when it is complete. After any other error, or a second
    Ctrl-C in the middle of a step, nothing is saved, and a weight that is not finite is
    refused: the last good checkpoint stays. An environment that hangs or fails after Ctrl-C
    loses its own step only: what the whole steps before have made is saved.

    Context:
        reads: env_step, eval_value, total_step, train_iter

    Args:
        parts: A policy, which `load_checkpoint(directory).state` is the state of; or everything
            that is to go on exactly, by names of yours, for `resume`: the policy, the replay,
            the envs, the task.
        directory: Made when the run begins, if need be.
        processes: All that are to save at the same step, and must come here in every step. The
            main one saves in `directory`, the others beside it: rank 1 by turns in
            `<directory>-1-0` and `<directory>-1-1`. All of one machine, or of several.
        every: Steps of the pipeline from one save to the next. A save of a small policy costs
            milliseconds; of a large replay what has changed since the last one is written.
        every_env_steps: The same in env steps, as they are on the ctx, in place of `every`.

    Raises:
        ConfigError: `directory` is a file, or a setting is out of range.
        CheckpointError: A policy has a state that cannot be saved; of other parts, which another
            node may keep, when the run begins. What they have only once they have run or learned is
            checked behind the first step, and behind the first update.
        NonFiniteError: In a step: a weight of the policy that was finite is not, and nothing was
            saved.
        MiddlewareError: In a step: another process is somewhere else in its program.
        PeerLost: In a step: another process is gone, or has not come in time.

    Example:
        >>> from ding_lite import Task
        >>> from ding_lite.rl import DQN, make_envs
        >>> envs = make_envs("CartPole-v1", 2)
        >>> task = Task()
        >>> parts = {"policy": DQN(envs.spec), "envs": envs, "task": task}
        >>> _ = task.use(checkpoint(parts, "runs/x/checkpoint", every=1_000))
    """
    if not isinstance(parts, Mapping):
        check_has(parts, "state_dict", "policy")
    else:
        for name, part in parts.items():
            stateful(part, name)
    period = Period(every, every_env_steps)
    path = Path(directory)
    if path.exists() and not path.is_dir():
        raise ConfigError(
            f"The checkpoint directory {path} is a file. Name a directory, or move the file away."
        )
    for name, policy in _policies_of(parts).items():
        check_saveable(policy.state_dict(), name)
    if processes is None:
        return _Checkpoint(parts, path, period)
    check_has(processes, "gather", "processes")
    return _CheckpointTogether(parts, path, period, processes)


def _named(parts: Policy | Mapping[str, object]) -> dict[str, Stateful]:
    if not isinstance(parts, Mapping):
        return {POLICY: parts}
    return {name: stateful(part, name) for name, part in parts.items()}


def _policies_of(parts: Policy | Mapping[str, object]) -> dict[str, Stateful]:
    if not isinstance(parts, Mapping):
        return {POLICY: parts}
    return {name: part for name, part in _named(parts).items() if hasattr(part, "act")}


def stateful(part: object, name: str) -> Stateful:
    """Return a part that can be saved; refuse one without `state_dict` and `load_state_dict`."""
    if not isinstance(part, Stateful):
        raise ConfigError(
            f"`{name}` is {kind_of(part)}, which cannot be saved: it has no `state_dict` "
            f"and `load_state_dict`. Give it both, or leave it out of the parts."
        )
    return part


class _Checkpoint:
    """Saves behind its steps, and once more when the run ends with the policy intact."""

    __name__ = "checkpoint"

    def __init__(
        self, parts: Policy | Mapping[str, object], directory: Path, period: Period
    ) -> None:
        self._parts = parts
        self._directory = directory
        self._period = period
        self._counters: dict[str, Any] = {}
        self._eval_value: float | None = None
        self._saved = True
        self._checked_at: int | None = None
        self._known = {name: not_finite(p.state_dict()) for name, p in _policies_of(parts).items()}

    def __enter__(self) -> Self:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SaveError(
                f"The checkpoint directory {self._directory} cannot be made: {error}. "
                f"Choose one that you may write to."
            ) from error
        for name, part in self._checkable():
            if not isinstance(part, Task):  # its other middleware may be entered later
                check_saveable(part.state_dict(), name)
        return self

    def __call__(self, ctx: Context) -> Iterator[None]:
        yield
        self._saved = False
        self._counters = {
            "total_step": ctx.total_step,
            "env_step": ctx.get("env_step", 0),
            "train_iter": ctx.get("train_iter", 0),
        }
        if "eval_value" in ctx:
            self._eval_value = float(ctx.eval_value)
        if self._period.is_due(ctx):
            self._save()
        elif not self._checked_at and self._checked_at != self._counters["train_iter"]:
            self._check()

    def _check(self) -> None:
        """Refuse now what a save would refuse: optimisers have a state once they have stepped."""
        self._checked_at = self._counters["train_iter"]
        for name, part in self._checkable():
            check_saveable(part.state_dict(), name)

    def _checkable(self) -> Iterator[tuple[str, Stateful]]:
        """Yield the parts that are the same whether a state is taken of them or not."""
        for name, part in _named(self._parts).items():
            if not getattr(part, "is_changed_by_saving", False):
                yield name, part

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if not self._saved and (error is None or _came_between_steps(error)):
            self._save()

    def state_dict(self) -> dict[str, Any]:
        return {"eval_value": self._eval_value, **self._period.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._eval_value = state["eval_value"]
        self._period.load_state_dict(state)

    def _save(self) -> None:
        parts, meta = self._parts, dict(self._counters)
        if self._eval_value is not None:
            meta["eval_value"] = self._eval_value
        if isinstance(parts, Mapping):
            state = {name: stateful(part, name).state_dict() for name, part in parts.items()}
            meta[PARTS] = {name: describe(part) for name, part in parts.items()}
            policies = {name: state[name] for name in parts if hasattr(parts[name], "act")}
        else:
            state = parts.state_dict()
            meta |= describe_alone(parts)
            policies = {"policy": state}
        updates = self._counters["train_iter"]
        for name, policy in policies.items():
            check_finite(
                *(policy, name), known=self._known[name], train_iter=updates,
                directory=self._directory,
            )  # fmt: skip
        save_checkpoint(self._directory, state, meta=meta)
        self._saved = True


class _CheckpointTogether(_Checkpoint):
    """Saves when all the others have."""

    __name__ = "checkpoint_together"  # under which checkpoints have its state

    def __init__(
        self,
        parts: Policy | Mapping[str, object],
        directory: Path,
        period: Period,
        processes: Processes,
    ) -> None:
        super().__init__(parts, place_of(directory, processes.rank, 0), period)
        self._base = directory
        self._processes = processes
        self._turn = 0

    def state_dict(self) -> dict[str, Any]:
        """Return also the turn, and how many processes have saved."""
        return {**super().state_dict(), "turn": self._turn, "processes": self._processes.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["processes"] != self._processes.size:
            raise CheckpointError(
                f"{state['processes']} processes have saved this, and {self._processes.size} are "
                f"to go on. Start as many as there were."
            )
        super().load_state_dict(state)
        self._turn = int(state["turn"])

    def _save(self) -> None:
        processes = self._processes
        self._turn = 1 - self._turn
        self._directory = place_of(self._base, processes.rank, self._turn)
        if not processes.is_main:
            super()._save()
        processes.gather("all others have saved", [])
        if processes.is_main:
            super()._save()


def place_of(directory: Path, rank: int, turn: int) -> Path:
    return directory if rank == 0 else directory.with_name(f"{directory.name}-{rank}-{turn}")


def _came_between_steps(error: BaseException) -> bool:
    """Return whether a run was stopped from outside, with its last step done.

    What is raised within a step carries the runtime's note that says where, also a second
    Ctrl-C: then an update may be half done.
    """
    stopped = isinstance(error, KeyboardInterrupt | SystemExit)
    return stopped and not getattr(error, "__notes__", ())

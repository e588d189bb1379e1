"""Save all parts of a run, and resume it from what was saved.

Of several Accelerate processes each saves its own parts, as its replay, its environments and its
random numbers are its own. The others do so first, by turns in one of two places; then the main
process saves, which is what makes the new checkpoint the valid one. Whichever process is killed on
the way, the main process's checkpoint is of a step that all others have saved, too.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

import numpy as np
from torch import Tensor

from ding_lite.distributed.accelerate import Processes
from ding_lite.errors import (
    CheckpointError,
    ConfigError,
    DingLiteError,
    NonFiniteError,
    SaveError,
    ShapeError,
)
from ding_lite.io.signature import sign
from ding_lite.middleware.checks import Period, check_has
from ding_lite.nest import Path as TreePath, leaves, path_name
from ding_lite.rl.checkpoint.save_load import (
    MANIFEST,
    check_saveable,
    load_checkpoint,
    save_checkpoint,
)
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.rl.envs.naming import name_of
from ding_lite.rl.policies.open_policy import OpenPolicy
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.runtime.saving import Stateful
from ding_lite.runtime.task import Task
from ding_lite.settings import default_values

_PARTS, _POLICY = "parts", "policy"
_MISFITS = (
    *(KeyError, IndexError, AttributeError, TypeError, ValueError, OverflowError, RuntimeError),
)
"""Errors that parts raise when a state has not their form."""
_FORMER_KINDS = {
    "Budget": "EnvStepBudget",
    "Champion": "KeepBestAgent",
    "CollectUnroll": "CollectRollout",
    "_Recall": "_ReplayTrajectories",
    "_Tally": "_CountCollected",
}
"""Classes of parts by the names that earlier releases have saved."""
_COUNTERS = ("total_step", "env_step", "train_iter", "eval_value")


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
            _stateful(part, name)
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
        return {_POLICY: parts}
    return {name: _stateful(part, name) for name, part in parts.items()}


def _policies_of(parts: Policy | Mapping[str, object]) -> dict[str, Stateful]:
    if not isinstance(parts, Mapping):
        return {_POLICY: parts}
    return {name: part for name, part in _named(parts).items() if hasattr(part, "act")}


@overload
def resume(parts: Mapping[str, object], directory: str | os.PathLike[str]) -> dict[str, Any]: ...
@overload
def resume(
    parts: Mapping[str, object], directory: str | os.PathLike[str], processes: Processes
) -> dict[str, Any] | None: ...
def resume(
    parts: Mapping[str, object],
    directory: str | os.PathLike[str],
    processes: Processes | None = None,
) -> dict[str, Any] | None:
    """Make everything what it was when `checkpoint` saved the same parts.

    Call it before `task.run`, once all middleware are in use. A run in one process then goes on
    as if it had never ended, bit for bit.

    Args:
        parts: What was saved, by the same names.
        directory: Where.
        processes: As many as have saved together; each of them comes here.

    Returns:
        The counters: `total_step`, `env_step` and `train_iter`; and `eval_value`, the newest
        evaluation, if there was one. None where processes have saved nothing yet.

    Raises:
        CheckpointError: There is no checkpoint, it is damaged, or it is one of other parts, of
            another environment, or of other settings of a policy; or a process has none of the step
            that the main one goes on from.
    """
    if processes is not None:
        place = _newest_of_all(Path(directory), processes)
        return None if place is None else resume(parts, place)
    saved = load_checkpoint(directory)
    _check_fits(
        _described_parts(saved.meta),
        {name: describe(part) for name, part in parts.items()},
        {name: _usual(part) for name, part in parts.items()},
    )
    if not isinstance(saved.state, dict):
        raise CheckpointError(f"The checkpoint in {directory} is damaged: its state is no dict.")
    for name, part in parts.items():
        with fitting(name, directory):
            _stateful(part, name).load_state_dict(saved.state[name])
    return {name: saved.meta[name] for name in _COUNTERS if name in saved.meta}


def _newest_of_all(directory: Path, processes: Processes) -> Path | None:
    """Return where this process has saved the step that the main one goes on from."""
    places = [_place(directory, processes.rank, turn) for turn in range(2)]
    steps = {_step_of(place): place for place in places}
    step = processes.broadcast("the step to go on from", _step_of(places[0]))
    if step is None:
        return None
    has_saved = processes.gather("which processes have saved it", [step in steps])[:, 0]
    if not has_saved.all():
        raise CheckpointError(
            f"The main process has saved step {step}, and rank "
            f"{', '.join(str(rank) for rank, has in enumerate(has_saved) if not has)} has no "
            f"checkpoint of that step beside {directory}. Put its files back, and start as many "
            f"processes as have saved."
        )
    return steps[step]


@contextmanager
def fitting(name: str, directory: str | os.PathLike[str]) -> Iterator[None]:
    """Name the part and the directory when a saved state does not fit the part.

    Raises:
        CheckpointError: It does not; also where its values are none that this package saves.
    """
    try:
        yield
    except (CheckpointError, ShapeError) as error:
        raise CheckpointError(
            f"The `{name}` in {directory} does not fit this program: {error}"
        ) from error
    except DingLiteError:
        raise
    except _MISFITS as error:
        raise CheckpointError(
            f"The `{name}` in {directory} is not what this program saves "
            f"({type(error).__name__}: {error}). Resume with the program, and the version of "
            f"ding_lite, that saved it."
        ) from error


def describe(part: object) -> dict[str, Any]:
    """Describe a part of a run in plain values: enough to make a policy like it.

    Returns:
        `kind`, the name of its class; and where it has them `config`, its settings, `env`, what it
        was made for, `given`, the names of what its user gave of it, and `class`, by which one of
        the user's own is found again; None stands for what cannot be. Where it names code of the
        user, it has a `signature`.
    """
    about: dict[str, Any] = {"kind": type(part).__name__}
    config = getattr(part, "config", None)
    if dataclasses.is_dataclass(config):
        about["config"] = _plain(config)
    spec = getattr(part, "spec", None)
    if isinstance(spec, EnvSpec):
        about["env"] = {"env_id": spec.env_id, "frame_stack": spec.frame_stack}
        if isinstance(spec.maker, EnvMaker):
            about["env"]["made_by"] = _plain_tree(spec.maker.described())
    if isinstance(part, OpenPolicy) and part.parts:
        about["given"] = {name: name_of(one) for name, one in part.parts.items()}
    if hasattr(part, "act") and not type(part).__module__.startswith("ding_lite."):
        about["class"] = name_of(type(part))
    if named := named_code(about):
        about["signature"] = sign(named)
    return about


def named_code(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a description names of the user's code: it is imported to load the policy."""
    env = about.get("env", {})
    named = {key: about[key] for key in ("given", "class") if about.get(key)}
    if "made_by" in env or ":" in str(env.get("env_id")):
        named["env"] = [env.get("env_id"), env.get("made_by")]
    return named


def describe_alone(policy: object) -> dict[str, Any]:
    """Describe a policy that a checkpoint holds alone, for `described_policy`."""
    return {_POLICY: describe(policy)}


def described_policy(meta: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Find the policy among what a checkpoint's `meta` describes.

    Returns:
        The name it was saved by, None where it was saved alone, and what it is.

    Raises:
        CheckpointError: There is none.
    """
    alone, parts = meta.get(_POLICY), _described_parts(meta)
    if isinstance(alone, dict) and isinstance(alone.get("kind"), str):
        return None, alone
    for name, about in (parts or {}).items():
        if "config" in about and "env" in about:
            return name, about
    raise CheckpointError(
        f"The checkpoint holds {_listed(parts)}, and no policy among them. Save one "
        f"with `mw.checkpoint`."
    )


def _described_parts(meta: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return what a checkpoint says of its parts; None where it says nothing of that kind."""
    parts = meta.get(_PARTS)
    if not isinstance(parts, dict):
        return None
    well_formed = all(
        isinstance(about, dict)
        and isinstance(about.get("kind"), str)
        and isinstance(about.get("env", {}), dict)
        and isinstance(about.get("config", {}), dict)
        for about in parts.values()
    )
    return parts if well_formed else None


def _stateful(part: object, name: str) -> Stateful:
    if not isinstance(part, Stateful):
        raise ConfigError(
            f"`{name}` is a {type(part).__name__}, which cannot be saved: it has no `state_dict` "
            f"and `load_state_dict`. Give it both, or leave it out of the parts."
        )
    return part


def _plain(value: object) -> object:
    """Return a setting as a checkpoint can hold it, and so that it compares equal later."""
    if isinstance(value, tuple | list):
        return tuple(_plain(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(one) for name, one in vars(value).items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _plain_tree(value: object) -> object:
    """Return a tree of settings as a checkpoint can hold it."""
    if isinstance(value, Mapping):
        return {str(key): _plain_tree(item) for key, item in value.items()}
    return [_plain_tree(item) for item in value] if isinstance(value, list) else _plain(value)


def _usual(part: object) -> dict[str, Any]:
    """Return the defaults of a part's settings."""
    config = getattr(part, "config", None)
    values = default_values(type(config)) if dataclasses.is_dataclass(config) else {}
    return {name: _plain(value) for name, value in values.items()}


def _check_fits(
    saved: Mapping[str, Any] | None, wanted: Mapping[str, Any], usual: Mapping[str, Any]
) -> None:
    """Refuse to go on with something else than what was saved.

    A setting that an earlier version did not have was its default.
    """
    kinds = {
        name: _FORMER_KINDS.get(about["kind"], about["kind"])
        for name, about in (saved or {}).items()
    }
    if saved is None or kinds != {name: about["kind"] for name, about in wanted.items()}:
        raise CheckpointError(
            f"The checkpoint holds {_listed(saved)}; this program has {_listed(wanted)}. Resume "
            f"with the program, and the choice of policy, that saved it."
        )
    for name, about in wanted.items():
        for what in ("env", "config"):
            then, now = saved[name].get(what, {}), about.get(what, {})
            if what == "config":
                default = usual.get(name, {})
                then = {**{key: default[key] for key in now if key in default}, **then}
            different = [key for key in {**then, **now} if then.get(key) != now.get(key)]
            if different:
                facts = [f"`{key}` is {now.get(key)!r}, was {then.get(key)!r}" for key in different]
                raise CheckpointError(
                    f"The `{name}` is not the one that was saved: {'; '.join(facts)}. Resume "
                    f"with what it was, or begin another run."
                )


def _listed(parts: Mapping[str, Any] | None) -> str:
    if not parts:
        return "a policy alone"
    return ", ".join(f"a {about['kind']} as `{name}`" for name, about in parts.items())


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._saved and (error is None or _came_between_steps(error)):
            self._save()

    def state_dict(self) -> dict[str, Any]:
        """Return what the next checkpoint says beside what it holds."""
        return {"eval_value": self._eval_value, **self._period.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self._eval_value = state["eval_value"]
        self._period.load_state_dict(state)

    def _save(self) -> None:
        parts, meta = self._parts, dict(self._counters)
        if self._eval_value is not None:
            meta["eval_value"] = self._eval_value
        if isinstance(parts, Mapping):
            state = {name: _stateful(part, name).state_dict() for name, part in parts.items()}
            meta[_PARTS] = {name: describe(part) for name, part in parts.items()}
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
        super().__init__(parts, _place(directory, processes.rank, 0), period)
        self._base = directory
        self._processes = processes
        self._turn = 0

    def state_dict(self) -> dict[str, Any]:
        """Return also the turn, and how many processes have saved."""
        return {**super().state_dict(), "turn": self._turn, "processes": self._processes.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
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
        self._directory = _place(self._base, processes.rank, self._turn)
        if not processes.is_main:
            super()._save()
        processes.gather("all others have saved", [])
        if processes.is_main:
            super()._save()


def _place(directory: Path, rank: int, turn: int) -> Path:
    """Return where a process saves."""
    return directory if rank == 0 else directory.with_name(f"{directory.name}-{rank}-{turn}")


def _step_of(place: Path) -> int | None:
    """Return the step of a checkpoint; None where there is none."""
    if not (place / MANIFEST).exists():
        return None
    return int(load_checkpoint(place).meta["total_step"])


def check_finite(
    state: Mapping[str, Any],
    name: str,
    *,
    known: Collection[TreePath],
    train_iter: int,
    directory: Path,
) -> None:
    """Refuse to save a policy that is broken.

    Args:
        state: Its state.
        name: Its name in the error.
        known: What `not_finite` has returned of it before it learned.
        train_iter: The updates that it has made.
        directory: Of the last good checkpoint.

    Raises:
        NonFiniteError: A number of it has become NaN or infinite.
    """
    for path in not_finite(state):
        if path not in known:
            raise NonFiniteError(
                f"{path_name(path, name)} is no longer finite after update "
                f"{train_iter:,}, so the policy was not saved; what "
                f"{directory} holds is the last good one. Lower the learning rate."
            )


def not_finite(state: Mapping[str, Any]) -> list[TreePath]:
    """Return which arrays of a state hold NaN or infinity, as the mask of an attention does."""
    return [path for path, leaf in leaves(state) if not _is_finite(leaf)]


def _is_finite(leaf: object) -> bool:
    if isinstance(leaf, Tensor):
        return not leaf.is_floating_point() or bool(leaf.detach().double().isfinite().all())
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind != "f" or bool(np.isfinite(leaf).all())
    return True  # such as the infinity with which a schedule of PyTorch begins


def _came_between_steps(error: BaseException) -> bool:
    """Return whether a run was stopped from outside, with its last step done.

    What is raised within a step carries the runtime's note that says where, also a second
    Ctrl-C: then an update may be half done.
    """
    stopped = isinstance(error, KeyboardInterrupt | SystemExit)
    return stopped and not getattr(error, "__notes__", ())

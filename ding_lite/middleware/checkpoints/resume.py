"""Resume a run from its checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

from ding_lite.distributed.accelerate.processes import Processes
from ding_lite.errors import CheckpointError, DingLiteError, ShapeError
from ding_lite.middleware.checkpoints.description import check_resumable
from ding_lite.middleware.checkpoints.save import place_of, stateful
from ding_lite.rl.checkpoint.save_load import MANIFEST, load_checkpoint

_MISFITS = (LookupError, AttributeError, TypeError, ValueError, OverflowError, RuntimeError)
"""Errors that parts raise if a state has the wrong form."""
_COUNTERS = ("total_step", "env_step", "train_iter", "eval_steps", "eval_value", "finish")


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
    """Restore the parts that `checkpoint` has saved.

    Call it before `task.run`, after all middleware are added. A run in one process then continues
    bit for bit as if it had not been interrupted.

    Args:
        parts: The same parts by the same names as in `checkpoint`.
        directory: The directory of the checkpoint.
        processes: As many processes as have saved; all of them must call this function.

    Returns:
        The counters: `total_step`, `env_step` and `train_iter`; `eval_steps` of a population;
        `eval_value`, the newest evaluation, if there was one; and `finish`, whether a middleware
        had set `ctx.finish`, as a signal and `max_step` do not. None if `processes` is given and
        nothing was saved yet.

    Raises:
        CheckpointError: There is no checkpoint, it is damaged, or it is one of other parts, of
            another environment, or of other settings of a policy; or a process has no checkpoint of
            the main process's step.
    """
    if processes is not None:
        place = _newest_of_all(Path(directory), processes)
        return None if place is None else resume(parts, place)
    saved = load_checkpoint(directory)
    check_resumable(saved.meta, parts)
    if not isinstance(saved.state, dict):
        raise CheckpointError(f"The checkpoint in {directory} is damaged: its state is no dict.")
    for name, part in parts.items():
        with fitting(name, directory):
            stateful(part, name).load_state_dict(saved.state[name])
    return {name: saved.meta[name] for name in _COUNTERS if name in saved.meta}


def _newest_of_all(directory: Path, processes: Processes) -> Path | None:
    """Return this process's checkpoint of the step from which the main process continues."""
    places = [place_of(directory, processes.rank, turn) for turn in range(2)]
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


def _step_of(place: Path) -> int | None:
    if not (place / MANIFEST).exists():
        return None
    return int(load_checkpoint(place).meta["total_step"])


@contextmanager
def fitting(name: str, directory: str | os.PathLike[str]) -> Iterator[None]:
    """Raise CheckpointError with the part and the directory if a saved state does not fit."""
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

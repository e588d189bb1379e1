"""Save a checkpoint of several Accelerate processes at one and the same step.

Each process saves its own parts, as its replay, its environments and its random numbers are its
own. The others do so first, by turns in one of two places; then the main process saves, which is
what makes the new checkpoint the valid one. Whichever process is killed on the way, the main
process's checkpoint is of a step that all others have saved, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ding_lite.distributed.accelerate import Processes
from ding_lite.errors import CheckpointError
from ding_lite.middleware.checkpoint import _Checkpoint, checkpoint, resume
from ding_lite.middleware.checks import Period, check_has
from ding_lite.rl.checkpoint.save_load import MANIFEST, load_checkpoint
from ding_lite.runtime.middleware import Middleware


def checkpoint_together(
    parts: Mapping[str, object],
    directory: str | os.PathLike[str],
    processes: Processes,
    *,
    every: int,
) -> Middleware:
    """Let all processes save at the same step, now and then and when the run ends.

    The main process saves in `directory`, the others beside it: rank 1 by turns in
    `<directory>-1-0` and `<directory>-1-1`. All else is as with `checkpoint`.

    Context:
        reads: env_step, eval_value, total_step, train_iter

    Args:
        parts: All that is to go on exactly, by names of yours: the population, this process's
            replay and envs, the task.
        directory: The same on all processes, of one machine or of several.
        processes: All of them must come here in every step.
        every: Steps of the pipeline from one save to the next.

    Raises:
        ConfigError: `directory` is a file, or a setting is out of range.
        MiddlewareError: In a step: another process is somewhere else in its program.
        PeerLost: In a step: another process is gone, or has not come in time.
    """
    check_has(processes, "gather", "processes")
    checkpoint(parts, directory, every=every)  # refuses what cannot be saved
    return _CheckpointTogether(parts, Path(directory), Period(every), processes)


def resume_together(
    parts: Mapping[str, object], directory: str | os.PathLike[str], processes: Processes
) -> dict[str, Any] | None:
    """Make everything what it was on all processes when `checkpoint_together` saved it.

    Call it on every process before `task.run`, once all middleware are in use.

    Args:
        parts: What was saved, by the same names.
        directory: Where.
        processes: As many as have saved.

    Returns:
        The counters, as `resume` returns them; None where nothing was saved yet.

    Raises:
        CheckpointError: A checkpoint is damaged, or does not fit; or a process has none of the
            step that the main one goes on from.
    """
    places = [_place(Path(directory), processes.rank, turn) for turn in range(2)]
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
    return resume(parts, steps[step])


class _CheckpointTogether(_Checkpoint):
    """Saves when all the others have."""

    __name__ = "checkpoint_together"

    def __init__(
        self, parts: Mapping[str, object], directory: Path, period: Period, processes: Processes
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

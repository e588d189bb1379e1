"""Read the results of runs, group runs that differ only in their seeds, and join their curves."""

from __future__ import annotations

import glob
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ding_lite.errors import ConfigError, did_you_mean, printable
from ding_lite.io.files import by_number, named
from ding_lite.io.memory import parsable_bytes
from ding_lite.io.reading import parse_json, read_end, read_file, read_json_object
from ding_lite.middleware.env_step_budget import spent
from ding_lite.middleware.report.report import OPTIONS
from ding_lite.middleware.report.style import LARGEST
from ding_lite.recipes.runs.directory import (
    CONFIG,
    METRICS,
    RESULT,
    read_description,
    saved_description,
)
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.envs.naming import short_name

GRID_POINTS = 400
_MOST_BYTES = 1 << 30
_END_BYTES = 1 << 20
"""The end of a metrics file that is read for its last row: in a day a run may write 1 GB."""
_OF_RUNS = (CONFIG, METRICS)
"""Files of a run, of which one at least is there."""
_ONLY_OF_ONE = {"seed", "smoke"}
"""Options in which the runs of a group may differ; `smoke` is saved as `max_env_steps`."""

_MOST_LETTERS = 200
_PLAIN = ("program", "env")
"""Facts that a label shows without their names."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """The results of one run."""

    directory: Path
    description: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def seed(self) -> int | None:
        return self._options.get("seed")

    @property
    def target(self) -> float | None:
        return self._options.get("target")

    @property
    def env_steps(self) -> int | None:
        """All env steps until the last row, including those of evaluations of a population."""
        if not self.rows:
            return None
        counts = {name: self.rows[-1].get(name) or 0 for name in ("env_step", "eval_steps")}
        return spent({name: max(-LARGEST, min(LARGEST, n)) for name, n in counts.items()})

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts that are the same in all runs of a group."""
        config = self.description.get("config") or {}
        named = {**self._options, **config}
        return {
            "program": self.description.get("example"),
            **{name: named[name] for name in named if name not in _ONLY_OF_ONE},
        }

    @cached_property
    def verdict(self) -> dict[str, Any]:
        """The last line of the run; empty if it has not ended."""
        with suppress(OSError, ValueError):
            return read_json_object(self.directory / RESULT, most=_END_BYTES)
        return {}

    @property
    def final(self) -> float | None:
        """The mean return of the final evaluation; None if the run has not ended."""
        return self._judged("eval_return")

    @property
    def wall_s(self) -> float | None:
        """The running time: that of the whole run, or until the last row if it has not ended."""
        until_last_row = self.rows[-1]["wall_s"] if self.rows else None
        return until_last_row if (whole := self._judged("wall_s")) is None else whole

    def has(self, metric: str) -> bool:
        return any(row.get(metric) is not None for row in self.rows)

    def points(self, metric: str) -> tuple[NumpyArray, NumpyArray]:
        when = "eval_env_step" if metric == "eval_return" else "env_step"
        rows = {}  # by their x, as rows repeat the newest evaluation
        for row in self.rows:
            if row.get(metric) is not None:
                rows[row["env_step"] if row.get(when) is None else row[when]] = row[metric]
        x, y = np.array(list(rows), np.float64), np.array(list(rows.values()), np.float64)
        return np.clip(x, -LARGEST, LARGEST), np.clip(y, -LARGEST, LARGEST)

    def _judged(self, name: str) -> float | None:
        value = self.verdict.get(name)
        return float(value) if isinstance(value, int | float) and _is_json_number(value) else None

    @property
    def _options(self) -> dict[str, Any]:
        return self.description.get("options") or {}


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seeds."""

    label: str
    runs: Sequence[Result]

    @property
    def name(self) -> str:
        return self.label if len(self.runs) == 1 else f"{self.label} ({self.size})"

    @property
    def size(self) -> str:
        """The number of its seeds in words, and that of its runs if some have the same seed."""
        seeds = len({run.seed for run in self.runs})
        text = f"{seeds} seed{'s' * (seeds != 1)}"
        return text if seeds == len(self.runs) else f"{len(self.runs)} runs of {text}"


class Spread(NamedTuple):
    """The mean, minimum, maximum and median of several curves over env steps."""

    x: NumpyArray
    mean: NumpyArray
    low: NumpyArray
    high: NumpyArray
    median: NumpyArray


def find_results(patterns: Iterable[str]) -> list[Result]:
    """Read runs, given by their directories, by folders that contain runs, or by patterns."""
    found: dict[Path, Result] = {}
    for pattern in patterns:
        # A path that is there is itself, even if it has the brackets of a pattern.
        names = [] if Path(pattern).exists() else sorted(glob.glob(pattern), key=by_number)
        matched = list(map(Path, names)) or [Path(pattern)]
        results = [result for path in matched for result in _results_in(path)]
        if not results:
            raise ConfigError(_no_run(pattern))
        found |= {result.directory.resolve(): result for result in results}
    complete = [result for result in found.values() if result.rows]
    for result in found.values():
        if not result.rows:
            logger.warning("%s has no row yet, and is left out", result.directory)
    if not complete:
        raise ConfigError("These runs have not written anything yet. Wait a moment.")
    return complete


def group_results(results: Sequence[Result]) -> list[RunGroup]:
    """Group runs that differ only in their seeds; label groups by the facts that differ."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(json.dumps(result.facts, sort_keys=True), []).append(result)
    facts = [runs[0].facts for runs in groups.values()]
    names = {name: None for fact in facts for name in fact}
    by_program: dict[Any, set[str]] = {}
    for fact in facts:
        by_program.setdefault(fact["program"], set()).update(fact)
    # A label shows no facts that only some programs have, such as settings of a policy.
    known_to_all = set.intersection(*by_program.values()) if by_program else set()
    # Nor a setting that is the same in all runs of a program: usually it is a default there.
    differing = [name for name in names if name in known_to_all and _differs(name, facts)]
    return [RunGroup(_label(runs[0].facts, differing), runs) for runs in groups.values()]


def _differs(name: str, facts: Sequence[dict[str, Any]]) -> bool:
    """Return whether the program, the environment, or a setting of one program, differs."""
    return any(
        one.get(name) != other.get(name)
        for one, other in combinations(facts, 2)
        if name in _PLAIN or all(one.get(fact) == other.get(fact) for fact in _PLAIN)
    )


def spread_of(runs: Sequence[Result], metric: str) -> Spread:
    """Join the curves of several runs.

    Curves are interpolated linearly. A run that has ended keeps its last value, since most runs end
    because they have reached their target. Any other run counts until its last value.
    """
    curves = [run.points(metric) for run in runs]
    beyond = [None if run.verdict else np.nan for run in runs]
    x = np.linspace(min(x[0] for x, _ in curves), max(x[-1] for x, _ in curves), GRID_POINTS)
    y = np.array([np.interp(x, *xy, right=right) for xy, right in zip(curves, beyond, strict=True)])
    return Spread(x, *(fn(y, axis=0) for fn in (np.nanmean, np.nanmin, np.nanmax, np.nanmedian)))


def title_of(groups: Sequence[RunGroup]) -> str:
    facts = [run.facts for group in groups for run in group.runs]
    programs = {str(fact["program"]) for fact in facts}
    envs = {short_name(str(fact["env"])) for fact in facts if "env" in fact}
    title = " and ".join(sorted(programs)) if len(programs) < 3 else f"{len(programs)} programs"
    return shortened(f"{title} on {envs.pop()}" if len(envs) == 1 else title)


def _label(facts: dict[str, Any], differing: Sequence[str]) -> str:
    plain = [short_name(str(facts[name])) for name in _PLAIN if facts.get(name) is not None]
    if not differing:
        return shortened(" on ".join(plain))
    words = [short_name(str(facts[name])) for name in differing if name in _PLAIN and name in facts]
    words += [f"{name} {_format(facts.get(name))}" for name in differing if name not in _PLAIN][:3]
    return shortened(", ".join(words))


def shortened(text: str) -> str:
    """Return the printable beginning of a text that may come from elsewhere."""
    cut = text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
    return printable(cut)


def _format(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, list) else str(value)


def runs_in(path: Path) -> list[Path]:
    """Return the directories of all runs in a folder; the path itself if it is a run or missing."""
    if not path.is_dir() or _is_run(path):
        return [path]
    found = {file.parent for name in _OF_RUNS for file in path.rglob(name)}
    return sorted(filter(_is_run, found), key=by_number)


def _is_run(directory: Path) -> bool:
    """Return whether a directory has rows, or a description that is not another program's."""
    if (directory / METRICS).is_file():
        return True
    try:
        described = parse_json(read_file(directory / CONFIG, most=_END_BYTES))
    except (OSError, ValueError):  # it may be damaged
        return (directory / CONFIG).is_file()
    return isinstance(described, dict) and isinstance(described.get("example"), str)


def _results_in(path: Path) -> Iterator[Result]:
    """Read all runs in a folder; one that is damaged is left out, unless it is the path itself."""
    for directory in runs_in(path):
        try:
            yield read_result(directory)
        except ConfigError as error:
            if directory == path:
                raise
            logger.warning("%s is left out: %s", directory, error)


def read_result(directory: Path) -> Result:
    """Read a run, or the rows of `mw.report(directory)`; raise ConfigError if it is damaged."""
    metrics = directory / METRICS
    described = directory / (CONFIG if (directory / CONFIG).exists() else OPTIONS)
    description: dict[str, Any] = {"example": named(directory)}
    if not metrics.is_file():
        found = saved_description(directory)
        if found is None:
            raise ConfigError(_no_run(str(directory)))
        description = found
    elif described.exists():
        try:
            found = read_description(described)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{described} cannot be read: {error}. Put it back, or delete it to read the "
                f"metrics alone."
            ) from error
        is_whole = described.name == CONFIG
        description = found if is_whole else {**description, "options": found.get("options")}
    rows = read_rows(metrics)
    if any(row.get(name) is None for row in rows for name in ("env_step", "wall_s")):
        raise ConfigError(
            f"{metrics} has a row without `env_step` or `wall_s`, so it cannot be drawn. Take that "
            f"row out."
        )
    return Result(directory, description, rows)


def _no_run(name: str) -> str:
    has_config = (Path(name) / CONFIG).exists()
    damaged = f" Its {CONFIG} is damaged, or of another program." if has_config else ""
    known = [str(run) for run in runs_in(Path("runs")) if run.is_dir() and run != Path(name)]
    listed = f" Runs here are: {', '.join(known[:8])}." if known else ""
    return (
        f"There is no run in {named(name)}: a directory with a {CONFIG} or a {METRICS} was "
        f"expected, as training programs leave it.{damaged or did_you_mean(name, known)}{listed}"
    )


def read_rows(file: Path, *, end_bytes: int | None = None) -> list[dict[str, Any]]:
    """Read all rows of a metrics file, or those in its last `end_bytes`.

    An incomplete last line of a killed run is ignored.
    """
    rows, is_all = [], True
    try:
        if end_bytes is None:
            content = read_file(file, most=parsable_bytes(_MOST_BYTES))
        else:
            content, is_all = read_end(file, most=end_bytes)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}. The rows of a run were expected."
        ) from error
    lines = content.split(b"\n")[not is_all : -1]
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if row is None:
            of = f"{len(lines)}" if is_all else f"the last {len(lines)}"
            raise ConfigError(
                f"{file} is damaged: line {number} of {of} is no row of metrics. Take that line "
                f"out."
            )
        rows.append(row)
    return rows


def _row(line: bytes) -> dict[str, Any] | None:
    """Read a JSON object of numbers and nulls; None for anything else."""
    with suppress(ValueError):
        row = parse_json(line)
        if isinstance(row, dict) and all(map(_is_json_number, row.values())):
            return row
    return None


def _is_json_number(value: object) -> bool:
    """Return whether `middleware.jsonl` can have written a value: null, or a number of 64 bits."""
    if isinstance(value, int):
        return value.bit_length() < 64
    return value is None or (isinstance(value, float) and math.isfinite(value))


def reaches(row: Mapping[str, Any], target: float | None) -> bool:
    value = row.get("eval_return")
    return value is not None and target is not None and value >= target


def last_row(file: Path) -> dict[str, Any]:
    """Read the last row of a metrics file; empty if there is none."""
    rows = read_rows(file, end_bytes=_END_BYTES)
    return rows[-1] if rows else {}

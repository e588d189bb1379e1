"""Read the state, pipeline, nodes, lineage and command of runs.

Runs may be of other machines or versions, or still train, so a line or a file that cannot be read
counts as missing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ding_lite.errors import ConfigError, printable
from ding_lite.io.reading import parse_json, read_file
from ding_lite.middleware.report.style import LARGEST
from ding_lite.recipes.evolve import LINEAGE
from ding_lite.recipes.runs.directory import CONFIG, METRICS, NODES, PIPELINE, is_locked
from ding_lite.recipes.runs.results import Result, shortened
from ding_lite.recipes.runs.stages import seconds_by_stage
from ding_lite.recipes.table import RECIPES
from ding_lite.rl.batch import NumpyArray

State: TypeAlias = Literal["done", "running", "interrupted", "unknown"]
OF_TRAINING = "* of training episodes, which explore, as the run has no evaluation"
"""The note on returns that are marked with `*`."""
_MOST_BYTES = 64 << 20
_EVOLVE = "evolve-"
_MOST = 1_000_000
"""The maximum number of agents, generations and places of a population."""
_STAGE = re.compile(r" *\d+  (?P<name>.+?) +on (?P<marks>.+)")


class Stage(NamedTuple):
    """A middleware of a pipeline."""

    name: str
    where: str
    """The labels of the nodes that run it."""
    marks: tuple[str, ...]
    """Remarks, such as `locked`."""


class Record(Result):
    """One run and its records."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.directory, result.description, result.rows)
        if not isinstance(self.description.get("example"), str):
            raise ConfigError(
                f"{self.directory / CONFIG} names no program (`example`), so that it is of no run. "
                f"Name other directories."
            )

    @property
    def last(self) -> dict[str, Any]:
        return self.rows[-1] if self.rows else {}

    @property
    def metric(self) -> str:
        """The metric by which it is judged: that of evaluations, or of training without them."""
        return "eval_return" if self.has("eval_return") else "return"

    def best(self) -> float:
        """Return the best value of its metric; minus infinity if no row has it."""
        _, y = self.points(self.metric)
        return float(y.max()) if len(y) else -np.inf

    @cached_property
    def state(self) -> State:
        """Whether the run is done, running, or interrupted; unknown without a `config.json`."""
        if is_locked(self.directory):
            return "running"
        if not (self.directory / CONFIG).exists():
            return "unknown"
        return "done" if self.verdict else "interrupted"

    @property
    def changed(self) -> float:
        """The time of its last write, in seconds since 1970."""
        files = [self.directory / name for name in (METRICS, CONFIG)]
        return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)

    @property
    def stages(self) -> dict[str, float]:
        seconds = self.verdict.get("seconds")
        if not isinstance(seconds, dict):
            seconds = seconds_by_stage(self.last, wall_s=self.wall_s or 0.0)
        return {name: max(0.0, s) for name, s in seconds.items() if is_number(s)}

    @property
    def pipeline(self) -> list[Stage]:
        with suppress(OSError):
            text = read_file(self.directory / PIPELINE, most=_MOST_BYTES).decode(errors="replace")
            found = [_STAGE.fullmatch(line) for line in text.splitlines()[1:]]
            marks = [(one["name"], *one["marks"].split(", ")) for one in found if one]
            return [
                Stage(
                    shortened(name),
                    shortened(where),
                    tuple(shortened(mark) for mark in others if mark != "not on this node"),
                )
                for name, where, *others in marks
            ]
        return []

    @cached_property
    def nodes(self) -> dict[int, list[dict[str, Any]]]:
        """The counts of each node over `wall_s`; those of a resumed job follow the earlier ones."""
        found: dict[int, list[dict[str, Any]]] = {}
        before = newest = 0.0
        for line in _lines(self.directory / NODES):
            nodes, at = line.get("nodes"), line.get("wall_s")
            if not isinstance(nodes, list) or not isinstance(at, int | float) or not is_number(at):
                continue
            if before + at < newest:
                before = newest
            newest = before + at
            for node in nodes:
                if isinstance(node, dict) and isinstance(node.get("node"), int):
                    found.setdefault(node["node"], []).append({**node, "wall_s": newest})
        return dict(sorted(found.items()))

    @cached_property
    def lives(self) -> list[dict[str, Any]]:
        """The lines of the lineage, one for each agent of each generation."""
        return [life for life in _lines(self.directory / LINEAGE) if _is_life(life)]

    @property
    def command(self) -> str:
        """The command that repeats the run, in one line; empty if it is not known."""
        return printable(self._command()).replace("\n", "\\n")  # it may be copied to a shell

    def _command(self) -> str:
        command = self.description.get("command")
        words = (
            [word for word in command if isinstance(word, str)] if isinstance(command, list) else []
        )
        if words == command and words[:1] in (["ding-lite"], ["python"]):
            return shlex.join(_without(words, "--out", "--resume"))
        program = str(self.facts["program"])
        if program.removeprefix(_EVOLVE) not in RECIPES:
            return ""
        verb = "evolve" if program.startswith(_EVOLVE) else "train"
        env = str(self.facts.get("env"))
        config = str(self.directory / CONFIG)
        return shlex.join(
            ["ding-lite", verb, program.removeprefix(_EVOLVE), env, "--config", config]
        )


def _without(words: Sequence[str], option: str, flag: str) -> Iterator[str]:
    before = ""
    for word in words:
        if option not in (before, word.partition("=")[0]) and word != flag:
            yield word
        before = word


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    with suppress(OSError):
        for line in read_file(file, most=_MOST_BYTES).splitlines():
            with suppress(ValueError):
                if isinstance(found := parse_json(line), dict):
                    yield found


def _is_life(line: Mapping[str, Any]) -> bool:
    whole = [line.get(name) for name in ("generation", "place", "id")]
    fitness, parent = line.get("fitness", ""), line.get("parent", "")
    return (
        all(isinstance(value, int) and 0 <= value < _MOST for value in whole)
        and isinstance(parent, int | None)
        and (fitness is None or is_number(fitness))
        and isinstance(line.get("hyperparameters"), dict)
    )


def is_number(value: object) -> bool:
    """Return whether a value is a number that can be drawn: finite and below `LARGEST`."""
    return isinstance(value, int | float) and abs(value) < LARGEST


def rates(
    points: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> tuple[NumpyArray, NumpyArray]:
    """Return the seconds, and the sum of some counts per second since the previous point."""
    counts = [
        (p["wall_s"], sum(p[name] for name in names if is_number(p.get(name)))) for p in points
    ]
    x, y = [0.0], [0.0]
    for (then, before), (now, count) in pairwise([(0.0, 0.0), *counts]):
        if now > then:
            x.append(now)
            y.append(max(0.0, count - before) / (now - then))
    return np.array(x), np.array([y[1] if len(y) > 1 else 0.0, *y[1:]])

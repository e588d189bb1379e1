"""`ding-lite runs`: list the runs of a folder, sorted."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from ding_lite.cli.parsing.arguments import SORTED_BY
from ding_lite.cli.report.records import OF_TRAINING, Record
from ding_lite.cli.tables import print_table
from ding_lite.errors import ConfigError, printable
from ding_lite.io.files import by_number, named
from ding_lite.io.text import as_text
from ding_lite.log import configure
from ding_lite.recipes.runs.results import read_result, runs_in
from ding_lite.rl.envs.naming import short_name

_OF_TRAINING = ("last", "best")
"""Columns with returns of training if a run has no evaluation."""


def list_runs(options: argparse.Namespace) -> None:
    """Print a table of runs, and an error for each damaged directory."""
    configure("warning")
    folder, sort, rows = options.folder, options.sort, list[dict[str, Any]]()
    for directory in runs_in(Path(folder)) if Path(folder).is_dir() else ():
        try:
            rows.append(_row(Record(read_result(directory))))
        except ConfigError as error:
            print(f"ding-lite runs: {printable(str(error))}", file=sys.stderr)
    rows.sort(key=lambda row: _rank(_shown(row, sort)))
    for row in rows:  # only now: where summer time ends, an hour of local times comes twice
        row["when"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["when"]))
    if options.json:
        print(json.dumps({"runs": rows}, indent=1))
    elif rows:
        print_table(SORTED_BY, [[_formatted(row, name) for name in SORTED_BY] for row in rows])
        if any(_is_of_training(row, name) for row in rows for name in _OF_TRAINING):
            print(OF_TRAINING)
    else:
        raise ConfigError(f"There is no run in {named(folder)}. `ding-lite train` makes one.")


def _row(run: Record) -> dict[str, Any]:
    """Return the columns of a run, and the returns of its training, which may replace some."""
    (_, evaluated), (_, trained) = run.points("eval_return"), run.points("return")
    facts = run.facts
    values = (
        named(run.directory),
        facts["program"],
        None if facts.get("env") is None else short_name(str(facts["env"])),
        run.seed,
        run.env_steps,
        float(evaluated[-1]) if len(evaluated) else None,
        float(evaluated.max()) if len(evaluated) else None,
        run.final,
        run.wall_s,
        run.state,
        run.changed,
    )
    of_training = {
        "training_last": float(trained[-1]) if len(trained) else None,
        "training_best": float(trained.max()) if len(trained) else None,
    }
    return {**dict(zip(SORTED_BY, values, strict=True)), **of_training}


def _shown(row: dict[str, Any], name: str) -> Any:  # noqa: ANN401 - a cell
    """Return the value of a column; the return of training if the run has no evaluation."""
    return row[f"training_{name}"] if _is_of_training(row, name) else row[name]


def _is_of_training(row: dict[str, Any], name: str) -> bool:
    return row[name] is None and row.get(f"training_{name}") is not None


def _rank(value: str | float | None) -> tuple[bool, bool, Any]:
    """Return a sort key: numbers in descending order, then texts, then missing values."""
    if isinstance(value, int | float):
        return False, False, -value
    return value is None, True, "" if value is None else by_number(value)


def _formatted(row: dict[str, Any], name: str) -> str:
    value = _shown(row, name)
    if value is None:
        return ""
    if name == "time":
        return f"{value:,.1f} s"
    text = as_text(value) if isinstance(value, int | float) and name != "seed" else str(value)
    return f"{text}*" if _is_of_training(row, name) else text

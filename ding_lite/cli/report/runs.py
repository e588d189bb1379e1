"""`ding-lite runs`: list the runs of a folder, sorted."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from ding_lite.cli.parsing.arguments import SORTED_BY
from ding_lite.cli.report.records import Record
from ding_lite.cli.tables import print_table
from ding_lite.errors import ConfigError, printable
from ding_lite.io.files import by_number, named
from ding_lite.log import configure
from ding_lite.middleware.report.log import as_text
from ding_lite.recipes.runs.results import read_result, runs_in
from ding_lite.rl.envs.naming import short_name


def list_runs(options: argparse.Namespace) -> None:
    """Print a table of runs, and an error for each damaged directory."""
    configure("warning")
    folder, sort, rows = options.folder, options.sort, list[dict[str, Any]]()
    for directory in runs_in(Path(folder)) if Path(folder).is_dir() else ():
        try:
            rows.append(_row(Record(read_result(directory))))
        except ConfigError as error:
            print(f"ding-lite runs: {printable(str(error))}", file=sys.stderr)
    rows.sort(key=lambda row: _rank(row[sort]))
    for row in rows:  # only now: where summer time ends, an hour of local times comes twice
        row["when"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["when"]))
    if options.json:
        print(json.dumps({"runs": rows}, indent=1))
    elif rows:
        print_table(SORTED_BY, [[_formatted(*cell) for cell in row.items()] for row in rows])
    else:
        raise ConfigError(f"There is no run in {named(folder)}. `ding-lite train` makes one.")


def _row(run: Record) -> dict[str, Any]:
    _, y = run.points(run.metric)
    facts = run.facts
    values = (
        named(run.directory),
        facts["program"],
        None if facts.get("env") is None else short_name(str(facts["env"])),
        run.seed,
        run.env_steps,
        float(y[-1]) if len(y) else None,
        run.best() if len(y) else None,
        run.last.get("wall_s"),
        run.state,
        run.changed,
    )
    return dict(zip(SORTED_BY, values, strict=True))


def _rank(value: str | float | None) -> tuple[bool, bool, Any]:
    """Return a sort key: numbers in descending order, then texts, then missing values."""
    if isinstance(value, int | float):
        return False, False, -value
    return value is None, True, "" if value is None else by_number(value)


def _formatted(name: str, value: Any) -> str:  # noqa: ANN401 - a cell
    if value is None:
        return ""
    if name == "time":
        return f"{value:,.1f} s"
    return as_text(value) if isinstance(value, int | float) and name != "seed" else str(value)

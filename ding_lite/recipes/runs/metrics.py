"""Read the `metrics.jsonl` that `middleware.jsonl` writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ding_lite.errors import ConfigError
from ding_lite.io.reading import parse_json, read_file

_MOST_BYTES = 1 << 30


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read all rows of a metrics file; an incomplete last line of a killed run is ignored."""
    rows = []
    try:
        lines = read_file(file, most=_MOST_BYTES).split(b"\n")
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}. The rows of a run were expected."
        ) from error
    for number, line in enumerate(lines[:-1], start=1):
        row = _row(line)
        if row is None:
            raise ConfigError(
                f"{file} is damaged: line {number} of {len(lines) - 1} is no row of metrics. "
                f"Take that line out."
            )
        rows.append(row)
    return rows


def _row(line: bytes) -> dict[str, Any] | None:
    """Read a JSON object of numbers and nulls; None for anything else."""
    with suppress(ValueError):
        row = parse_json(line)
        if isinstance(row, dict) and all(map(_is_told, row.values())):
            return row
    return None


def _is_told(value: object) -> bool:
    """Return whether `middleware.jsonl` can have written a value: null, or a number of 64 bits."""
    if isinstance(value, int):
        return value.bit_length() < 64
    return value is None or (isinstance(value, float) and math.isfinite(value))


def reaches(row: Mapping[str, Any], target: float | None) -> bool:
    """Return whether the evaluation of a row has reached a target."""
    value = row.get("eval_return")
    return value is not None and target is not None and value >= target


def last_row(file: Path) -> dict[str, Any]:
    """Read the last row of a metrics file; empty if there is none."""
    rows = read_rows(file) if file.exists() else []
    return rows[-1] if rows else {}

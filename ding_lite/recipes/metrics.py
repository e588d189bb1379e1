"""Read what `middleware.log` has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read all rows of a metrics file; half a line at its end, of a run that was killed, is none.

    Raises:
        FileNotFoundError: There is no such file.
    """
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            rows.append(json.loads(line))
    return rows


def last_row(file: Path) -> dict[str, Any]:
    """Read the last row of a metrics file; empty where there is none."""
    rows = read_rows(file) if file.exists() else []
    return rows[-1] if rows else {}

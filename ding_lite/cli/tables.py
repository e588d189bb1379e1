"""Tables of padded columns, cut to the width of the terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_PLAIN_WIDTH = 100_000


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, bold: Sequence[bool] = ()
) -> None:
    """Print rows under their headings; on a terminal the last columns may take several lines."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=heading == headings[0], overflow="fold")
    for index, row in enumerate(rows):
        # As `Text`, because brackets in a value must not be read as markup.
        style = "bold" if index < len(bold) and bold[index] else ""
        table.add_row(*(Text(cell, style) for cell in row))
    if sys.stdout.isatty():
        Console().print(table)
    else:
        print("\n".join(plain_lines(table)))


def plain_lines(table: Table, width: int = _PLAIN_WIDTH) -> list[str]:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]

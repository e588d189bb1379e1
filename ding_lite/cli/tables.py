"""Tables of padded columns."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ding_lite.errors import printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_PLAIN_WIDTH = 100_000
_LEAST = 30
"""The least width in which a column of sentences is readable."""


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, bold: Sequence[bool] = ()
) -> None:
    """Print rows under their headings; on a terminal the last cell of a row may take several lines.

    If the terminal has no room for that, it breaks the lines itself, as those of any program.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=heading != headings[-1], overflow="fold")
    for index, row in enumerate(rows):
        style = "bold" if index < len(bold) and bold[index] else ""
        table.add_row(*(as_cell(text, style) for text in row))
    if sys.stdout.isatty() and _fits(table, max(cell_len(c[-1]) for c in (headings, *rows))):
        Console().print(table)
    else:
        print("\n".join(plain_lines(table)))


def as_cell(text: str, style: str = "") -> Text:
    """Make a cell of one line; neither markup nor control characters in the text have an effect."""
    from rich.text import Text

    return Text(printable(text).replace("\n", "\\n"), style)


def _fits(table: Table, longest: int) -> bool:
    """Return whether the terminal has room for all columns but the last, and enough for that."""
    from rich.console import Console

    console = Console()
    widest = console.measure(table, options=console.options.update(width=_PLAIN_WIDTH)).maximum
    return console.width - (widest - longest) >= min(longest, _LEAST)


def plain_lines(table: Table, width: int = _PLAIN_WIDTH) -> list[str]:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]

"""Tables of padded columns, cut to the width of the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, bold: Sequence[bool] = ()
) -> None:
    """Print rows under their headings; on a terminal the last column may take several lines.

    Args:
        headings: Of the columns.
        rows: The cells of each line.
        bold: Which rows stand out on a terminal.
    """
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        for line in (headings, *rows):
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            print("  ".join(padded).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=heading != headings[-1], overflow="fold")
    for index, row in enumerate(rows):
        # As texts: brackets in a value are no markup.
        style = "bold" if index < len(bold) and bold[index] else ""
        table.add_row(*(Text(cell, style) for cell in row))
    Console().print(table)

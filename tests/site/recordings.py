"""Record `make demo` and `ding-lite top` as pictures that move: `make recordings`.

The programs run in a terminal of their own, and what it shows, a few times a second, becomes an
SVG. tests/site/agent.py records an agent.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
INTERVAL = 0.25
PAUSE = 4.0
_CELL, _LINE, _MARGIN = 7.8, 18, 12
_COLORS = {
    "default": "#d8dee9",
    "black": "#7b8794",
    "brightblack": "#7b8794",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "yellow": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": "#d8dee9",
}


class Run(NamedTuple):
    """Characters beside each other of one style."""

    column: int
    text: str
    color: str
    is_bold: bool


Row = tuple[Run, ...]


class Frame(NamedTuple):
    """The rows of a terminal from some second on."""

    at: float
    rows: tuple[Row, ...]


def record(
    command: list[str], columns: int, *, rows: int = 30, seconds: float = 60.0
) -> list[tuple[float, bytes]]:
    """Run a command in a terminal; return what it wrote, and when; q ends it after a time."""
    pid, terminal = pty.fork()
    if not pid:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.environ.update(TERM="xterm-256color", PYTHONPATH=str(ROOT))
        os.execvp(command[0], command)
    started, written, asked = time.monotonic(), [], False
    while True:
        ready, _, _ = select.select([terminal], [], [], INTERVAL)
        elapsed = time.monotonic() - started
        if elapsed > seconds and not asked:
            os.write(terminal, b"q")
            asked = True
        try:
            data = os.read(terminal, 65536) if ready else None
        except OSError:  # the program has ended
            break
        if data == b"":
            break
        if data:
            written.append((elapsed, data))
    os.waitpid(pid, 0)
    return written


def frames(written: Sequence[tuple[float, bytes]], columns: int, rows: int = 30) -> list[Frame]:
    """Show in a terminal what was written; return its states, `INTERVAL` apart or more."""
    import pyte

    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    found: list[Frame] = []
    for at, chunks in groupby(written, lambda item: item[0] // INTERVAL * INTERVAL):
        stream.feed(b"".join(data for _, data in chunks))
        shown = tuple(row_of(screen.buffer[row], columns) for row in range(rows))
        if not found or shown != found[-1].rows:
            found.append(Frame(at - written[0][0] // INTERVAL * INTERVAL, shown))
    return found


def row_of(cells: Any, columns: int) -> Row:
    """Return the runs of a row, without the blanks between and after them."""
    styled = [(cells[column].fg, cells[column].bold) for column in range(columns)]
    found: list[Run] = []
    for (color, is_bold), group in groupby(range(columns), styled.__getitem__):
        places = list(group)
        text = "".join(cells[column].data for column in places)
        for word in re.finditer(r"\S+(?: \S+)*", text):
            shade = _COLORS.get(color, f"#{color}")
            found.append(Run(places[0] + word.start(), word[0], shade, is_bold))
    return tuple(found)


def svg(states: Sequence[Frame], columns: int, title: str) -> str:
    """Return a picture that shows the states one after the other, and begins again."""
    ends = [*(after.at for _, after in pairwise(states)), states[-1].at + PAUSE]
    height = max(number for state in states for number, row in enumerate(state.rows, 1) if row)
    width, depth = columns * _CELL + 2 * _MARGIN, height * _LINE + 2 * _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {depth:g}" '
        f'width="{width:g}" height="{depth:g}" font-family="ui-monospace, SFMono-Regular, Menlo, '
        'Consolas, DejaVu Sans Mono, monospace" font-size="13">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" rx="8" fill="#1f2430"/>',
        f'<rect width="0" height="0"><animate id="loop" attributeName="x" from="0" to="0" '
        f'begin="0s;loop.end" dur="{ends[-1]:g}s"/></rect>',
    ]
    for number in range(height):
        start = 0.0
        shown = list(zip((state.rows[number] for state in states), ends, strict=True))
        for row, group in groupby(shown, lambda item: item[0]):
            end = list(group)[-1][1]
            if row:
                lines += _timed(row, number, start, end, is_last=end == ends[-1])
            start = end
    return "\n".join([*lines, "</svg>\n"])


def _timed(row: Row, number: int, start: float, end: float, *, is_last: bool) -> Iterator[str]:
    """Yield a row that is shown for a time; without animation those of the end are shown."""
    if is_last:
        span = f'to="hidden" begin="loop.begin" dur="{start:g}s"' if start else ""
    else:
        span = f'to="visible" begin="loop.begin+{start:g}s" dur="{end - start:g}s"'
    base = _MARGIN + (number + 0.75) * _LINE
    yield "<g>" if is_last else '<g visibility="hidden">'
    if span:
        yield f'<set attributeName="visibility" {span}/>'
    for run in row:
        bold = ' font-weight="bold"' if run.is_bold else ""
        x, length = _MARGIN + run.column * _CELL, len(run.text) * _CELL
        yield (
            f'<text x="{x:.1f}" y="{base:g}" textLength="{length:.1f}" fill="{run.color}"{bold}>'
            f"{escape(run.text)}</text>"
        )
    yield "</g>"


def save(name: str, shown_as: str, command: list[str], columns: int, **limits: Any) -> None:
    prompt = (0.0, f"\x1b[90m$\x1b[0m {shown_as}\r\n".encode())
    states = frames([prompt, *record(command, columns, **limits)], columns)
    (IMAGES / name).write_text(svg(states, columns, shown_as))


def main() -> None:
    python = sys.argv[1]
    demo = [python, "examples/evaluate_elsewhere.py"]
    save("demo.svg", "make demo", demo, 108)
    impala = [python, "examples/impala_cartpole.py", "--target", "501", "--nodes", "4"]
    nowhere = subprocess.DEVNULL
    job = subprocess.Popen([*impala, "--max-env-steps", "10000000"], stdout=nowhere, stderr=nowhere)
    try:
        top = [python, "-m", "ding_lite", "top"]
        while subprocess.run([*top, "--once"], capture_output=True, check=False).returncode:
            pass  # no job yet
        save("top.svg", "ding-lite top", top, 118, seconds=12.0)
    finally:
        job.send_signal(signal.SIGINT)
        job.wait()


if __name__ == "__main__":
    main()

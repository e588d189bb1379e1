"""`ding-lite top`: show the state of all nodes of the running jobs in a live table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from ding_lite.cli.tables import as_cell, plain_lines
from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import printable
from ding_lite.exit_codes import DONE, FAILED
from ding_lite.parallel.observe.job_discovery import Node, RunningJob, choose, running_jobs
from ding_lite.parallel.observe.metrics import NodeMetrics
from ding_lite.runtime.messaging.labels import roles_of

if TYPE_CHECKING:
    from rich.table import Table

NOBODY = "No job of yours runs on this machine."
_PLAIN_WIDTH = 1000
_GAP = 2
_STYLES = {
    "running": "green",
    "waiting": "yellow",
    "starting": "cyan",
    "finishing": "cyan",
    "ended": "dim",
    "elsewhere": "dim",
}
_ALARM = "bold red"


class Column(NamedTuple):
    """One column of the table."""

    heading: str
    cell: Callable[[Node], str]
    rank: int
    """The priority of the column in a narrow table: the lowest rank is shown first."""
    is_text: bool = False
    """Whether it is aligned to the left; numbers are aligned to the right."""
    may_be_empty: bool = True
    """Whether it is shown even if all its cells are empty."""


def show_top(options: argparse.Namespace) -> int:
    """Show one or all running jobs until they end or the user quits; return the exit code."""
    name, once, every = options.job, options.once, options.every
    jobs = running_jobs()
    if name is not None:
        jobs = [choose(jobs, name)]
        name = jobs[0].name
    try:
        if options.json:
            print(json.dumps({"jobs": [_as_dict(job) for job in jobs]}, indent=1))
        elif not jobs:
            print(f"ding-lite top: {NOBODY}", file=sys.stderr)
            return FAILED
        elif once or not sys.stdout.isatty():
            _print_tables(jobs, name, once=once, every=every)
        else:
            _live(jobs, name, every)
    except KeyboardInterrupt:  # the usual way to quit
        pass
    return DONE


def _jobs(name: str | None) -> list[RunningJob]:
    return [job for job in running_jobs() if name in (None, job.name)]


# -- without a terminal --------------------------------------------------------------------


def _print_tables(jobs: list[RunningJob], name: str | None, *, once: bool, every: float) -> None:
    width = os.get_terminal_size().columns if sys.stdout.isatty() else _PLAIN_WIDTH
    while jobs:
        for job in jobs:
            print(title(job))
            for line in plain_table(job.nodes, width=width):
                print(line)
        sys.stdout.flush()
        if once:
            break
        SYSTEM_CLOCK.sleep(every)
        jobs = _jobs(name)


def title(job: RunningJob) -> str:
    here = [node for node in job.nodes if node.metrics is not None]
    nodes = "1 node" if job.num_nodes == 1 else f"{job.num_nodes} nodes"
    if len(here) < job.num_nodes:
        nodes += f", {len(here)} of them here"
    clock = time.strftime("%H:%M:%S")
    said = f"{clock}  job {job.name}  {job.program}  {nodes}, for {_seconds(job.age_s)}"
    return printable(said).replace("\n", "\\n")


def plain_table(nodes: Sequence[Node], *, width: int) -> list[str]:
    return plain_lines(_drawn(nodes, width), width + _GAP)


def _drawn(nodes: Sequence[Node], width: int) -> Table:
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    cells = cells_of(nodes, width)
    for column in cells:
        drawn.add_column(
            column.heading,
            justify="left" if column.is_text else "right",
            no_wrap=True,
            overflow="ellipsis",
        )
    for node, row in zip(nodes, zip(*cells.values(), strict=True), strict=True):
        style = _STYLES.get(node.state, _ALARM)
        texts = zip(row, cells, strict=True)
        drawn.add_row(*(as_cell(text, style * (c.heading == "state")) for text, c in texts))
    return drawn


# -- at a terminal -------------------------------------------------------------------------


def _live(jobs: list[RunningJob], name: str | None, every: float) -> None:
    """Update the tables in place until the user presses q or Ctrl-C, or the job ends."""
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)

    def picture(jobs: Sequence[RunningJob]) -> RenderableType:
        parts: list[RenderableType] = [] if jobs else [Text(f"{NOBODY} Press q to leave.")]
        for job in jobs:
            parts += [Text(title(job), "bold"), _drawn(job.nodes, console.width)]
        return Group(*parts)

    with (
        _exit_on_signals(),
        _keys() as pressed,
        Live(picture(jobs), console=console, auto_refresh=False, screen=False) as live,
    ):
        while not pressed("q", every):
            jobs = _jobs(name)
            live.update(picture(jobs), refresh=True)
            if name is not None and not jobs:
                break
    if name is not None and not jobs:
        print(f"Job {name} has ended.")


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Raise SystemExit at SIGTERM and SIGHUP, so that the terminal is restored."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    default = [
        signum
        for signum in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(signum) is signal.SIG_DFL  # `nohup` ignores SIGHUP
    ]
    for signum in default:
        signal.signal(signum, end)
    try:
        yield
    finally:
        for signum in default:
            signal.signal(signum, signal.SIG_DFL)


@contextmanager
def _keys() -> Iterator[Callable[[str, float], bool]]:
    """Switch the terminal to unbuffered input; yield a function that waits for a key press."""
    fds = [sys.stdin.fileno()] if sys.stdin is not None and sys.stdin.isatty() else []

    def pressed(key: str, seconds: float) -> bool:
        ready, _, _ = select.select(fds, [], [], seconds)
        return bool(ready) and key.encode() in os.read(fds[0], 64).lower()

    before = [termios.tcgetattr(fd) for fd in fds]
    try:
        for fd in fds:
            tty.setcbreak(fd)
        yield pressed
    finally:
        for fd, mode in zip(fds, before, strict=True):
            termios.tcsetattr(fd, termios.TCSADRAIN, mode)


# -- the table -----------------------------------------------------------------------------


def cells_of(nodes: Sequence[Node], width: int) -> dict[Column, list[str]]:
    """Return the cells of the columns that fit into `width` characters; at least one column."""
    cells = {
        column: [column.cell(node) or "-" for node in nodes]
        for column in COLUMNS
        if column.may_be_empty or any(map(column.cell, nodes))
    }
    sizes = {c: max(map(len, (c.heading, *rows))) for c, rows in cells.items()}
    wanted = sizes[WHERE]
    sizes[WHERE] = min(wanted, _SHORTEST_WHERE)

    chosen: list[Column] = []
    room = width + _GAP
    for column in sorted(cells, key=lambda column: column.rank):
        if sizes[column] + _GAP <= room or not chosen:
            chosen.append(column)
            room -= sizes[column] + _GAP
    sizes[WHERE] = min(wanted, sizes[WHERE] + max(0, room))
    cells[WHERE] = [_cut(cell, sizes[WHERE]) for cell in cells[WHERE]]
    return {column: rows for column, rows in cells.items() if column in chosen}


def _of_metrics(cell: Callable[[NodeMetrics], str]) -> Callable[[Node], str]:
    return lambda node: "" if node.metrics is None else cell(node.metrics)


WHERE = Column("where", _of_metrics(lambda m: m.where), 9, is_text=True)
_SHORTEST_WHERE = 16
COLUMNS = (
    Column("node", lambda node: str(node.node_id), 0),
    Column("role", lambda node: "+".join(roles_of(set(node.labels))), 1, is_text=True),
    Column("pid", _of_metrics(lambda m: str(m.pid)), 10),
    Column("state", lambda node: node.state, 1, is_text=True),
    Column("step", _of_metrics(lambda m: _whole(m.total.total_step)), 2),
    Column("step/s", _of_metrics(lambda m: _rate(m.per_second.total_step)), 2),
    Column("env/s", _of_metrics(lambda m: _rate(m.per_second.env_step)), 4, may_be_empty=False),
    Column(
        "ev out/in",
        _of_metrics(lambda m: _pair(m.per_second.events_out, m.per_second.events_in)),
        7,
    ),
    Column(
        "ctx out/in", _of_metrics(lambda m: _pair(m.per_second.ctx_out, m.per_second.ctx_in)), 8
    ),
    Column("queues", _of_metrics(lambda m: f"{m.unacknowledged}/{m.inbox}/{m.items}"), 6),
    Column("lag", _of_metrics(lambda m: _seconds(m.lag_s)), 3),
    Column("beat", lambda node: _seconds(node.beat_s), 3),
    Column("RSS", lambda node: _size(node.rss_bytes), 5),
    Column("restarts", _of_metrics(lambda m: str(m.restarts or 0)), 11),
    WHERE,
)


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"


def _whole(number: float | None) -> str:
    return "" if number is None else f"{number:.0f}"


def _rate(number: float | None) -> str:
    """Write a rate in at most five characters.

    Example:
        >>> [_rate(number) for number in (0, 0.25, 9.96, 43.21, 1234, 98_765, 3_400_000)]
        ['0', '0.2', '10', '43', '1234', '98.8k', '3.4M']
    """
    if number is None:
        return ""
    for unit, size in (("M", 1e6), ("k", 1e4)):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{number:.1f}" if 0 < number < 9.95 else f"{number:.0f}"


def _pair(out: float | None, into: float | None) -> str:
    return f"{_rate(out) or 0}/{_rate(into) or 0}"


def _seconds(number: float | None) -> str:
    """Write seconds in at most five characters.

    Example:
        >>> [_seconds(number) for number in (None, 0.04, 2.26, 75, 7300)]
        ['', '0.0s', '2.3s', '75s', '122m']
    """
    if number is None:
        return ""
    if number < 10:
        return f"{number:.1f}s"
    return f"{number:.0f}s" if number < 1000 else f"{number / 60:.0f}m"


def _size(number: int | None) -> str:
    return "" if number is None else f"{number / 2**20:.0f}M"


# -- for programs --------------------------------------------------------------------------


def _as_dict(job: RunningJob) -> dict[str, Any]:
    """Convert a job to plain values: both the reported and the observed ones of each node."""
    nodes = []
    for node in job.nodes:
        metrics, seen = node.metrics, dataclasses.asdict(node)
        reported = seen.pop("metrics") or {}
        nodes.append({**reported, **seen, "role": "+".join(roles_of(set(node.labels)))})
        if metrics is not None:
            nodes[-1] |= {"unacknowledged": metrics.unacknowledged, "lag_s": metrics.lag_s}
    return {**dataclasses.asdict(job), "nodes": nodes}

"""The record of a benchmark run: a JSON file, a table, and a comparison with another run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from tests.bench.harness import ROOT, Row

FOLDER = ROOT / "docs" / "benchmarks"
GPU_FOLDER = FOLDER / "gpu"
"""The folder of the runs on a GPU, which are few, and of one file."""
WORSE = 1.2
"""A tracked row that costs more than this times what it did fails `make bench-compare`."""
_PACKAGES = ("torch", "numpy", "gymnasium", "msgspec", "pyzmq")


@dataclass(frozen=True, kw_only=True)
class Run:
    """All rows of one `make bench`, and where they were measured."""

    date: str
    commit: str
    changed: bool
    """Whether the checkout differed from the commit."""
    machine: dict[str, Any]
    versions: dict[str, str]
    rows: dict[str, Row]
    """By "bench_<file>: <name>"."""

    @property
    def file_name(self) -> str:
        """The name of this run's file, `<date>-<commit>.json`."""
        return f"{self.date[:10]}-{self.commit}.json"

    def save(self, folder: Path) -> Path:
        file = folder / "history" / self.file_name
        file.parent.mkdir(parents=True, exist_ok=True)
        content = asdict(self)
        content["rows"] = {key: asdict(row) | {"met": row.met} for key, row in self.rows.items()}
        file.write_text(json.dumps(content, indent=1) + "\n")
        return file

    @classmethod
    def load(cls, file: Path) -> Run:
        content = json.loads(file.read_text())
        names = {field.name for field in fields(Row)}
        content["rows"] = {
            key: Row(**{name: value for name, value in row.items() if name in names})
            for key, row in content["rows"].items()
        }
        return cls(**content)


def describe_here(load: Sequence[float]) -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": [round(x, 2) for x in load],
        "load_after": [round(x, 2) for x in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def new_run(rows: dict[str, Row], load: Sequence[float]) -> Run:
    return Run(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit_here(),
        changed=bool(_git("status", "--porcelain", "--untracked-files=no")),
        machine=describe_here(load),
        versions={"python": platform.python_version()}
        | {name: metadata.version(name) for name in _PACKAGES},
        rows=rows,
    )


def newest(folder: Path = FOLDER) -> Run:
    runs = [Run.load(file) for file in (folder / "history").glob("*.json")]
    if not runs:
        raise FileNotFoundError(f"No run in {folder / 'history'} yet. Make one with `make bench`.")
    return max(runs, key=lambda run: run.date)


def text_table(rows: dict[str, Row]) -> str:
    cells = [_HEADER, *_cells(rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(w) if i < 1 else cell.rjust(w) for i, (cell, w) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in cells)
    )


def _about_gpu(name: str | None) -> str:
    if name is None:
        return "This machine has no GPU; [GPU measurements](gpu/README.md) are a page of their own."
    return f"GPU: {name}; what ran there says so."


def write_page(run: Run, folder: Path) -> None:
    (folder / "README.md").write_text(markdown_page(run))


def markdown_page(run: Run) -> str:
    """Render a run as a page; it lies beside the folder `history/`."""
    machine, versions = run.machine, run.versions
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`; every number is a cost, so lower is better. *Ours* and",
        "*baseline* are medians of the same run, taken in turn in one process; *ratio* is the",
        "median of ours / baseline over the pairs. *Spread* is the distance between the quartiles",
        "of ours.",
        "A *target* belongs to the ratio where there is one, otherwise to the median.",
        "Rows with a * are tracked: `make bench-compare BASE=<file of history/>` fails when one",
        f"becomes worse by a factor of {WORSE}.",
        "",
        f"Measured {run.date[:10]} at commit {run.commit}{' with changes' if run.changed else ''}",
        f"on {machine['cores']} cores of {machine['cpu']}, {machine['system']}, load "
        f"{machine['load_before'][0]:g} before and {machine['load_after'][0]:g} after;",
        ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
        f"Source: [history/{run.file_name}](history/{run.file_name}).",
        _about_gpu(machine.get("gpu")),
    ]
    for bench in dict.fromkeys(key.split(": ")[0] for key in run.rows):
        rows = {k: r for k, r in run.rows.items() if k.split(": ")[0] == bench}
        lines += ["", f"## {bench.removeprefix('bench_').replace('_', ' ')}", ""]
        lines += ["| " + " | ".join(_HEADER) + " |"]
        lines += ["|---" + "|---:" * (len(_HEADER) - 2) + "|---|"]
        lines += ["| " + " | ".join(cells) + " |" for cells in _cells(rows)]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Change:
    """The change of a row's cost from one run to another."""

    key: str
    factor: float | None
    """New / old; of the ratios where both have one. None if the row is not in both."""
    tracked: bool

    @property
    def failed(self) -> bool:
        """Whether a tracked row became clearly worse, or vanished."""
        return self.tracked and (self.factor is None or self.factor > WORSE)

    def __str__(self) -> str:
        factor = "  gone" if self.factor is None else f"{self.factor:5.2f}x"
        return f"{factor} {'WORSE' if self.failed else '     '} {'*' * self.tracked:1} {self.key}"


def compare_runs(base: Run, new: Run) -> Iterator[Change]:
    for key, old in base.rows.items():
        row = new.rows.get(key)
        if row is None:
            yield Change(key, None, old.tracked)
        elif old.ratio and row.ratio:
            yield Change(key, row.ratio / old.ratio, row.tracked)
        else:
            yield Change(key, row.median / old.median, row.tracked)


_HEADER = ("what", "ours", "spread", "n", "baseline", "ratio", "target", "met")


def _cells(rows: dict[str, Row]) -> Iterator[tuple[str, ...]]:
    for row in rows.values():
        target = "" if row.target is None else f"{row.target:g}{'x' if row.ratio else ''}"
        yield (
            row.name
            + (f" (baseline: {row.baseline_name})" * bool(row.baseline_name))
            + " *" * row.tracked,
            f"{short(row.median)} {row.unit}",
            short(row.spread),
            str(row.n),
            "" if row.baseline is None else short(row.baseline),
            "" if row.ratio is None else f"{row.ratio:.2f}x",
            target,
            {None: "", True: "yes", False: "no"}[row.met],
        )


def short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def commit_here() -> str:
    return _git("rev-parse", "--short=10", "HEAD") or "uncommitted"


def _git(*arguments: str) -> str:
    finished = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return finished.stdout.strip()

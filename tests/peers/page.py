"""The records of workloads beside peers: JSON files, their page, and the table of the README."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from tests.bench.harness import ROOT
from tests.bench.history import FOLDER as BENCHMARKS, commit_here, short
from tests.peers.workloads import OURS, WORKLOADS

Records: TypeAlias = dict[str, dict[str, Any]]
"""The run of each workload, by its name."""

FOLDER = BENCHMARKS / "peers"
NAMES = {
    "ding_lite": "ding_lite",
    "plain": "a plain loop",
    "multiprocessing": "multiprocessing",
    "pickle_zeromq": "pickle over ZeroMQ",
    "torch_queue": "torch.multiprocessing",
    "stable_baselines3": "Stable-Baselines3",
    "tianshou": "Tianshou",
    "torchrl": "TorchRL",
    "cpprb": "cpprb",
    "di_engine": "DI-engine",
    "agilerl": "AgileRL",
    "sample_factory": "Sample Factory",
    "rllib": "RLlib",
    "ray": "Ray",
}
_BETWEEN = re.compile(r"(<!-- peers: .*? -->\n).*?(<!-- end of peers -->)", re.DOTALL)


def here(machine: dict[str, Any]) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": now, "commit": commit_here(), "machine": machine}


def save(name: str, record: dict[str, Any]) -> Path:
    file = FOLDER / "history" / f"{record['date'][:10]}-{record['commit']}-{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=1) + "\n")
    return file


def newest() -> Records:
    found: Records = {}
    for name in WORKLOADS:
        files = (FOLDER / "history").glob(f"*-{name}.json")
        runs = [json.loads(file.read_text()) for file in files]
        if runs:
            found[name] = max(runs, key=lambda run: run["date"])
    if not found:
        raise FileNotFoundError(f"No run in {FOLDER / 'history'} yet: make bench-peers.")
    return found


def rows_of(name: str, result: dict[str, Any]) -> list[tuple[str, str, list[float]]]:
    """Return side, version and the median of each number, ours first and the best peers next."""
    workload = WORKLOADS[name]
    rows = [
        (side, runs[0]["version"], [median(each[n] for each in runs) for n in workload.numbers])
        for side, runs in result["sides"].items()
    ]
    sign = -1 if workload.is_rate else 1
    return sorted(rows, key=lambda row: (row[0] != OURS, sign * row[2][0]))


def advantage(name: str, ours: float, theirs: float) -> float:
    return ours / theirs if WORKLOADS[name].is_rate else theirs / ours


def text(name: str, result: dict[str, Any]) -> str:
    lines = [WORKLOADS[name].title + sizes_text(result["size"])]
    for side, version, numbers in rows_of(name, result):
        values = "  ".join(f"{short(number):>9}" for number in numbers)
        lines.append(f"  {NAMES[side]:20} {values}  {version}")
    return "\n".join(lines)


def write(records: Records) -> None:
    (FOLDER / "README.md").write_text(markdown(records))
    readme = ROOT / "README.md"
    before = readme.read_text()
    readme.write_text(_BETWEEN.sub(lambda m: m[1] + summary(records) + m[2], before))


def markdown(records: Records) -> str:
    lines = [
        "# Beside other packages",
        "",
        "Written by `make bench-peers`, which installs each package from the registry into an",
        "environment of its own, with the same version of torch where the package allows it, and",
        "starts the same work on all in turn, in several rounds. Numbers are medians; *x* says how",
        "many times as fast ding_lite is. Each side is one program in `tests/peers/programs/`; all",
        "use one thread. `make bench-peers ARGS=NAME` measures one workload again.",
    ]
    for name, record in records.items():
        workload, results = WORKLOADS[name], record["results"]
        columns = [
            (result, number, index)
            for result in results
            for index, number in enumerate(workload.numbers)
        ]
        heads = [_head(result["size"], number, workload) for result, number, _ in columns]
        lines += ["", f"## {workload.title}", ""]
        better = "more is better" if workload.is_rate else "less is better"
        lines += [f"In {workload.unit}; {better}. {_circumstances(name, record)}", ""]
        lines += [f"| | {' | '.join(heads)} | version |", "|---" + "|---:" * len(columns) + "|---|"]
        for side, version, _ in rows_of(name, results[0]):
            cells = []
            for result, _, index in columns:
                numbers = {each[0]: each[2] for each in rows_of(name, result)}
                value, ours = numbers[side][index], numbers[OURS][index]
                factor = "" if side == OURS else f" ({advantage(name, ours, value):.1f}x)"
                cells.append(f"{short(value)}{factor}")
            note = results[0]["sides"][side][0].get("note", "")
            about = f"{version}; {note}" if note else version
            lines.append(f"| {NAMES[side]} | {' | '.join(cells)} | {about} |")
    return "\n".join(lines) + "\n"


def summary(records: Records) -> str:
    """Render the README's table: the first size of each workload, and how much slower peers are."""
    lines = ["| | ding_lite | times as fast as |", "|---|---:|---|"]
    for name, record in records.items():
        workload, results = WORKLOADS[name], record["results"]
        unit = _short_unit(workload)
        ours, *others = rows_of(name, results[0])
        for index, what in enumerate(workload.brief):
            own = ours[2][index]
            peers = ", ".join(
                f"{NAMES[side]} {advantage(name, own, values[index]):.1f}x"
                for side, _, values in others
            )
            lines.append(f"| {what} | **{short(own)}** {unit} | {peers} |")
    return "\n".join(lines) + "\n"


def sizes_text(size: dict[str, Any]) -> str:
    return "".join(f", {name} {value}" for name, value in size.items())


def cores_of(machine: dict[str, Any]) -> str:
    number = machine["cores"]
    return f"{number} core{'' if number == 1 else 's'} of {machine['cpu']}"


def _circumstances(name: str, record: dict[str, Any]) -> str:
    machine = record["machine"]
    return (
        f"`{name}`, {record['date'][:10]}, commit {record['commit']}, rounds: {record['rounds']}, "
        f"{cores_of(machine)}, load {machine['load_before'][0]:g} before "
        f"and {machine['load_after'][0]:g} after."
    )


def _short_unit(workload: Any) -> str:
    unit: str = workload.unit
    return unit.replace(" of processor time", "").replace(" a second", "/s")


def _head(size: dict[str, Any], number: str, workload: Any) -> str:
    named = sizes_text(size).removeprefix(", ")
    if number == "cost":
        number = _short_unit(workload)
    return number if not named else named if len(workload.numbers) == 1 else f"{named}: {number}"

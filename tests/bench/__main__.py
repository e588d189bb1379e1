"""Run the benchmarks, or compare two runs: `python -m tests.bench run|compare|table`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from ding_lite.settings.environment import limit_torch_threads
from tests.bench import history
from tests.bench.harness import ROOT, Row

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="measure; a run of all files is kept in docs/benchmarks/")
    run.add_argument("names", nargs="*", help="files to run, as bench_import; none means all")
    compare = verbs.add_parser("compare", help="hold the newest run against another")
    compare.add_argument("base", type=Path, help="a file of docs/benchmarks/history/")
    compare.add_argument("new", type=Path, nargs="?", help="another; default: the newest")
    verbs.add_parser("gpu", help="run bench_gpu, and keep it in docs/benchmarks/gpu/")
    verbs.add_parser("table", help="write docs/benchmarks/README.md from the newest run")
    measure = verbs.add_parser("measure")
    measure.add_argument("name")
    measure.add_argument("out", type=Path)
    options = parser.parse_args()
    match options.verb:
        case "run":
            return run_benchmarks(options.names)
        case "compare":
            new = history.Run.load(options.new) if options.new else history.newest()
            return compare_with(history.Run.load(options.base), new)
        case "gpu":
            return run_benchmarks(["bench_gpu"], folder=history.GPU_FOLDER)
        case "measure":
            bench = importlib.import_module(f"tests.bench.{options.name}")
            limit_torch_threads()
            rows = bench.run()
            check_names(rows)
            options.out.write_text(json.dumps([asdict(row) for row in rows]))
        case _:
            history.write_page(history.newest(), history.FOLDER)
    return 0


def run_benchmarks(names: list[str], folder: Path | None = None) -> int:
    """Run each file in a process of its own.

    Args:
        names: The files; without any, all of them, and the result is kept unless one has failed.
        folder: Where to keep the result, if not with the runs of all files, or nowhere.
    """
    known = sorted(file.stem for file in HERE.glob("bench_*.py"))
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"No such benchmark: {', '.join(unknown)}. There are: {', '.join(known)}.")
        return 2
    load = os.getloadavg()
    rows: dict[str, Row] = {}
    failed = []
    for name in names or known:
        print(f"{name} ...", flush=True)
        measured = measure_in_new_process(name)
        if measured is None:
            failed.append(name)
            continue
        print(history.text_table(measured) + "\n", flush=True)
        rows |= measured
    if failed:
        print(f"Failed, so nothing is kept: {', '.join(failed)}")
        return 1
    folder = folder if names else history.FOLDER
    if folder is not None and rows:
        run = history.new_run(rows, load)
        print(f"Kept in {run.save(folder).relative_to(ROOT)}")
        history.write_page(run, folder)
    return 0


def measure_in_new_process(name: str) -> dict[str, Row] | None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "tests.bench", "measure", name, str(out)]
        if subprocess.run(command, cwd=ROOT).returncode:
            return None
        return {f"{name}: {row['name']}": Row(**row) for row in json.loads(out.read_text())}


def check_names(rows: list[Row]) -> None:
    """Refuse two rows of one name: only the second would be kept."""
    names = [row.name for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Two rows have the same name: {', '.join(twice)}. Give each its own.")


def compare_with(base: history.Run, new: history.Run) -> int:
    """Print how each row changed; return 1 if a tracked one became clearly worse."""
    print(f"{new.file_name} / {base.file_name}; above 1 is worse; * is tracked")
    changes = list(history.compare_runs(base, new))
    for change in changes:
        print(change)
    return int(any(change.failed for change in changes))


if __name__ == "__main__":
    sys.exit(main())

"""Measure other packages beside this one: `python -m tests.peers [WORKLOAD ...]`.

Each side is a program of its own in an environment of its own, and each round starts all sides in
turn, so that what else the machine does meets all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from tests.bench import history
from tests.peers import page
from tests.peers.environments import ROOT, python_of
from tests.peers.workloads import LOCAL, PROGRAMS, WORKLOADS, sides_of


class SideFailed(RuntimeError):
    """The program of a side has failed; the message has its errors."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs")
    parser.add_argument("--only", default="", metavar="SIDE,SIDE", help="leave out other peers")
    parser.add_argument("--page", action="store_true", help="write the pages of the newest runs")
    options = parser.parse_args()
    unknown = sorted(set(options.workloads) - set(WORKLOADS))
    if unknown:
        parser.error(f"no such workload: {', '.join(unknown)}; there are: {', '.join(WORKLOADS)}")
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; at least 1 was expected")
    if not options.page:
        for name in options.workloads or WORKLOADS:
            load = os.getloadavg()
            results = measure(name, options.rounds, options.only.split(","))
            record = {**page.here(history.describe_here(load)), "rounds": options.rounds}
            if not options.only:
                page.save(name, {**record, "results": results})
    if options.only:
        print("Nothing is kept of a part of the peers.")
        return 0
    page.write(page.newest())
    return 0


def measure(name: str, rounds: int, only: list[str]) -> list[dict[str, Any]]:
    sides = {}
    for side in sides_of(name):
        if only == [""] or side in only or side in LOCAL:
            try:
                sides[side] = python_of(side)
            except subprocess.CalledProcessError:
                print(f"  {side} cannot be installed here, and is left out", flush=True)
    results: list[dict[str, Any]] = []
    for size in WORKLOADS[name].sizes:
        reported: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, python in [*sides.items()]:
                try:
                    reported[side].append(run(python, name, side, size))
                except SideFailed as error:
                    if side in LOCAL:
                        sys.exit(str(error))
                    print(f"  {error}\n  {side} is left out of all sizes", flush=True)
                    for of_size in (*(result["sides"] for result in results), reported, sides):
                        del of_size[side]
        results.append({"size": size, "sides": reported})
        print(page.text(name, results[-1]), flush=True)
    return results


def run(python: str, workload: str, side: str, size: dict[str, Any]) -> dict[str, Any]:
    """Run one program once; return what it tells.

    Raises:
        SideFailed: It has not ended in order.
    """
    # -P: the program's own folder has files with the names of packages.
    command = [python, "-P", str(PROGRAMS / workload / f"{side}.py"), json.dumps(size)]
    environ = {**os.environ, "PYTHONPATH": f"{PROGRAMS}:{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise SideFailed(f"{' '.join(command)} failed:\n{done.stderr}")
    reported: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return reported


if __name__ == "__main__":
    sys.exit(main())

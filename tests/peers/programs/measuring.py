"""Time one side of a workload: what every program here shares, beside the standard library."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from importlib import metadata
from pathlib import Path
from statistics import median


def settings():
    return json.loads(sys.argv[1])


def cost_of(call, *, number, repeats=7, warmup=0.2):
    """Return the median of processor seconds that a call takes."""
    began = time.process_time()
    while time.process_time() - began < warmup:
        call()
    gc.collect()
    samples = []
    for _ in range(repeats):
        began = time.process_time()
        for _ in range(number):
            call()
        samples.append((time.process_time() - began) / number)
    return median(samples)


def age():
    """Return the seconds since this process was started."""
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")


def tell(package, **values):
    """Print the result in one line: the version of what was measured, and its numbers."""
    version = f"{package} {metadata.version(package)}" if package else "plain"
    if package != "torch" and "torch" in sys.modules:
        version += f", torch {metadata.version('torch')}"
    print(json.dumps({"version": version, **values}), flush=True)

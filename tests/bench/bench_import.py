"""The cost of `import ding_lite.runtime` in a fresh process; torch must not come with it.

CPU seconds: importing is one thread's work, and a busy machine does not change them.
"""

from __future__ import annotations

import resource
import subprocess
import sys

from tests.bench.harness import Row, row_from_samples

IMPORT = "import sys, ding_lite.runtime; sys.exit('torch' in sys.modules)"
NOTHING = "pass"
REPEATS = 15
MAX_SECONDS = 0.15


def run() -> list[Row]:
    start(IMPORT)  # once, so that byte code and disk cache are there
    with_import, bare = [], []
    for _ in range(REPEATS):
        bare.append(start(NOTHING))
        with_import.append(start(IMPORT))
    added = [a - b for a, b in zip(with_import, bare, strict=True)]
    return [
        row_from_samples(
            "import ding_lite.runtime adds to a bare interpreter",
            added,
            unit="s",
            target=MAX_SECONDS,
            tracked=True,
        ),
        row_from_samples(
            "python -c 'import ding_lite.runtime', start to end",
            with_import,
            baseline=bare,
            baseline_name="python -c pass",
            unit="s",
        ),
    ]


def start(code: str) -> float:
    before = _children_cpu()
    subprocess.run([sys.executable, "-c", code], check=True)
    return _children_cpu() - before


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

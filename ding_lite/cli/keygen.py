"""`ding-lite keygen`: write a key by which nodes of several machines authenticate each other."""

from __future__ import annotations

import argparse

from ding_lite.exit_codes import DONE
from ding_lite.parallel.network.security import make_key


def write_key(options: argparse.Namespace) -> int:
    """Write a new key into a file that does not exist yet; return the exit code."""
    path = make_key(options.file).absolute()
    print(
        f"Wrote a new key to {path}\n"
        f"Any process that can read it can join your jobs. Copy it to each machine of the job over "
        f"a private channel (scp -p), and set DING_LITE_KEY_FILE to its path there."
    )
    return DONE

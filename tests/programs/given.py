"""Programs that tests start as processes of their own, each a file by itself.

A test gives a program what it needs to know as one word of JSON, see `tests.procs.programs`.
"""

import json
import os
import sys
from types import SimpleNamespace

given = SimpleNamespace()
"""What the test has given, by its names."""
if sys.argv[1:] and sys.argv[1].startswith("{"):
    given = SimpleNamespace(**json.loads(sys.argv[1]))


def say(*words):
    """Write a line for the test at once, and as a whole."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())

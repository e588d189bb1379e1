"""Each node is connected to all others before its `main` begins."""

import sys
import time

from measuring import age, settings, tell

from ding_lite import Parallel

if settings()["nodes import"] == "torch":
    import torch  # noqa: F401 - this is what is timed


def main():
    return "torch" in sys.modules


if __name__ == "__main__":
    began = time.perf_counter()
    results = Parallel.runner(4)(main)
    seconds = time.perf_counter() - began
    assert results == [settings()["nodes import"] == "torch"] * 4
    tell("ding_lite", **{"call to result": seconds, "whole program": age()})

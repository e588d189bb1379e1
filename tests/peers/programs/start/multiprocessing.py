"""Processes that are not connected, but for the queue of their results."""

import sys
import time
from multiprocessing import get_context

from measuring import age, settings, tell

if settings()["nodes import"] == "torch":
    import torch  # noqa: F401 - this is what is timed


def main(results):
    results.put("torch" in sys.modules)


if __name__ == "__main__":
    began = time.perf_counter()
    spawn = get_context("spawn")
    queue = spawn.SimpleQueue()
    processes = [spawn.Process(target=main, args=(queue,)) for _ in range(4)]
    for process in processes:
        process.start()
    results = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    seconds = time.perf_counter() - began
    assert results == [settings()["nodes import"] == "torch"] * 4
    tell(None, **{"call to result": seconds, "whole program": age()})

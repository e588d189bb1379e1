"""With its defaults: nodes start a second apart, and each waits 0.3 s to be connected.

They return nothing, and its import brings torch in either size.
"""

import time

from ding.framework import Parallel
from measuring import age, tell


def main():
    pass


if __name__ == "__main__":
    began = time.perf_counter()
    Parallel.runner(n_parallel_workers=4, topology="mesh")(main)
    seconds = time.perf_counter() - began
    tell("DI-engine", **{"call to result": seconds, "whole program": age()})

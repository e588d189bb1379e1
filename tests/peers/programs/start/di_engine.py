"""Its nodes return nothing, and begin before they are connected; its import brings torch."""

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

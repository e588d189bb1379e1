"""Three nodes meet, within so many seconds."""

import sys

from ding_lite import Parallel


def main(): ...


if __name__ == "__main__":
    Parallel.runner(3, "star", startup_timeout=float(sys.argv[1]))(main)

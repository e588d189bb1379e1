"""Two nodes meet, within so many seconds."""

import sys

from ding_lite import Parallel


def main():
    return Parallel().node_id


if __name__ == "__main__":
    print(Parallel.runner(2, startup_timeout=float(sys.argv[1]))(main))

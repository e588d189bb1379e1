"""Two nodes meet, or as many as the second word says, within the seconds of the first one."""

import sys

from ding_lite import Parallel


def main():
    return Parallel().node_id


if __name__ == "__main__":
    seconds, *count = sys.argv[1:]
    print(Parallel.runner(int(*count or "2"), startup_timeout=float(seconds))(main))

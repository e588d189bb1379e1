"""One of two nodes is killed once, and started again."""

import os

import ding_lite.log
from ding_lite import Parallel


def main(file):
    if not os.path.exists(file):
        open(file, "w").close()
        os.abort()


if __name__ == "__main__":
    ding_lite.log.configure()
    Parallel.runner(2, "alone", auto_recover=True)(main, "once")

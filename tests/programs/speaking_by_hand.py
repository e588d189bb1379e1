"""A node that is started by hand writes a log line."""

import logging
import os

import ding_lite.log
from ding_lite import Parallel
from tests.programs.given import given


def main():
    logging.getLogger("ding_lite.test").info("main runs")


if __name__ == "__main__":
    os.environ |= given.environ
    ding_lite.log.configure()
    Parallel.runner(2)(main)

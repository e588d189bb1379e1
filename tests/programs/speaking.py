"""Nodes and their launcher write log lines at each stage."""

import logging

import ding_lite.log
from ding_lite import Parallel
from tests.programs.given import given


def main():
    logging.getLogger("ding_lite.test").info("main runs")


ding_lite.log.configure()
logging.getLogger("ding_lite.test").info("imported")
if __name__ == "__main__":
    roles = getattr(given, "roles", None)
    runner = Parallel.runner(len(roles or "ab"), roles=roles)
    logging.getLogger("ding_lite.test").info("not yet")
    runner(main)
    logging.getLogger("ding_lite.test").info("over")

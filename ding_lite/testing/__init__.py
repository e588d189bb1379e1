"""Tools for tests of programs: a manual clock, single steps, and a cluster with faults."""

from ding_lite.testing.clock import ManualClock
from ding_lite.testing.cluster import Cluster
from ding_lite.testing.run_step import StepRecord, run_step

__all__ = ["Cluster", "ManualClock", "StepRecord", "run_step"]

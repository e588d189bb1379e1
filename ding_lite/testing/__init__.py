"""What tests of programs need: a clock to hold still, one step to look at, nodes to cut apart."""

from ding_lite.testing.clock import ManualClock
from ding_lite.testing.cluster import Cluster
from ding_lite.testing.run_step import StepRecord, run_step

__all__ = ["Cluster", "ManualClock", "StepRecord", "run_step"]

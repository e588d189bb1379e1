"""What tests of middleware need: a clock to hold still, and one step to look at."""

from ding_lite.testing.clock import ManualClock
from ding_lite.testing.run_step import StepRecord, run_step

__all__ = ["ManualClock", "StepRecord", "run_step"]

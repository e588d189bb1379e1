"""Run the same `main` on each node of a job, in many processes."""

from ding_lite.parallel.launch.launch import Parallel

__all__ = ["Parallel"]

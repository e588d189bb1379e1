"""Many processes: the same `main` on each node of a job."""

from ding_lite.parallel.launch.launch import Parallel

__all__ = ["Parallel"]

"""Names under the import paths of DI-engine: `from ding_lite.framework import Task, Parallel`."""

from ding_lite.parallel.launch.launch import Parallel
from ding_lite.runtime.context import Context
from ding_lite.runtime.task import Task

__all__ = ["Context", "Parallel", "Task"]

"""One process, one pipeline: the task, its context, and step wrappers."""

from ding_lite.runtime.context import Context, ParallelContext
from ding_lite.runtime.messaging.local_router import LocalRouter
from ding_lite.runtime.messaging.router import Router, current_router, use_router
from ding_lite.runtime.middleware import Middleware, StepWrapper
from ding_lite.runtime.task import Task
from ding_lite.runtime.wrappers import StepTimer, Trace

__all__ = [
    "Context",
    "LocalRouter",
    "Middleware",
    "ParallelContext",
    "Router",
    "StepTimer",
    "StepWrapper",
    "Task",
    "Trace",
    "current_router",
    "use_router",
]

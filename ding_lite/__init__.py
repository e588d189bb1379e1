"""Reinforcement learning as a pipeline of middleware, on one process or many.

    from ding_lite import Task, middleware as mw
    from ding_lite.rl import DQN, ReplayBuffer, make_envs

The call `ding_lite.train("dqn", "CartPole-v1")` does a whole training.

The names below are imported when they are first used, so `import ding_lite.runtime` does not
import PyTorch.
"""

import importlib
from typing import TYPE_CHECKING

from ding_lite.version import __version__ as __version__

if TYPE_CHECKING:
    from ding_lite.evolution.agent import Agent as Agent
    from ding_lite.parallel.launch.launch import Parallel as Parallel
    from ding_lite.recipes.evolve import evolve as evolve
    from ding_lite.recipes.training import train as train
    from ding_lite.records import register as register
    from ding_lite.runtime.context import Context as Context
    from ding_lite.runtime.middleware import Middleware as Middleware, StepWrapper as StepWrapper
    from ding_lite.runtime.task import Task as Task

_HOMES = {
    "Agent": "ding_lite.evolution.agent",
    "Context": "ding_lite.runtime.context",
    "Middleware": "ding_lite.runtime.middleware",
    "Parallel": "ding_lite.parallel.launch.launch",
    "StepWrapper": "ding_lite.runtime.middleware",
    "Task": "ding_lite.runtime.task",
    "evolve": "ding_lite.recipes.evolve",
    "register": "ding_lite.records",
    "train": "ding_lite.recipes.training",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    from ding_lite.errors import did_you_mean

    meant = did_you_mean(name, __all__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{meant}")


def __dir__() -> list[str]:
    return sorted(__all__)

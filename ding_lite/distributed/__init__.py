"""Distributed training: groups of nodes, gradient, model and population servers, sharded replay.

`World` and `Group` need no PyTorch; the names that do are imported at their first use.
"""

import importlib
from typing import TYPE_CHECKING

from ding_lite.parallel.router.group import Group as Group, World as World

if TYPE_CHECKING:
    from ding_lite.distributed.accelerate.prepared_replay import PreparedReplay as PreparedReplay
    from ding_lite.distributed.accelerate.processes import Processes as Processes
    from ding_lite.distributed.gradient_server import (
        GradientServer as GradientServer,
        Receipt as Receipt,
    )
    from ding_lite.distributed.model_server import Model as Model, ModelServer as ModelServer
    from ding_lite.distributed.population_server import PopulationServer as PopulationServer
    from ding_lite.distributed.sharded_replay import ShardedReplay as ShardedReplay
    from ding_lite.distributed.shards import ShardedTransitions as ShardedTransitions

_HOMES = {
    "GradientServer": "gradient_server",
    "Model": "model_server",
    "ModelServer": "model_server",
    "PopulationServer": "population_server",
    "PreparedReplay": "accelerate.prepared_replay",
    "Processes": "accelerate.processes",
    "Receipt": "gradient_server",
    "ShardedReplay": "sharded_replay",
    "ShardedTransitions": "shards",
}
__all__ = ["Group", "World", *_HOMES]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    from ding_lite.errors import did_you_mean

    meant = did_you_mean(name, __all__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{meant}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""What several nodes do together: the world of a job, groups of its nodes, replay in shards."""

from ding_lite.distributed.gradient_server import GradientServer, Receipt
from ding_lite.distributed.model_server import Model, ModelServer
from ding_lite.distributed.sharded_replay import ShardedReplay, ShardedTransitions
from ding_lite.parallel.group import Group, World

__all__ = [
    "GradientServer",
    "Group",
    "Model",
    "ModelServer",
    "Receipt",
    "ShardedReplay",
    "ShardedTransitions",
    "World",
]

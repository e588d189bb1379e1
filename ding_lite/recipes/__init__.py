"""Train a policy by its name; helpers for training programs."""

from ding_lite.recipes.evolve import EvolveResult, evolve
from ding_lite.recipes.options import Options, parse_options
from ding_lite.recipes.runs.criterion import Criterion
from ding_lite.recipes.runs.export import export_policy
from ding_lite.recipes.runs.loading import load_policy
from ding_lite.recipes.runs.program import launch_nodes, run_program
from ding_lite.recipes.runs.run import Run
from ding_lite.recipes.runs.video import record_video
from ding_lite.recipes.training import TrainResult, train

__all__ = [
    "Criterion",
    "EvolveResult",
    "Options",
    "Run",
    "TrainResult",
    "evolve",
    "export_policy",
    "launch_nodes",
    "load_policy",
    "parse_options",
    "record_video",
    "run_program",
    "train",
]

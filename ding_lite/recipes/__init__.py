"""What the training programs of this project share: their options, and what a run leaves."""

from ding_lite.recipes.options import Options, parse_options
from ding_lite.recipes.program import run_program
from ding_lite.recipes.run import Run

__all__ = ["Options", "Run", "parse_options", "run_program"]

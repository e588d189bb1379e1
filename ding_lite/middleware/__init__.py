"""The stages of a training pipeline: `from ding_lite import middleware as mw`."""

from typing import TYPE_CHECKING

from ding_lite.deprecation import renamed
from ding_lite.middleware.buffer import (
    add_to,
    replay_trajectories,
    update_priorities,
    wait_for,
)
from ding_lite.middleware.checkpoints.resume import resume
from ding_lite.middleware.checkpoints.save import checkpoint
from ding_lite.middleware.collect import collect, random_warmup
from ding_lite.middleware.distributed.count_collected import count_collected
from ding_lite.middleware.distributed.exchange import receive, send
from ding_lite.middleware.distributed.gradients import pull_weights, push_gradients, serve_gradients
from ding_lite.middleware.distributed.rate_limit import rate_limit
from ding_lite.middleware.distributed.weights import fetch_weights, publish_weights
from ding_lite.middleware.env_step_budget import env_step_budget
from ding_lite.middleware.evaluate import evaluate, stop_at
from ding_lite.middleware.keep_best import keep_best
from ding_lite.middleware.population.accelerate import (
    average_agents,
    share_generation,
)
from ding_lite.middleware.population.evolve import evolve, for_each
from ding_lite.middleware.population.workers import (
    confirm_best,
    gather_members,
    return_members,
    take_members,
)
from ding_lite.middleware.report.curve import curve
from ding_lite.middleware.report.jsonl import jsonl
from ding_lite.middleware.report.log import log
from ding_lite.middleware.report.progress import progress
from ding_lite.middleware.report.report import report
from ding_lite.middleware.report.tensorboard import tensorboard
from ding_lite.middleware.report.throughput import throughput
from ding_lite.middleware.report.trackers import mlflow, wandb
from ding_lite.middleware.train import train

__all__ = [
    "add_to",
    "average_agents",
    "checkpoint",
    "collect",
    "confirm_best",
    "count_collected",
    "curve",
    "env_step_budget",
    "evaluate",
    "evolve",
    "fetch_weights",
    "for_each",
    "gather_members",
    "jsonl",
    "keep_best",
    "log",
    "mlflow",
    "progress",
    "publish_weights",
    "pull_weights",
    "push_gradients",
    "random_warmup",
    "rate_limit",
    "receive",
    "replay_trajectories",
    "report",
    "resume",
    "return_members",
    "send",
    "serve_gradients",
    "share_generation",
    "stop_at",
    "take_members",
    "tensorboard",
    "throughput",
    "train",
    "update_priorities",
    "wait_for",
    "wandb",
]

evaluate_population = evaluate
"""A permanent alias of `evaluate` for programs of populations."""

if not TYPE_CHECKING:  # type checkers see only the current names
    __getattr__ = renamed(
        __name__,
        checkpoint_together="checkpoint",
        evaluate_together="evaluate",
        keep_best_agent="keep_best",
        keep_champion="keep_best",
        keep_pace="rate_limit",
        measure="throughput",
        recall="replay_trajectories",
        resume_together="resume",
        stay_within="env_step_budget",
        tally="count_collected",
    )

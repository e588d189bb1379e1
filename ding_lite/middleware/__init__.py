"""The stages of a training pipeline: `from ding_lite import middleware as mw`."""

from ding_lite.middleware.best import keep_best
from ding_lite.middleware.budget import stay_within
from ding_lite.middleware.buffer import add_to, update_priorities, wait_for
from ding_lite.middleware.champion import keep_champion
from ding_lite.middleware.checkpoint import checkpoint, resume
from ding_lite.middleware.checkpoint_together import checkpoint_together, resume_together
from ding_lite.middleware.collect import collect, random_warmup
from ding_lite.middleware.evaluate import evaluate, stop_at
from ding_lite.middleware.evaluate_population import evaluate_population
from ding_lite.middleware.evolve import evolve, for_each
from ding_lite.middleware.exchange import receive, send
from ding_lite.middleware.gradients import pull_weights, push_gradients, serve_gradients
from ding_lite.middleware.measure import measure
from ding_lite.middleware.members import (
    confirm_best,
    gather_members,
    return_members,
    take_members,
)
from ding_lite.middleware.pace import keep_pace
from ding_lite.middleware.processes import average_agents, evaluate_together, share_generation
from ding_lite.middleware.recall import recall
from ding_lite.middleware.report import log
from ding_lite.middleware.report_curve import curve
from ding_lite.middleware.report_progress import progress
from ding_lite.middleware.report_tensorboard import tensorboard
from ding_lite.middleware.tally import tally
from ding_lite.middleware.train import train
from ding_lite.middleware.weights import fetch_weights, publish_weights

__all__ = [
    "add_to",
    "average_agents",
    "checkpoint",
    "checkpoint_together",
    "collect",
    "confirm_best",
    "curve",
    "evaluate",
    "evaluate_population",
    "evaluate_together",
    "evolve",
    "fetch_weights",
    "for_each",
    "gather_members",
    "keep_best",
    "keep_champion",
    "keep_pace",
    "log",
    "measure",
    "progress",
    "publish_weights",
    "pull_weights",
    "push_gradients",
    "random_warmup",
    "recall",
    "receive",
    "resume",
    "resume_together",
    "return_members",
    "send",
    "serve_gradients",
    "share_generation",
    "stay_within",
    "stop_at",
    "take_members",
    "tally",
    "tensorboard",
    "train",
    "update_priorities",
    "wait_for",
]

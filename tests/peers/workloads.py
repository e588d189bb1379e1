"""The workloads: what each side does in one, in which sizes, and how its number reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parent / "programs"
OURS, PLAIN = "ding_lite", "plain"
LOCAL = (OURS, PLAIN, "multiprocessing", "pickle_zeromq", "torch_queue")
"""Sides that run in the environment of the project itself."""


@dataclass(frozen=True)
class Workload:
    """The same work for several sides, each a program in a folder of the workload's name."""

    title: str
    brief: tuple[str, ...]
    """The first size of the first numbers in a few words, for the README."""
    unit: str
    numbers: tuple[str, ...] = ("cost",)
    """The numbers that a program tells."""
    is_rate: bool = False
    """Whether more is better."""
    sizes: tuple[dict[str, Any], ...] = field(default_factory=lambda: ({},))


WORKLOADS = {
    "dqn_update": Workload(
        "DQN: sample a batch from a replay of 20,000, and update",
        ("DQN update, batch 64",),
        "us of processor time",
        sizes=tuple({"batch": batch, "width": width} for width in (64, 256) for batch in (64, 256)),
    ),
    "ppo_steps": Workload(
        "PPO on CartPole-v1, 8 environments, rollouts of 128, 4 epochs of batches of 256",
        ("PPO on CartPole-v1",),
        "env steps a second of processor time",
        is_rate=True,
        sizes=({"width": 64}, {"width": 256}),
    ),
    "ppo_update": Workload(
        "PPO: 4 epochs of a rollout of 8 x 128 steps, advantages included, for each update",
        ("PPO update, batch 64",),
        "us of processor time",
        sizes=({"batch": 64, "width": 64}, {"batch": 256, "width": 256}),
    ),
    "sac_update": Workload(
        "SAC: sample a batch from a replay of 20,000, and update",
        ("SAC update, batch 64",),
        "us of processor time",
        sizes=({"batch": 64, "width": 64}, {"batch": 256, "width": 256}),
    ),
    "actor_learner": Workload(
        "IMPALA or APPO on CartPole-v1, a learner and 2 workers of 16 environments",
        ("IMPALA on CartPole-v1, learner and 2 collectors",),
        "env steps a second",
        is_rate=True,
    ),
    "replay": Workload(
        "A replay of a million transitions of CartPole-v1, batches of 256",
        ("Add 16 transitions to a replay", "Sample 256 from a replay of a million"),
        "us of processor time",
        numbers=("add 16", "sample"),
    ),
    "middleware": Workload(
        "The cost of a step of a task, for each empty middleware",
        ("Call one middleware",),
        "us of processor time",
        sizes=tuple({"count": count} for count in (1, 5, 20)),
    ),
    "evolution": Workload(
        "An update of a population of four DQNs (32x32, batches of 128), for each agent",
        ("DQN update of one of 4 agents, batch 128",),
        "us of processor time",
    ),
    "weights": Workload(
        "Send new weights to a process, from the call until they are in its own tensors",
        ("Send 1 MB of new weights to a process",),
        "ms",
        ("wall time",),
        sizes=({"megabytes": 1}, {"megabytes": 10}),
    ),
    "start": Workload(
        "Run a job of 4 nodes that do nothing",
        ("Start and end 4 processes",),
        "s",
        ("call to result", "whole program"),
        sizes=({"nodes import": "nothing"}, {"nodes import": "torch"}),
    ),
    "import": Workload(
        "Import what a DQN needs, and make its environment and its policy",
        ("Import, make environment and policy",),
        "s",
        ("wall time",),
    ),
}


def sides_of(name: str) -> list[str]:
    """Return the sides that have a program for a workload, ours first."""
    found = sorted(file.stem for file in (PROGRAMS / name).glob("*.py"))
    return sorted(found, key=lambda side: side != OURS)

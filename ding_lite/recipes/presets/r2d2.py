"""Presets of R2D2."""

from __future__ import annotations

from ding_lite.recipes.presets.targets import Presets

R2D2_PRESETS: Presets = {
    "CartPole-v1": {
        "max_env_steps": 60_000,
        "eval_every": 2_000,
    },
    "probe/Recall-v0": {
        "max_env_steps": 10_000,
        "target": 1.0,
        "memory": "gru",
        "memory_size": 16,
        "hidden": (16,),
        "sequence_length": 3,
        "burn_in": 1,
        "lr": 5e-3,
        "epsilon_steps": 500,
        "capacity": 2_000,
        "eval_every": 1_000,
    },
}

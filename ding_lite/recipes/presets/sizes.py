"""Sizes for the spaces of environments without a preset."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ding_lite.recipes.presets.box import MUJOCO_SAC
from ding_lite.rl.networks.conv import CONVS, num_features
from ding_lite.rl.replay.storage import Storage, layout_of_spec
from ding_lite.rl.spec import EnvSpec

_FEW_NUMBERS = 8
"""Slightly more numbers than the observations and actions of Pendulum-v1 have."""

_IMAGE_BYTES = 2 * 10**9
"""The memory of a replay of images for environments without a preset."""


def sizes_for_images(spec: EnvSpec) -> dict[str, Any]:
    """Return the usual hidden layer behind convolutions, if observations are images."""
    if len(spec.input_shape) != 3:
        return {}
    is_large = num_features(spec.input_shape, CONVS["nature"]) > 0
    return {"hidden": (512,) if is_large else (128,)}


def sizes_for_boxes(spec: EnvSpec) -> Mapping[str, Any]:
    """Return the sizes of DDPG, TD3 and SAC: those of MuJoCo tasks for larger spaces.

    With images the replay is limited to `_IMAGE_BYTES`, and evolution does not mutate networks.
    """
    numbers = math.prod(spec.obs_shape) + math.prod(spec.action_shape)
    if numbers <= _FEW_NUMBERS:
        return {}
    names = ("actor_lr", "critic_lr", "hidden", "batch_size", "target_tau", "capacity", "warmup")
    sizes = {name: MUJOCO_SAC[name] for name in names}
    if not spec.is_image:
        return sizes
    most: int = sizes["capacity"]
    needed = Storage.bytes_for(layout_of_spec(spec), capacity=most, stack=spec.frame_stack)
    capacity = min(most, most * _IMAGE_BYTES // needed)
    return {**sizes, "capacity": capacity, "mutate_architecture": 0.0, "mutate_weights": 0.0}

"""The cost of a DQN update of images of Atari games, beside the same in plain torch.

Both sides use one thread. In bfloat16 the result is that of float32 where the processor has no
instructions for it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from ding_lite.rl import DQN, DQNConfig, EnvSpec
from ding_lite.rl.networks.precision import Precision, computing_in
from tests.bench.bench_dqn_update import PlainDQN
from tests.bench.harness import Row, compare
from tests.rl.rollouts import CARTPOLE, draw_batch

SPEC = EnvSpec(
    env_id="images", obs_space=Box(0, 255, (84, 84, 4), np.uint8), action_space=Discrete(6)
)
CONFIG = DQNConfig(hidden=(512,), torso="nature")
BATCHES = (32, 256)
MAX_RATIOS: dict[Precision, float] = {"float32": 0.9, "bfloat16": 0.6}


def run() -> list[Row]:
    return [of_images(size, precision) for size in BATCHES for precision in MAX_RATIOS]


def of_images(batch_size: int, precision: Precision) -> Row:
    """Hold an update, by the network of Atari players, against that of a tutorial."""
    images = torch.randint(256, (2, batch_size, 4, 84, 84), dtype=torch.uint8)
    batch = draw_batch(0, spec=CARTPOLE, size=batch_size)
    batch = replace(batch, obs=images[0], next_obs=images[1])
    policy = DQN(SPEC, CONFIG)

    def learn() -> None:
        with computing_in(precision):
            policy.learn(batch)

    return compare(
        f"DQN update of images in {precision}, batch {batch_size}, 84x84x4",
        learn,
        partial(plain_dqn("cpu").learn, batch),
        baseline_name="plain torch in float32, default Adam",
        number=2,
        target=MAX_RATIOS[precision],
        tracked=precision == "float32" and batch_size == BATCHES[0],
    )


def plain_dqn(device: str) -> Any:
    """Make a tutorial's DQN of images."""
    plain: Any = PlainDQN(64, CONFIG)
    plain.net, plain.target = (Nature().to(device) for _ in range(2))
    plain.adam = torch.optim.Adam(plain.net.parameters(), lr=CONFIG.lr)
    return plain


class Nature(nn.Module):
    """The network of Mnih et al. 2015 (doi:10.1038/nature14236)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(3_136, 512), nn.ReLU(), nn.Linear(512, 6)),
        )

    def forward(self, obs: Tensor) -> Tensor:
        """Compute the values, [B, 6], of bytes, [B, 4, 84, 84]."""
        values: Tensor = self.layers(obs.float() / 255.0)
        return values

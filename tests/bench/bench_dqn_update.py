"""The cost of a DQN update and of a greedy action, beside the same in plain torch.

The baseline is what a tutorial writes: modules, the default Adam, a soft target update one
tensor at a time. Both sides use one thread, the same sizes and the same batches.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ding_lite.rl import DQN, DQNConfig
from ding_lite.rl.batch import NumpyArray
from tests.bench.harness import Row, compare
from tests.rl.reference_box import make_mlp
from tests.rl.rollouts import CARTPOLE, draw_batch

SIZES = ((64, 64), (128, 64), (128, 128))
"""Batches and widths; actions are measured once for each width."""
NUM_ENVS = 8
MAX_UPDATE_RATIO = 0.7
MAX_OWN_RATIO = 0.65
MAX_ACTION_RATIO = 0.6


def run() -> list[Row]:
    rows = []
    for batch_size, width in SIZES:
        config = DQNConfig(hidden=(width, width), batch_size=batch_size)
        policy = DQN(CARTPOLE, config)
        plain, batch = PlainDQN(width, config), draw_batch(0, spec=CARTPOLE, size=batch_size)
        own = DQN(CARTPOLE, DQNConfig(), network=copy.deepcopy(plain.net))
        for of_whom, its, target in (
            ("", policy, MAX_UPDATE_RATIO),
            (" of a user's nn.Module", own, MAX_OWN_RATIO),
        ):
            end = "" if of_whom else ", double"
            rows.append(
                compare(
                    f"DQN update{of_whom}, batch {batch_size}, hidden {width}x{width}{end}",
                    partial(its.learn, batch),
                    partial(plain.learn, batch),
                    baseline_name="plain torch, default Adam",
                    number=100,
                    target=target,
                    tracked=width == 64,
                )
            )
        if batch_size < 128:
            continue
        obs = np.asarray(batch.obs[:NUM_ENVS])
        rows.append(
            compare(
                f"greedy action, {NUM_ENVS} envs, hidden {width}x{width}",
                partial(policy.act, obs, explore=False),
                partial(plain.act, obs),
                baseline_name="plain torch, no_grad",
                number=1_000,
                target=MAX_ACTION_RATIO,
                tracked=width == 64,
            )
        )
    return rows


class PlainDQN:
    def __init__(self, width: int, config: DQNConfig) -> None:
        self.config = config
        self.net = make_mlp((4, width, width, 2))
        self.target = copy.deepcopy(self.net)
        self.adam = torch.optim.Adam(self.net.parameters(), lr=config.lr)

    def learn(self, batch: Any) -> dict[str, float]:
        with torch.no_grad():
            best = self.net(batch.next_obs).argmax(dim=1, keepdim=True)
            next_value = self.target(batch.next_obs).gather(1, best).squeeze(1)
            discount = self.config.gamma**batch.num_steps * (1.0 - batch.terminated.float())
            target = batch.reward + discount * next_value
        value = self.net(batch.obs).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(value, target)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.net.parameters(), strict=True):
                slow.lerp_(fast, self.config.target_tau)
        return {"loss": loss.item(), "q_mean": value.mean().item()}

    @torch.no_grad()
    def act(self, obs: NumpyArray) -> NumpyArray:
        q: Tensor = self.net(torch.from_numpy(obs))
        return q.argmax(dim=1).numpy()

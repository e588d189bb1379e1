"""Speed of a GPU: formulas and updates beside plain torch there, and beside ours on the CPU.

Where there is none there are no rows. Time is the wall's, until the GPU is done.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from ding_lite import rl
from tests.bench.bench_dqn_update import PlainDQN
from tests.bench.bench_on_policy import FORMULAS, columns_of
from tests.bench.harness import Row, compare
from tests.bench.on_policy_peers import TutorialPPO
from tests.rl.rollouts import CARTPOLE, PENDULUM, draw_batch, draw_rollout

SIZES = ((256, 64), (4_096, 1_024))
"""Batches and widths: where a GPU waits for its calls, and where it has something to do."""
SHAPES = ((20, 32), (128, 64), (128, 4_096))
KINDS: dict[str, tuple[Any, Any]] = {
    "DQN": (rl.DQN, rl.DQNConfig),
    "DDPG": (rl.DDPG, rl.DDPGConfig),
    "TD3": (rl.TD3, rl.TD3Config),
    "SAC": (rl.SAC, rl.SACConfig),
    "A2C": (rl.A2C, rl.A2CConfig),
    "PPO": (rl.PPO, rl.PPOConfig),
    "IMPALA": (rl.IMPALA, rl.IMPALAConfig),
}
FROM_TRANSITIONS_OF_BOXES = ("DDPG", "TD3", "SAC")
HOWS = ("", "captured", "of a user's nn.Module", "of a user's nn.Module, captured")
"""Ways to make the policy of an update."""
SPEC = rl.EnvSpec(
    env_id="images", obs_space=Box(0, 255, (84, 84, 4), np.uint8), action_space=Discrete(6)
)
CONFIG = rl.DQNConfig(hidden=(512,), torso="nature")
BATCHES = (32, 256)
MAX_UPDATE_RATIO, MAX_CAPTURED_RATIO = 1.0, 0.35


def run() -> list[Row]:
    if not torch.cuda.is_available():
        return []
    rows = [row for shape in SHAPES for row in formulas(shape)]
    for batch_size, width in SIZES:
        rows += [
            *(beside_plain_torch("DQN", batch_size, width, how) for how in HOWS),
            *(beside_plain_torch("PPO", batch_size, width, how) for how in HOWS),
            *(beside_cpu(kind, batch_size, width) for kind in KINDS),
        ]
    for batch_size in BATCHES:
        rows += [of_images(batch_size, how) for how in ("", "captured")]
    return rows


def until_done(call: Callable[[], object]) -> Callable[[], None]:
    def wait_for_it() -> None:
        call()
        torch.cuda.synchronize()

    return wait_for_it


def formulas(shape: tuple[int, int]) -> list[Row]:
    """Hold GAE and V-trace of tensors on the GPU against a loop there, and against the CPU's."""
    rows = []
    for name, (ours, loop) in FORMULAS.items():
        here = columns_of(name, shape)
        there = [torch.from_numpy(column).cuda() for column in here]
        on_gpu = until_done(partial(ours, *there))
        for short, baseline, words, target in (
            ("a loop", until_done(partial(loop, *there)), "torch on the same GPU", 1.0),
            ("the CPU", partial(ours, *here), "ours of arrays", None),
        ):
            rows.append(
                compare(
                    f"{name} on the GPU, T={shape[0]}, B={shape[1]}, beside {short}",
                    on_gpu,
                    baseline,
                    baseline_name=words,
                    number=20,
                    clock="wall",
                    target=target,
                )
            )
    return rows


def beside_plain_torch(kind: str, batch_size: int, width: int, how: str) -> Row:
    """Hold an update against that of a tutorial, both on the GPU; each gets its batch there."""
    parts: dict[str, Any] = {"compile": "graph" if "captured" in how else None}
    if kind == "DQN":
        config = rl.DQNConfig(hidden=(width, width))
        plain: Any = PlainDQN(width, config)
        if "user" in how:
            config, parts["network"] = rl.DQNConfig(), copy.deepcopy(plain.net)
        for net in (plain.net, plain.target):
            net.cuda()
        rows: Any = batch_on_gpu(batch_size)
        learn = partial(rl.DQN(CARTPOLE, config, device="cuda", **parts).learn, rows)
        per = 1
    else:
        plain, per = TutorialPPO(width), rl.PPOConfig().epochs
        if "user" in how:
            parts |= {"actor": copy.deepcopy(plain.actor), "critic": copy.deepcopy(plain.critic)}
            settings = rl.PPOConfig(batch_size=batch_size)
        else:
            settings = rl.PPOConfig(batch_size=batch_size, hidden=(width, width))
        learn = partial(
            rl.PPO(CARTPOLE, settings, device="cuda", **parts).learn, [square_rollout(batch_size)]
        )
        plain.actor.cuda(), plain.critic.cuda()
        batch, normal = batch_on_gpu(batch_size), torch.randn(3, batch_size).cuda()
        rows = {
            "obs": batch.obs,
            "action": batch.action,
            **dict(zip(("log_prob", "advantage", "target"), normal, strict=True)),
        }

    def learn_plainly() -> None:
        for _ in range(per):
            plain.learn(rows)

    return against(
        learn_plainly,
        learn,
        f"{kind} update {how}".rstrip()
        + f" on the GPU, batch {batch_size}, hidden {width}x{width}",
        how,
        per=per,
    )


def of_images(batch_size: int, how: str) -> Row:
    images = torch.randint(256, (2, batch_size, 4, 84, 84), dtype=torch.uint8).cuda()
    batch = replace(batch_on_gpu(batch_size), obs=images[0], next_obs=images[1])
    plain = plain_dqn()
    policy = rl.DQN(SPEC, CONFIG, device="cuda", compile="graph" if how else None)
    return against(
        partial(plain.learn, batch),
        partial(policy.learn, batch),
        f"DQN update of images {how}".rstrip() + f" on the GPU, batch {batch_size}, 84x84x4",
        how,
    )


def plain_dqn() -> Any:
    plain: Any = PlainDQN(64, CONFIG)
    plain.net, plain.target = (Nature().cuda() for _ in range(2))
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

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Compute the values, [B, 6], of bytes, [B, 4, 84, 84]."""
        values: torch.Tensor = self.layers(obs.float() / 255.0)
        return values


def against(
    plain: Callable[[], object], ours: Callable[[], object], name: str, how: str, *, per: int = 1
) -> Row:
    for _ in range(4):  # an update is captured at the fourth call
        ours()
    return compare(
        name,
        until_done(ours),
        until_done(plain),
        baseline_name="plain torch on the same GPU, default Adam",
        number=5,
        per=per,
        clock="wall",
        target=MAX_CAPTURED_RATIO if "captured" in how else MAX_UPDATE_RATIO,
    )


def beside_cpu(kind: str, batch_size: int, width: int) -> Row:
    """Hold an update on the GPU against the same on the CPU, from a batch on the CPU."""
    return compare(
        f"{kind} update on the GPU, batch {batch_size}, hidden {width}x{width}, beside the CPU",
        until_done(learns(kind, batch_size, width, device="cuda")),
        learns(kind, batch_size, width, device="cpu"),
        baseline_name="ours on the CPU, one thread",
        number=2,
        repeats=7,
        clock="wall",
    )


def learns(kind: str, batch_size: int, width: int, *, device: str) -> Callable[[], object]:
    make, config = KINDS[kind]
    hidden: dict[str, Any] = {"hidden": (width, width)}
    if kind in FROM_TRANSITIONS_OF_BOXES:
        policy = make(PENDULUM, config(**hidden), device=device)
        return partial(policy.learn, draw_batch(0, spec=PENDULUM, size=batch_size))
    if kind == "PPO":
        hidden["batch_size"] = batch_size
    policy = make(CARTPOLE, config(**hidden), device=device)
    if kind == "DQN":
        return partial(policy.learn, draw_batch(0, spec=CARTPOLE, size=batch_size))
    return partial(policy.learn, [square_rollout(batch_size)])


def batch_on_gpu(batch_size: int) -> rl.Transitions:
    batch = draw_batch(0, spec=CARTPOLE, size=batch_size)
    return rl.Transitions(*(getattr(batch, field.name).cuda() for field in fields(batch)))


def square_rollout(batch_size: int) -> rl.Rollout:
    side = math.isqrt(batch_size)
    rollout: rl.Rollout = draw_rollout(0, CARTPOLE, num_steps=side, num_envs=side, ends=0.0)
    return rollout

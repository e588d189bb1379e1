"""Updates of DDPG, TD3 and SAC as others make them: plain torch, and Stable-Baselines3 if there."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from ding_lite.rl import EnvSpec, Transitions
from ding_lite.rl.batch import NumpyArray
from tests.rl.reference_box import PlainDDPG, PlainSAC, PlainTD3, make_mlp


class OwnActor(nn.Module):
    """A user's actor for Pendulum."""

    def __init__(self, num_outputs: int, *, has_tanh: bool) -> None:
        """Make the layers."""
        super().__init__()
        self.net = make_mlp((3, 64, 64, num_outputs))
        self.has_tanh = has_tanh

    def forward(self, obs: Tensor) -> Tensor:
        """Compute the outputs."""
        raw: Tensor = self.net(obs)
        return raw.tanh() if self.has_tanh else raw


class OwnCritic(nn.Module):
    """A user's critic for Pendulum."""

    def __init__(self, spec: EnvSpec) -> None:
        """Make the layers."""
        super().__init__()
        self.net = make_mlp((spec.obs_shape[0] + spec.action_shape[0], 64, 64, 1))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Compute the values."""
        values: Tensor = self.net(torch.cat((obs, action), dim=1))
        return values


SB3 = "stable-baselines3"


def discounted(policy: Any, batch: Transitions, next_value: Tensor) -> Tensor:
    """Compute the targets of a whole batch at once."""
    reward, terminated, num_steps = (
        torch.as_tensor(column) for column in (batch.reward, batch.terminated, batch.num_steps)
    )
    discount: Tensor = policy.config.gamma**num_steps * (1.0 - terminated.float())
    return reward + discount * next_value


def act_noisily(policy: Any, obs: NumpyArray) -> NumpyArray:
    """Choose actions with noise."""
    with torch.no_grad():
        action = torch.tanh(policy.actor(torch.as_tensor(obs)))
        action = (action + torch.randn_like(action) * policy.config.noise).clamp(-1.0, 1.0)
    actions: NumpyArray = (2.0 * action).numpy()
    return actions


class TutorialDDPG(PlainDDPG):
    """DDPG as in a tutorial: modules, and Adam by default."""

    targets, act = discounted, act_noisily


class TutorialTD3(PlainTD3):
    """TD3 as in a tutorial."""

    targets, act = discounted, act_noisily


class TutorialSAC(PlainSAC):
    """SAC as in a tutorial, with the shorter formula of the density."""

    targets = discounted

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Draw actions."""
        mean, log_std = self.actor(obs).chunk(2, dim=1)
        normal = Normal(mean, log_std.clamp(-20.0, 2.0).exp(), validate_args=False)
        unsquashed = normal.rsample()
        action = torch.tanh(unsquashed)
        log_prob = normal.log_prob(unsquashed) - torch.log(1.0 - action**2 + 1e-6)
        return action, log_prob.sum(dim=1)

    def act(self, obs: NumpyArray) -> NumpyArray:
        """Draw actions, within Pendulum's bounds."""
        with torch.no_grad():
            action, _ = self.sample(torch.as_tensor(obs))
        actions: NumpyArray = (2.0 * action).numpy()
        return actions


TUTORIALS: dict[str, Any] = {"ddpg": TutorialDDPG, "td3": TutorialTD3, "sac": TutorialSAC}


def sb3_version() -> str | None:
    """Return the version of Stable-Baselines3; None where it is not installed."""
    return metadata.version(SB3) if find_spec("stable_baselines3") else None


def sb3_update(name: str, batch: Transitions, *, width: int) -> Callable[[], object]:
    """Make the update of Stable-Baselines3, always from the same batch: sampling is not part."""
    sb3: Any = import_module("stable_baselines3")
    logger: Any = import_module("stable_baselines3.common.logger")
    buffers: Any = import_module("stable_baselines3.common.buffers")
    size = len(batch)
    model = getattr(sb3, name.upper())(
        "MlpPolicy",
        "Pendulum-v1",
        batch_size=size,
        buffer_size=1_000,
        policy_kwargs={"net_arch": [width, width]},
        device="cpu",
    )
    torch.set_num_threads(1)
    model.set_logger(logger.configure(None, []))
    columns = [torch.as_tensor(column) for column in (batch.obs, batch.action, batch.next_obs)]
    flags = (
        torch.as_tensor(column).float()[:, None] for column in (batch.terminated, batch.reward)
    )
    samples = buffers.ReplayBufferSamples(*columns, *flags)
    model.replay_buffer.sample = lambda *_, **__: samples
    return lambda: model.train(gradient_steps=1, batch_size=size)


def random_batch(size: int) -> Transitions:
    """Draw transitions as Pendulum's would be."""
    rng = np.random.default_rng(0)
    return Transitions(
        obs=torch.from_numpy(rng.normal(size=(size, 3)).astype(np.float32)),
        action=torch.from_numpy(rng.uniform(-2.0, 2.0, size=(size, 1)).astype(np.float32)),
        reward=torch.from_numpy(-rng.random(size).astype(np.float32)),
        next_obs=torch.from_numpy(rng.normal(size=(size, 3)).astype(np.float32)),
        terminated=torch.zeros(size, dtype=torch.bool),
        truncated=torch.zeros(size, dtype=torch.bool),
        num_steps=torch.ones(size, dtype=torch.int32),
    )

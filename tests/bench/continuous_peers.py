"""Updates of DDPG, TD3 and SAC as tutorials make them, in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from ding_lite.rl import EnvSpec, Transitions
from ding_lite.rl.batch import NumpyArray
from tests.rl.nets import Joins
from tests.rl.reference_box import PlainDDPG, PlainSAC, PlainTD3, make_mlp


def own_actor(num_outputs: int, *, has_tanh: bool) -> nn.Module:
    layers: nn.Sequential = make_mlp((3, 64, 64, num_outputs))
    return layers.append(nn.Tanh()) if has_tanh else layers


def own_critic(spec: EnvSpec) -> nn.Module:
    return Joins(make_mlp((spec.obs_shape[0] + spec.action_shape[0], 64, 64, 1)))


def discounted(policy: Any, batch: Transitions, next_value: Tensor) -> Tensor:
    reward, terminated, num_steps = (
        torch.as_tensor(column) for column in (batch.reward, batch.terminated, batch.num_steps)
    )
    discount: Tensor = policy.config.gamma**num_steps * (1.0 - terminated.float())
    return reward + discount * next_value


def act_noisily(policy: Any, obs: NumpyArray) -> NumpyArray:
    with torch.no_grad():
        action = torch.tanh(policy.actor(torch.as_tensor(obs)))
        action = (action + torch.randn_like(action) * policy.config.noise).clamp(-1.0, 1.0)
    actions: NumpyArray = (2.0 * action).numpy()
    return actions


class TutorialDDPG(PlainDDPG):
    targets, act = discounted, act_noisily


class TutorialTD3(PlainTD3):
    targets, act = discounted, act_noisily


class TutorialSAC(PlainSAC):
    """SAC as in a tutorial, with the shorter formula of the density."""

    targets = discounted

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, dim=1)
        normal = Normal(mean, log_std.clamp(-20.0, 2.0).exp(), validate_args=False)
        unsquashed = normal.rsample()
        action = torch.tanh(unsquashed)
        log_prob = normal.log_prob(unsquashed) - torch.log(1.0 - action**2 + 1e-6)
        return action, log_prob.sum(dim=1)

    def act(self, obs: NumpyArray) -> NumpyArray:
        with torch.no_grad():
            action, _ = self.sample(torch.as_tensor(obs))
        actions: NumpyArray = (2.0 * action).numpy()
        return actions


TUTORIALS: dict[str, Any] = {"ddpg": TutorialDDPG, "td3": TutorialTD3, "sac": TutorialSAC}

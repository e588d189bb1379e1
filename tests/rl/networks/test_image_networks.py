"""The built-in networks of DDPG, TD3 and SAC for images."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ding_lite.rl.networks.conv import CONVS, Conv
from ding_lite.rl.networks.modules import ImageActor, ImageCritics, Inputs
from tests.rl.policies.test_box_policy import EVERY_KIND, PICTURES, make

INPUTS = Inputs(PICTURES.obs_shape, CONVS["small"])


def screens(seed: int, count: int = 16) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (count, *INPUTS.shape), dtype=np.uint8))


def plain_features(module: Any, obs: torch.Tensor) -> torch.Tensor:
    """Compute the features of bytes by the strides and paddings of `small`."""
    x = obs.float() / 255.0
    for layer, conv in zip(module.conv, CONVS["small"], strict=True):
        x = F.relu(F.conv2d(x, layer.weight, layer.bias, conv.stride, conv.padding))
    x = x.flatten(1)
    for layer in module.torso:
        x = F.relu(x @ layer.weight.T + layer.bias)
    return x


@pytest.mark.parametrize("squashes", [False, True])
def test_an_actor_computes_what_plain_layers_do(squashes: bool) -> None:
    actor = ImageActor(INPUTS, (8, 6), 4, activation="relu", squashes=squashes)
    expected = plain_features(actor, screens(0)) @ actor.head.weight.T + actor.head.bias
    expected = expected.tanh() if squashes else expected
    torch.testing.assert_close(actor(screens(0)), expected)


@pytest.mark.parametrize(("hidden", "behind"), [((8, 6), (6,)), ((8,), (8,))])
def test_critics_share_what_they_see_and_differ_behind_the_action(
    hidden: tuple[int, ...], behind: tuple[int, ...]
) -> None:
    critics = ImageCritics(INPUTS, hidden, num_actions=3, num_critics=2, activation="relu")
    action = torch.rand(16, 3)
    features = plain_features(critics.encoder, screens(0))
    expected = []
    for critic in critics.critics:
        x = torch.cat((features, action), dim=1)
        *layers, head = cast(Any, [*critic.children()])
        assert tuple(layer.out_features for layer in layers) == behind
        for layer in layers:
            x = F.relu(x @ layer.weight.T + layer.bias)
        expected.append(x @ head.weight.T + head.bias)
    torch.testing.assert_close(critics(screens(0), action), torch.cat(expected, dim=1))


@EVERY_KIND
def test_the_convolutions_are_those_of_the_settings(kind: str) -> None:
    own = make(kind, PICTURES, convs=(Conv(4, 3, 2),))
    assert own.weights()["conv.0.weight"].shape == (4, 3, 3, 3)
    assert not any("conv" in name for name in make(kind, PICTURES, torso="mlp").weights())

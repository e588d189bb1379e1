import dataclasses
import re

import numpy as np
import pytest
import torch

from ding_lite.errors import ConfigError
from ding_lite.rl import DQN, DQNConfig
from ding_lite.rl.networks.conv import CONVS, Conv, num_features, torso_for
from ding_lite.rl.networks.modules import Inputs
from ding_lite.rl.networks.q_nets import MLPQNetwork, draw_weights, make_q_network
from ding_lite.rl.recorded.network import RecordedQNetwork
from ding_lite.settings.config import as_config
from tests.rl import reference
from tests.rl.rollouts import CARTPOLE, SCREEN

IMAGE = (3, 12, 10)
NATURE = Inputs((4, 84, 84), CONVS["nature"])


def make(kind, *, hidden=(16, 12), dueling=False):
    convs = CONVS["small"] if kind == "images" else ()
    shape = (5,) if kind == "vectors" else IMAGE
    net = make_q_network(Inputs(shape, convs), hidden, num_actions=3, dueling=dueling)
    draw_weights(net.weights, np.random.default_rng(0))
    plain = reference.PlainDQN(
        net.weights.snapshot(), config=DQNConfig(hidden=hidden, dueling=dueling), convs=convs
    )
    return net, plain


def draw_obs(kind, size):
    rng = np.random.default_rng(size)
    if kind == "vectors":
        return rng.normal(size=(size, 5)).astype(np.float32)
    return rng.integers(0, 256, size=(size, *IMAGE), dtype=np.uint8)


KINDS = pytest.mark.parametrize("kind", ["vectors", "flattened", "images"])


@KINDS
@pytest.mark.parametrize("dueling", [False, True])
def test_few_and_many_observations_and_the_module_get_the_same_values(kind, dueling):
    net, plain = make(kind, dueling=dueling)
    obs = draw_obs(kind, 1_500 if kind == "vectors" else 90)
    together = net.values(obs)
    apart = np.concatenate([net.values(obs[i : i + 2]) for i in range(0, len(obs), 2)])
    with torch.no_grad():
        expected = plain.q_values(plain.named, torch.from_numpy(obs)).numpy()
        of_module = net.module(torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(together, apart, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_module, expected, rtol=1e-4, atol=1e-5)
    assert list(dict(net.module.named_parameters())) == list(net.weights.shapes)


def test_first_weights_of_convolutions_are_those_of_torch():
    net = make_q_network(NATURE, (512,), num_actions=18, dueling=False)
    assert len(net.weights.flat) == 1_693_362  # the size of the paper
    draw_weights(net.weights, np.random.default_rng(0))
    inputs = {"conv.0": 4 * 64, "conv.1": 32 * 16, "conv.2": 64 * 9, "torso.0": 3136, "head": 512}
    for name, num_inputs in inputs.items():
        for part in ("weight", "bias"):
            largest = net.weights[f"{name}.{part}"].abs().max()
            assert 0.3 * num_inputs**-0.5 < largest <= num_inputs**-0.5


@pytest.mark.parametrize(
    ("torso", "shape", "convs"),
    [
        ("auto", (7,), ()),
        ("auto", (4, 84, 84), CONVS["nature"]),
        ("auto", (3, 36, 40), CONVS["nature"]),
        ("auto", (3, 35, 40), CONVS["small"]),
        ("auto", (1, 2, 9), CONVS["small"]),
        ("mlp", (4, 84, 84), ()),
        ("small", (4, 84, 84), CONVS["small"]),
        ("nature", (4, 84, 84), CONVS["nature"]),
    ],
)
def test_auto_chooses_the_convolutions_by_image_size(torso, shape, convs):
    assert torso_for(torso, shape, env_id="x") == convs
    network = make_q_network(Inputs(shape, convs), (8,), num_actions=2, dueling=False)
    assert isinstance(network, RecordedQNetwork if convs else MLPQNetwork)
    assert network.values(np.zeros((1, *shape), dtype=np.uint8)).shape == (1, 2)


def test_features_are_counted_as_torch_counts_them():
    for convs in CONVS.values():
        for side in (36, 37, 50, 84):
            images = torch.zeros(1, 2, side, side + 3)
            for conv in convs:
                layer = torch.nn.Conv2d(
                    images.shape[1], conv.channels, conv.kernel, conv.stride, conv.padding
                )
                images = layer(images)
            assert num_features((2, side, side + 3), convs) == images.numel()


@pytest.mark.parametrize("side", [8, 9, 10, 11, 16])
def test_the_small_convolutions_see_every_pixel(side):
    net = make_q_network(
        Inputs((1, side, side), CONVS["small"]), (8,), num_actions=2, dueling=False
    )
    draw_weights(net.weights, np.random.default_rng(0))
    dark = np.zeros((1, 1, side, side), dtype=np.uint8)
    lit = np.repeat(dark, side * side, axis=0)
    lit.reshape(side * side, -1)[np.arange(side * side), np.arange(side * side)] = 255
    assert (net.values(lit) != net.values(dark)).any(axis=1).all()


def test_convolutions_are_settings_that_are_checked():
    given = {"convs": [{"channels": 4, "kernel": 3, "stride": 1, "padding": 1}]}
    config = as_config(DQNConfig, given)
    assert config.convs == (Conv(4, 3, 1, padding=1),)
    assert DQN(SCREEN, config).weights()["conv.0.weight"].shape[0] == 4
    assert as_config(DQNConfig, dataclasses.asdict(config)) == config
    with pytest.raises(ConfigError, match="no image"):
        DQN(CARTPOLE, config)
    with pytest.raises(ConfigError, match="too small"):
        DQN(SCREEN, DQNConfig(convs=CONVS["nature"]))
    with pytest.raises(ConfigError, match="`kernel` is 0"):
        Conv(4, 0, 1)
    example = re.escape("such as `[{channels = 1, kernel = 1, stride = 1}]` in a TOML file, was")
    with pytest.raises(ConfigError, match=f"`convs` is .*; a list of `Conv`, {example} expected"):
        as_config(DQNConfig, {"convs": [{"channels": 4, "kernels": 3}]})
    for wrong in ("small", Conv(4, 3, 1), ((4, 3, 1),)):
        with pytest.raises(ConfigError, match=r"`convs` is .*such as \(Conv\(channels=16"):
            DQNConfig(convs=wrong)  # type: ignore[arg-type]

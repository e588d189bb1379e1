"""The written-out gradients of actors and critics for box actions are those of autograd."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal
from torch.nn import functional as F

from ding_lite.rl.networks.action_values import ActionValues
from ding_lite.rl.networks.box_actors import MLPBody, SquashedGaussianActor
from ding_lite.rl.networks.modules import ImageActor, Inputs
from ding_lite.rl.networks.q_nets import draw_weights
from ding_lite.rl.weights.flat import FlatWeights

NUM_OBS, NUM_ACTIONS, BATCH = 5, 3, 11


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def recorded(weights):
    return {name: weights[name].clone().requires_grad_() for name in weights.shapes}


def test_stacked_critics_are_initialised_as_layers_of_torch():
    weights = FlatWeights(ActionValues.shapes(2, (NUM_OBS + NUM_ACTIONS, 64, 64)))
    draw_weights(weights, np.random.default_rng(0), first_input=2)
    for layer, num_inputs in enumerate((NUM_OBS + NUM_ACTIONS, 64, 64)):
        for part in ("weight", "bias"):
            bound = 1.0 / np.sqrt(num_inputs)
            assert float(weights[f"{layer}.{part}"].abs().max()) <= bound
        assert float(weights[f"{layer}.weight"].abs().max()) > 0.9 * bound
        assert (weights[f"{layer}.weight"][0] != weights[f"{layer}.weight"][1]).all()


def make_actor(actor, *, hidden=(8, 6)):
    num_outputs = actor.outputs_per_action * NUM_ACTIONS
    module = ImageActor(Inputs((NUM_OBS,)), hidden, num_outputs, activation="relu", squashes=False)
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    weights, grads = FlatWeights(shapes), FlatWeights(shapes)
    draw_weights(weights, np.random.default_rng(0))
    return actor(MLPBody(weights, grads, depth=len(hidden))), weights, grads


def plain_outputs(named, obs):
    for layer in range(2):
        weight, bias = named[f"torso.{layer}.weight"], named[f"torso.{layer}.bias"]
        obs = F.linear(obs, weight, bias).relu()
    return F.linear(obs, named["head.weight"], named["head.bias"])


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_gradients_of_a_squashed_gaussian_are_those_of_autograd(scale):
    """With the larger scale the log of std exceeds both limits at times."""
    actor, weights, grads = make_actor(SquashedGaussianActor)
    weights["head.weight"][NUM_ACTIONS:] *= scale
    weights["head.bias"][NUM_ACTIONS:] *= scale
    obs, noise = normal(BATCH, NUM_OBS), 0.3 * normal(BATCH, NUM_ACTIONS, seed=1)
    grad_BA, named = normal(BATCH, NUM_ACTIONS, seed=2), recorded(weights)
    exact = {name: tensor.double() for name, tensor in named.items()}  # z - mean may be tiny
    mean, raw = plain_outputs(exact, obs.double()).chunk(2, dim=1)
    log_std = raw.clamp(-20.0, 2.0)
    outside = (raw != log_std).float().mean()
    assert outside == 0.0 if scale == 1.0 else 0.1 < outside < 0.9
    z = mean + log_std.exp() * noise
    log_prob = Normal(mean, log_std.exp()).log_prob(z) - (1.0 - z.tanh() ** 2).log()
    ((grad_BA * z.tanh()).sum() + 0.7 * log_prob.sum()).backward()

    sample, outputs = actor.sample_saving(obs, noise[None])
    expected_BA = z.tanh().float().detach()
    np.testing.assert_allclose(sample.action_GBA[0], expected_BA, rtol=1e-5, atol=1e-6)
    expected_B = log_prob.sum(1).float().detach()
    np.testing.assert_allclose(sample.log_prob_GB[0], expected_B, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        actor.draw(obs.numpy(), noise.numpy()), sample.action_GBA[0], atol=1e-5
    )
    best = mean.tanh().float().detach()
    np.testing.assert_allclose(actor.act(obs.numpy()), best, rtol=1e-5, atol=1e-6)
    actor.backward(outputs, sample.backward(grad_BA[None], log_prob_grad=0.7))
    for name, tensor in named.items():
        torch.testing.assert_close(grads[name], tensor.grad, rtol=1e-3, atol=1e-4)

"""Growth preserves the function of networks and the moments of Adam; shrunken networks learn on.

The networks are those of this package: layers, convolutions, and actors and critics with memory.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from hypothesis import given, settings, strategies as st

from ding_lite.evolution.agent import Agent, make_agent
from ding_lite.evolution.growth import convolutions
from ding_lite.evolution.growth.layers import IDENTITIES
from ding_lite.evolution.growth.parameter_layout import layout_of
from ding_lite.middleware import collect, train
from ding_lite.rl import DQN, PPO, PPOConfig, make_envs
from ding_lite.rl.networks.activations import Activation
from ding_lite.testing import run_step
from tests.evolution.conftest import assert_carried, assert_close, only
from tests.evolution.kinds import (
    IMAGES,
    KINDS,
    MAP,
    MEMORIES,
    OWN,
    PARTS,
    VECTORS,
    computes,
    learned,
)
from tests.rl.rollouts import lesson

GROW: dict[str, Any] = {"remove_prob": 0.0, "num_nodes": (1, 5, 16), "min_nodes": 1}
UNITS: dict[str, Any] = {"new_layer_prob": 0.0, "num_nodes": (3,), "min_nodes": 1}


def mutated(agent: Agent, what: str, **more: Any) -> Agent:
    """Return a copy with a mutation of the architecture that is described in these words."""
    mutation, told = only("architecture", **more), ""
    while not told.startswith(what):
        twin = agent.clone()
        told = mutation.mutate(twin)
    return twin


def changed(agent: Agent, change: Any, layer: int, **more: Any) -> Agent:
    twin = agent.clone()
    layout, state = layout_of(twin.policy), twin.policy.state_dict()
    tensors = layout.open(state)
    convs, images = layout.images
    new_convs = convolutions.change_convs(tensors, images, convs, layer, partial(change, **more))
    policy: Any = twin.policy
    new = type(policy)(policy.spec, replace(policy.config, convs=new_convs))
    new.load_state_dict(layout.close(tensors, state, new.state_dict()))
    twin.replace_policy(new)
    return twin


resized: Callable[..., Agent] = partial(
    changed, change=convolutions.resize_channels, rng=np.random.default_rng(0)
)


# -- the function ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", VECTORS)
@settings(max_examples=4)
@given(
    hidden=st.lists(st.integers(2, 40), min_size=1, max_size=3).map(tuple),
    seed=st.integers(0, 10_000),
    new_layer_prob=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_growth_of_layers_preserves_the_function_of_every_network(
    kind: str, hidden: tuple[int, ...], seed: int, new_layer_prob: float
) -> None:
    agent = learned(kind, hidden=hidden, seed=seed)
    grow = only("architecture", **GROW, new_layer_prob=new_layer_prob, max_layers=5, seed=seed)
    before, sizes = computes(agent), [agent.config.hidden]
    for _ in range(3):
        grow.mutate(agent)
        sizes.append(agent.config.hidden)
        # A layer of tanh is nearly linear only: x is off by 8.2e-6 at most.
        is_tanh = agent.config.activation == "tanh"
        atol = 1e-4 if is_tanh and len(agent.config.hidden) > len(hidden) else 1e-5
        assert_close(computes(agent), before, atol=atol)
    assert all(sum(small) < sum(large) for small, large in pairwise(sizes))


@pytest.mark.parametrize("kind", [*IMAGES, *MEMORIES])
def test_growth_preserves_the_function_of_networks_with_convolutions_or_memory(kind: str) -> None:
    agent = learned(kind)
    grow = only("architecture", **GROW, new_layer_prob=0.3, max_layers=4, seed=6)
    before, told = computes(agent), []
    for _ in range(6):  # changes all kinds of layers
        told.append(grow.mutate(agent))
        assert_close(computes(agent), before, atol=1e-4)
    assert max(len(agent.config.hidden), len(agent.config.convs or ())) <= 4
    grown = {"convs"} if kind in IMAGES else {"memory"}
    assert {one.split()[0] for one in told} >= grown | {"hidden"}

    twin = learned(kind, updates=0)
    twin.load_state_dict(agent.state_dict())
    assert twin.config == agent.config
    assert_close(computes(twin), computes(agent), atol=0.0)
    agent.learn(lesson(agent.policy, 9))


@pytest.mark.parametrize("kind", ["dqn with own convolutions", "r2d2 of parts", "td3 of images"])
def test_convolutions_are_added_and_removed_without_a_change_of_the_function(kind: str) -> None:
    agent = learned(kind)
    before = computes(agent)
    for layer in range(3):
        wide = resized(agent, layer=layer, count=4)
        large = changed(agent, convolutions.grow_kernel, layer)
        deep = changed(agent, convolutions.add_convolution, layer)
        for grown, twin in (
            (wide, resized(wide, layer=layer, count=-4)),
            (large, changed(large, convolutions.shrink_kernel, layer)),
            (deep, changed(deep, convolutions.remove_convolution, layer + 1)),
        ):
            assert grown.config.convs != twin.config.convs == OWN
            assert_close(computes(grown), before)
            assert_close(computes(twin), before)


def test_an_identity_of_tanh_is_off_by_its_term_of_fifth_order() -> None:
    identity, x = IDENTITIES["tanh"], np.linspace(-1.0, 1.0, 101)
    found = sum(r * np.tanh(w * x) for w, r in zip(identity.weight, identity.read, strict=True))
    np.testing.assert_allclose(found - x, -8 / 15 * x**5 / 16**4, atol=1e-7)


def test_four_more_layers_of_tanh_preserve_a_network_of_large_weights() -> None:
    agent = learned("dqn", hidden=(8, 8), activation="tanh")
    for weights in agent.policy.flat_weights:
        weights.flat.mul_(3.0)
    before = computes(agent)
    grow = only("architecture", **GROW, new_layer_prob=1.0, max_layers=6)
    for _ in range(4):
        grow.mutate(agent)
    assert len(agent.config.hidden) == 6
    assert_close(computes(agent), before, atol=1e-4)


# -- the other way round -----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_shrunken_networks_go_on_learning(kind: str) -> None:
    shape: dict[str, Any] = {"hidden": (24, 16, 12)} if kind in VECTORS else {}
    agent = learned(kind, **shape)
    before = sum(tensor.numel() for tensor in agent.weights().values())
    shrink = only(
        "architecture", remove_prob=1.0, new_layer_prob=0.4, num_nodes=(3, 6), min_nodes=4, seed=3
    )
    told = [shrink.mutate(agent) for _ in range(12 if kind in VECTORS else 6)]
    if kind in VECTORS:
        assert len(agent.config.hidden) == 1
        assert agent.config.hidden[0] < 24
        assert told[-1] == "none" or told[-1].startswith("hidden")
    assert sum(tensor.numel() for tensor in agent.weights().values()) < before
    agent.learn(lesson(agent.policy, 0))
    assert all(np.isfinite(values).all() for values in computes(agent))


@pytest.mark.parametrize("activation", get_args(Activation))
def test_removing_an_identity_layer_preserves_the_function(activation: Activation) -> None:
    agent = learned("dqn", hidden=(16, 16), activation=activation)
    before = computes(agent)
    only("architecture", new_layer_prob=1.0, remove_prob=0.0, seed=4).mutate(agent)
    assert len(agent.config.hidden) == 3
    for seed in range(20):  # until that very layer is drawn
        twin = agent.clone()
        only("architecture", new_layer_prob=1.0, remove_prob=1.0, seed=seed).mutate(twin)
        if np.allclose(computes(twin)[0], before[0], atol=1e-5):
            break
    assert_close(computes(twin), before)


@pytest.mark.parametrize(
    ("kind", "what", "few", "many"),
    [
        ("dqn", "hidden", (64, 64), (67, 64)),
        *((kind, "memory", 10, 13) for kind in ("ppo, lstm", "r2d2, lstm", "r2d2, gru")),
    ],
)
def test_units_that_were_added_are_removed_first(kind: str, what: str, few: Any, many: Any) -> None:
    agent = learned(kind)
    wide = mutated(agent, f"{what} {few} -> {many}", remove_prob=0.0, **UNITS)
    narrow = mutated(wide, f"{what} {many} -> {few}", remove_prob=1.0, **UNITS)
    assert_close(computes(narrow), computes(agent))


# -- moments of Adam ---------------------------------------------------------------------


def moments_of(agent: Agent) -> Any:
    return layout_of(agent.policy).open(agent.policy.state_dict()).moments


@pytest.mark.parametrize("kind", ["dqn", "td3", "sac"])
def test_growth_of_layers_keeps_the_moments_of_the_old_part(kind: str) -> None:
    agent = learned(kind, hidden=(8, 6), updates=3)
    wide = mutated(agent, "hidden", remove_prob=0.0, **UNITS)
    assert_carried(moments_of(agent), moments_of(wide))
    before, after = agent.policy.state_dict(), wide.policy.state_dict()
    for key in (key for key in before if key.endswith("adam")):
        assert after[key]["num_updates"] == before[key]["num_updates"]


@pytest.mark.parametrize("kind", ["dqn of images", "sac of parts"])
def test_growth_of_convolutions_keeps_the_moments_of_the_old_part(kind: str) -> None:
    agent = learned(kind)
    num_grown = assert_carried(moments_of(agent), moments_of(resized(agent, layer=0, count=2)))
    assert num_grown == 3 * len(layout_of(agent.policy).images[1])


def test_a_new_layer_leaves_the_numbers_of_updates_of_the_others() -> None:
    agent = learned("dqn with own convolutions")
    policy: Any = agent.policy
    [*policy.module.parameters()][-1].requires_grad_(False)
    agent.learn(lesson(policy, 2))
    before = agent.policy.state_dict()["adam"]["num_updates"].tolist()
    assert before == [3.0] * (len(before) - 1) + [2.0]
    deep = changed(agent, convolutions.add_convolution, 0)
    assert deep.policy.state_dict()["adam"]["num_updates"].tolist() == [3.0, 3.0, *before]


def test_growth_of_memory_keeps_the_moments_of_the_old_units() -> None:
    agent = learned("ppo, gru of a box")
    wide = mutated(agent, "memory", remove_prob=0.0, **UNITS)
    [old], [new] = moments_of(agent), moments_of(wide)
    name = "actor.memory.weight_hh"
    for was, now, is_fresh in zip(old, new, (False, True), strict=True):
        gates = now[name].reshape(3, -1, now[name].shape[1])
        torch.testing.assert_close(gates[:, :10, :10].flatten(0, 1), was[name])
        assert bool(gates[:, 10:].any()) == is_fresh


# -- what mutations report, and what they leave ------------------------------------------


@pytest.mark.parametrize(
    ("kind", "setting"),
    [("dueling dqn of images", "activation"), ("ppo of images", "image_activation")],
)
def test_an_activation_mutation_of_an_image_policy_is_what_it_reports(kind, setting):
    agent = learned(kind)
    before, config = computes(agent), agent.config
    name, old, _, new = only("activation").mutate(agent).split()
    assert name == setting
    assert getattr(config, name) == old != new
    assert agent.config == replace(config, **{name: new})
    pairs = zip(computes(agent), before, strict=True)
    assert all(np.abs(now - was).max() > 1e-4 for now, was in pairs)


def test_images_with_convolutions_of_different_sizes_keep_them() -> None:
    large = Box(0, 255, (84, 84, 1), dtype=np.uint8)
    agent = Agent(DQN(replace(PARTS, obs_space=Dict(camera=large, map=MAP))))
    assert all(only("architecture", seed=k).mutate(agent)[:6] == "hidden" for k in range(4))


def test_a_collector_takes_a_memory_of_the_new_width() -> None:
    with make_envs("CartPole-v1", 4, mode="sync") as envs:
        config = PPOConfig(memory="lstm", hidden=(8,), memory_size=6)
        agent = make_agent(PPO(envs.spec, config))
        collects, trains = collect(agent, envs, unroll=8), train(agent)
        for _ in range(2):
            ctx, _ = run_step(collects)
            (rollout,) = ctx.trajectories
            assert rollout.state.shape == (4, 4 * agent.config.memory_size)
            run_step(trains, trajectories=ctx.trajectories)
            agent.replace_policy(mutated(agent, "memory", remove_prob=0.0, **UNITS).policy)
        assert agent.config.memory_size == 12

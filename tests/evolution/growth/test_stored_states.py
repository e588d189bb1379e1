"""R2D2 grows and shrinks its memory, and learns on from states that were stored before."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from ding_lite import Task, middleware as mw
from ding_lite.evolution import Agent, Population
from ding_lite.rl import (
    R2D2,
    EpisodeBuffer,
    R2D2Config,
    Sequences,
    load_checkpoint,
    make_envs,
    save_checkpoint,
)
from ding_lite.rl.spec import EnvSpec
from tests.evolution.conftest import only
from tests.rl.nets import GrowingLeaky

GROW: dict[str, Any] = {"num_nodes": (1, 3), "min_nodes": 1, "max_layers": 5}
Learned = tuple[Agent, EpisodeBuffer]
SMALL = R2D2Config(hidden=(6,), memory_size=5, batch_size=8, sequence_length=6, burn_in=3)


@pytest.fixture(scope="module", params=["lstm", "gru"])
def trained(spec: EnvSpec, request: pytest.FixtureRequest) -> Learned:
    """Make an agent that has learned a little, and the episodes that it has learned from."""
    agent = Agent(R2D2(spec, replace(SMALL, memory=request.param)))
    state_size = agent.policy.state_size
    with make_envs("CartPole-v1", 4, mode="sync") as envs, Task() as task:
        episodes = EpisodeBuffer(spec, capacity=2_000, num_envs=4, state_size=state_size)
        task.use(mw.collect(agent, envs, steps=16))
        task.use(mw.add_to(episodes))
        task.use(mw.train(agent, episodes))
        task.run(max_step=30)
    return agent, episodes


@pytest.fixture
def learned(trained: Learned) -> Learned:
    agent, episodes = trained
    return agent.clone(), episodes


def sample(episodes: EpisodeBuffer) -> Sequences:
    return episodes.sample(16, length=6, burn_in=3)


def loss_and_values(agent: Agent, batch: Sequences) -> tuple[float, float]:
    """Return the loss and the mean value of a batch, which network and target make of it."""
    policy: Any = agent.policy.clone()
    _, metrics = policy.gradients(batch)
    return metrics["loss"], metrics["q_mean"]


def grown_until(agent: Agent, what: str, **settings: Any) -> str:
    mutation = only("architecture", **{**GROW, **settings}, seed=1)
    while not (told := mutation.mutate(agent)).startswith(what):
        pass
    return told


def test_growth_preserves_the_loss_of_stored_sequences(learned: Learned) -> None:
    agent, episodes = learned
    batch = sample(episodes)
    assert np.abs(np.asarray(batch.state)).max() > 0.01
    before, told = loss_and_values(agent, batch), []
    grow = only("architecture", **GROW, remove_prob=0.0, new_layer_prob=0.3)
    for _ in range(10):
        told.append(grow.mutate(agent))
        assert loss_and_values(agent, batch) == pytest.approx(before, abs=1e-4)
    assert {one.split()[0] for one in told} == {"hidden", "memory"}
    assert agent.config.memory_size > 5
    assert agent.learn(batch)["loss"] == pytest.approx(before[0], abs=1e-4)


def test_a_network_of_a_user_grows_its_memory_and_learns_from_stored_states(spec: EnvSpec) -> None:
    config = R2D2Config(batch_size=8, sequence_length=6, burn_in=3)
    agent = Agent(R2D2(spec, config, network=lambda _: GrowingLeaky()))
    narrow = agent.clone()
    with make_envs("CartPole-v1", 4, mode="sync") as envs, Task() as task:
        episodes = EpisodeBuffer(spec, capacity=2_000, num_envs=4, state_size=5)
        task.use(mw.collect(agent, envs, steps=16))
        task.use(mw.add_to(episodes))
        task.use(mw.train(agent, episodes))
        task.run(max_step=20)
        batch = sample(episodes)
        before = loss_and_values(agent, batch)
        only("architecture").mutate(agent)
        assert loss_and_values(agent, batch) == pytest.approx(before, abs=1e-5)
        task.run(max_step=20)
    grown: Any = agent.policy
    assert episodes.state_size == grown.state_size == grown.module.state_size > 5
    assert narrow.learn(sample(episodes))["loss"] > 0.0


def test_agents_of_several_widths_share_a_replay_that_is_saved(tmp_path: Any) -> None:
    with make_envs("CartPole-v1", 4, mode="sync") as envs, Task() as task:
        population = Population.of(R2D2, envs.spec, size=2, config=SMALL)
        episodes = EpisodeBuffer(envs.spec, capacity=2_000, num_envs=4, state_size=10)

        def learn(agent: Agent) -> list[Any]:
            add, train = mw.add_to(episodes), mw.train(agent, episodes)
            return [mw.collect(agent, envs, steps=40), add, train]

        task.use(mw.for_each(population, learn))
        task.run(max_step=5)
        grown_until(population[0], "memory", remove_prob=0.0, new_layer_prob=0.0)
        grown_until(population[1], "memory", remove_prob=1.0, new_layer_prob=0.0)
        grown, shrunken = cast(R2D2, population[0].policy), cast(R2D2, population[1].policy)
        widest = grown.state_size
        assert widest > 10 > shrunken.state_size
        task.run(max_step=10)
        assert episodes.state_size == widest
        assert min(grown.train_iter, shrunken.train_iter) > 5

    save_checkpoint(tmp_path, episodes.state_dict())
    other = EpisodeBuffer(envs.spec, capacity=2_000, num_envs=4, state_size=10)
    other.load_state_dict(load_checkpoint(tmp_path).state)
    assert other.state_size == widest
    np.testing.assert_array_equal(sample(other).state, sample(episodes).state)
    assert other.memory_bytes == episodes.memory_bytes

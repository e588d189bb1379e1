"""Training: how often, on what, and what happens when it goes wrong."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError, NonFiniteError
from ding_lite.evolution import Agent, Population, Search
from ding_lite.rl import A2C, DQN, PPO, DQNConfig, Envs, NStep, PPOConfig, ReplayBuffer, Transitions
from ding_lite.rl.checkpoint.save_load import load_checkpoint
from ding_lite.rl.replay.prioritized import PrioritizedReplay
from ding_lite.runtime import Context, Middleware
from ding_lite.testing import run_step
from tests.middleware.running import run_steps


def flat(policy: DQN | A2C) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in policy.weights().values()])


@pytest.fixture
def filled(envs: Envs, replay: ReplayBuffer) -> ReplayBuffer:
    run_step(mw.random_warmup(envs, replay, steps=200))
    return replay


def test_a_step_makes_as_many_updates_as_asked(policy: DQN, filled: ReplayBuffer) -> None:
    before = flat(policy)
    task = run_steps(mw.train(policy, filled, updates=3), steps=4)

    assert task.ctx.train_iter == policy.train_iter == 12
    assert task.ctx.metrics["loss"] == task.ctx.train_output["loss"]
    assert len(task.ctx.train_data) == policy.config.batch_size
    assert not torch.equal(before, flat(policy))


@pytest.mark.parametrize(
    ("updates", "expected"),
    [(0.4, [0, 0, 1, 1, 2, 2, 2, 3, 3, 4]), (1.5, [1, 3, 4, 6]), (0.1, [0] * 9 + [1]), (2, [2, 4])],
)
def test_fractions_of_updates_add_up(policy: DQN, filled, updates: float, expected) -> None:
    made: list[int] = []
    train = mw.train(policy, filled, updates=updates)
    run_steps(train, lambda ctx: made.append(ctx.train_iter), steps=len(expected))
    assert made == expected


def test_nothing_is_learned_from_less_than_a_batch_and_counting_goes_on(policy, envs, replay):
    before = flat(policy)
    run_step(mw.random_warmup(envs, replay, steps=4))
    ctx, _ = run_step(mw.train(policy, replay))

    assert ctx.train_iter == 0
    assert "loss" not in ctx.metrics
    assert torch.equal(before, flat(policy))
    run_step(mw.random_warmup(envs, replay, steps=8))
    assert run_step(mw.train(policy, replay), train_iter=41)[0].train_iter == 42


@pytest.mark.parametrize(
    ("stages", "is_filled"),
    [
        ("collect train", False),
        ("collect add_elsewhere train", False),
        ("collect add train", True),
        ("collect train add", True),
    ],
)
def test_a_replay_that_stays_empty_is_told_once(policy, envs, replay, caplog, stages, is_filled):
    made = {
        "collect": mw.collect(policy, envs, steps=100),
        "train": mw.train(policy, replay),
        "add": mw.add_to(replay),
        "add_elsewhere": mw.add_to(ReplayBuffer(envs.spec, capacity=1_000)),
    }
    run_steps(*(made[stage] for stage in stages.split()), steps=5)
    assert (policy.train_iter > 0) == is_filled
    assert ["mw.add_to(replay)" in line for line in caplog.messages] == [True] * (not is_filled)


def test_without_a_replay_it_learns_from_the_steps_transitions(envs: Envs) -> None:
    policy = DQN(envs.spec, DQNConfig(hidden=(16,), n_step=3))
    # The first two steps complete no transition of three.
    task = run_steps(mw.collect(policy, envs, steps=4), mw.train(policy), steps=5)
    assert task.ctx.train_iter == policy.train_iter == 3
    assert task.ctx.train_data is task.ctx.transitions


def test_a_list_of_transitions_needs_a_replay(policy: DQN, filled: ReplayBuffer) -> None:
    batch = filled.sample(3)
    with pytest.raises(ConfigError, match=r"a list of 2 batches.*`mw\.add_to\(replay\)`"):
        run_step(mw.train(policy), transitions=[batch, batch])


def test_a_loss_that_is_not_finite_keeps_the_last_good_checkpoint(policy, filled, tmp_path) -> None:
    def poison(ctx: Context) -> None:
        if ctx.total_step == 3:
            policy.load_weights({k: v * torch.nan for k, v in policy.weights().items()})

    with pytest.raises(NonFiniteError, match=r"update 7\b") as caught:
        run_steps(
            poison,
            mw.train(policy, filled, updates=2),
            mw.checkpoint(policy, tmp_path, every=2),
            steps=10,
        )

    assert "in middleware `train` (2nd of 3), step 3" in "".join(caught.value.__notes__)
    saved = load_checkpoint(tmp_path)
    assert saved.meta["train_iter"] == 4
    assert all(torch.isfinite(t).all() for t in saved.state["q_net"].values())


@pytest.mark.parametrize("is_on_policy", [False, True])
def test_data_that_is_not_finite_is_named(envs: Envs, is_on_policy: bool) -> None:
    policy: Any = A2C(envs.spec) if is_on_policy else DQN(envs.spec, {"n_step": 1})
    key = "trajectories" if is_on_policy else "transitions"

    def poison(ctx: Context) -> None:
        data = ctx[key][0] if is_on_policy else ctx[key]
        data.reward[-1] = np.nan

    collect = mw.collect(policy, envs, **({"unroll": 4} if is_on_policy else {"steps": 4}))
    with pytest.raises(NonFiniteError, match=r"not finite, too: `reward` of the batch"):
        run_steps(collect, poison, mw.train(policy), steps=1)


@pytest.fixture
def prioritized(envs: Envs) -> PrioritizedReplay:
    replay = PrioritizedReplay(envs.spec, capacity=1_000, beta=0.25)
    run_step(mw.random_warmup(envs, replay, steps=200))
    return replay


def values_of(replay: PrioritizedReplay) -> list[float]:
    values: list[float] = replay.state_dict()["values"].tolist()
    return values


def test_errors_of_the_last_batch_become_priorities(policy, prioritized) -> None:
    task = run_steps(
        mw.train(policy, prioritized, batch_size=32), mw.update_priorities(prioritized), steps=1
    )

    errors = task.ctx.train_output["td_error"]
    values = values_of(prioritized)
    for serial, error in zip(task.ctx.train_data.serial.tolist(), errors.tolist(), strict=True):
        assert values[serial] == pytest.approx((error + 1e-6) ** 0.6, rel=1e-5)
    assert sum(value != 1.0 for value in values) == len(set(task.ctx.train_data.serial.tolist()))
    assert set(task.ctx.metrics) == {"loss", "q_mean"}


def test_errors_of_earlier_batches_of_a_step_are_given_back_at_once(policy, prioritized) -> None:
    run_step(mw.train(policy, prioritized, batch_size=100, updates=3))
    changed = sum(value != 1.0 for value in values_of(prioritized))
    assert 100 < changed <= 200  # of two batches; the third is for `update_priorities`


def test_beta_follows_the_env_step_and_elsewhere_the_update(policy, prioritized) -> None:
    for serial in range(60):  # priorities that make beta visible in the weights
        batch = prioritized.sample(1)
        prioritized.update_priorities(batch, np.array([1.0 + 3.0 * (serial % 2)]))
    betas = []

    def beta(progress: float) -> float:
        betas.append(progress)
        return 0.5

    train = mw.train(policy, prioritized, beta=beta)
    ctx, _ = run_step(train, env_step=700, train_iter=3)
    assert {round(w, 3) for w in ctx.train_data.weight.tolist()} <= {
        round(((1.0 + 1e-6) / high) ** (0.6 * 0.5), 3) for high in (1.0, 4.0)
    }
    run_step(train, train_iter=3)
    assert betas == [700, 3]


def test_without_beta_the_replays_own_counts(policy: DQN, envs: Envs) -> None:
    replay = PrioritizedReplay(envs.spec, capacity=100, beta=0.0)
    run_step(mw.random_warmup(envs, replay, steps=40))
    replay.update_priorities(replay.sample(8), np.arange(8.0) + 1.0)
    ctx, _ = run_step(mw.train(policy, replay))
    assert set(ctx.train_data.weight.tolist()) == {1.0}


def test_errors_that_a_replay_or_a_policy_does_not_say_are_noticed(policy, filled, prioritized):
    silent = Silent(policy.spec, policy.config)
    for train, fault in (
        (mw.train(policy, filled), "is a Transitions, which says nothing of prior"),
        (mw.train(silent, prioritized), r"has \['loss'\] and no `td_error`"),
    ):
        with pytest.raises(ConfigError, match=fault):
            run_steps(train, mw.update_priorities(prioritized), steps=1)


def test_priorities_of_one_replay_are_not_written_to_another(policy, prioritized) -> None:
    other = PrioritizedReplay(policy.spec, capacity=1_000)
    trains = mw.train(policy, prioritized, batch_size=100), mw.train(policy, other)
    updates = mw.update_priorities(prioritized), mw.update_priorities(other)
    # The empty `other` is not trained from, and not updated.
    run_steps(trains[0], updates[0], trains[1], updates[1], steps=1)
    other.add(prioritized.sample(50))
    before = [values_of(prioritized), values_of(other)]
    with pytest.raises(ConfigError, match=r"another replay.*behind the `train` with the same"):
        run_steps(*trains, *updates, steps=1)
    assert [values_of(prioritized), values_of(other)] == before


class Silent(DQN):
    """A policy that learns, and says little of it."""

    def learn(self, batch: Transitions) -> dict[str, Any]:
        return {"loss": super().learn(batch)["loss"]}


def test_rewards_of_a_replay_are_normalised_by_what_was_measured_until_now(policy, envs) -> None:
    replay, twin = (ReplayBuffer(envs.spec, capacity=1_000) for _ in range(2))
    train = mw.train(policy, replay, normalize_rewards=envs)
    assert envs.reward_norm is not None
    assert envs.reward_norm.gamma == policy.gamma
    scales = []
    for _ in range(2):
        for _ in range(30):
            transitions = NStep(1, 1.0, num_envs=envs.num_envs)(envs.step(envs.random_actions()))
            replay.add(transitions)
            twin.add(transitions)
        ctx, _ = run_step(train)
        scales.append(envs.reward_norm.scale)
        raw = twin.sample(policy.config.batch_size).reward
        np.testing.assert_allclose(ctx.train_data.reward, raw * scales[-1], rtol=1e-6)
    assert scales[0] != scales[1]


def test_agents_of_a_population_learn_together_from_normalised_rewards(envs: Envs) -> None:
    config = DQNConfig(hidden=(16,), batch_size=16)
    population = Population.of(DQN, envs.spec, Search(), size=3, config=config)
    alone = [agent.policy.clone() for agent in population]
    replay, twin = (ReplayBuffer(envs.spec, capacity=1_000) for _ in range(2))
    run_step(mw.random_warmup(envs, replay, steps=200))
    twin.load_state_dict(replay.state_dict())

    def learn(agent: Agent) -> list[Middleware]:
        return [mw.train(agent, replay, normalize_rewards=envs)]

    train = mw.for_each(population, learn)
    for _ in range(40):
        envs.step(envs.random_actions())
    run_step(train)
    assert envs.reward_norm is not None
    batch = envs.reward_norm(twin.sample(3 * 16))
    assert envs.reward_norm.scale < 0.5
    for place, policy in enumerate(alone):
        rows = slice(16 * place, 16 * place + 16)
        columns = [getattr(batch, field.name)[rows] for field in fields(Transitions)]
        policy.learn(Transitions(*columns))
        learned = population[place].weights()
        assert all(torch.allclose(one, learned[name]) for name, one in policy.weights().items())


def test_every_update_of_a_rollout_is_counted(envs: Envs) -> None:
    policy = PPO(envs.spec, PPOConfig(hidden=(16,), epochs=3, batch_size=10))
    task = run_steps(mw.collect(policy, envs, unroll=10), mw.train(policy), steps=2)
    assert task.ctx.train_iter == policy.train_iter == 2 * 3 * 4
    assert task.ctx.train_data is task.ctx.trajectories
    assert task.ctx.metrics["loss"] == task.ctx.train_output["loss"]


def test_nothing_is_learned_without_rollouts_or_while_training_is_postponed(envs: Envs) -> None:
    policy = A2C(envs.spec)
    [rollout] = run_step(mw.collect(policy, envs, unroll=4))[0].trajectories
    before = flat(policy)
    steps: list[dict[str, Any]] = [
        {},
        {"trajectories": []},
        {"trajectories": [rollout], "warming_up": True},
    ]
    for values in steps:
        ctx, _ = run_step(mw.train(policy), **values)
        assert (ctx.train_iter, "train_output" in ctx) == (0, False)
    with pytest.raises(ConfigError, match=r"A2C learns from rollouts.*unroll=\.\.\."):
        run_steps(mw.collect(policy, envs, steps=8), mw.train(policy), steps=1)
    assert torch.equal(before, flat(policy))


def test_a_policy_without_a_batch_size_is_asked_for_one(envs: Envs, replay: ReplayBuffer) -> None:
    class Plain(DQN):
        config: Any

    policy = Plain(envs.spec)
    mw.train(policy, replay)
    policy.config = object()
    with pytest.raises(ConfigError, match=r"Plain says nothing of how many .* `batch_size`"):
        mw.train(policy, replay)
    mw.train(policy, replay, batch_size=8)


@pytest.mark.parametrize("is_on_policy", [False, True])
def test_a_train_before_its_collect_warns_once(envs, caplog, is_on_policy) -> None:
    policy: Any = A2C(envs.spec) if is_on_policy else DQN(envs.spec)
    collect = mw.collect(policy, envs, **({"unroll": 4} if is_on_policy else {"steps": 4}))
    assert run_steps(collect, mw.train(policy), steps=3).ctx.train_iter > 0
    assert run_steps(lambda ctx: None, mw.train(policy), steps=3).ctx.train_iter == 0
    assert not caplog.records
    task = run_steps(mw.train(policy), collect, steps=3)
    [record] = caplog.records
    key = "trajectories" if is_on_policy else "transitions"
    assert f"`ctx.{key}` is not set" in record.getMessage()
    assert task.ctx.train_iter == 0

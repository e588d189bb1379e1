"""The way into the replay, training that waits until it holds enough, and replayed trajectories."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError
from ding_lite.rl import (
    DQN,
    IMPALA,
    DQNConfig,
    Envs,
    EpisodeBuffer,
    IMPALAConfig,
    PrioritizedReplay,
    ReplayBuffer,
    Transitions,
    load_checkpoint,
    make_envs,
    save_checkpoint,
)
from ding_lite.runtime import Context
from tests.middleware.running import run_steps


@pytest.mark.parametrize("times", [1, 2])
def test_what_nodes_collect_or_send_ends_up_in_the_replay(policy, envs, replay, times) -> None:
    def receive(ctx: Context) -> None:
        ctx.transitions = ctx.transitions if times == 1 else [ctx.transitions] * times

    task = run_steps(mw.collect(policy, envs, steps=8), receive, mw.add_to(replay), steps=5)
    assert len(replay) == task.ctx.metrics["replay_size"] == 40 * times


def test_training_waits_until_the_replay_holds_enough(policy, envs, replay) -> None:
    updates: list[int] = []
    run_steps(
        mw.collect(policy, envs, steps=4),
        mw.add_to(replay),
        mw.wait_for(replay, size=40),
        mw.train(policy, replay, batch_size=8),
        lambda ctx: updates.append(ctx.train_iter),
        steps=12,
    )

    assert updates == [0] * 9 + [1, 2, 3]


def _noise(rng: np.random.Generator, count: int) -> Transitions:
    """Return transitions of images that share no frames."""
    no = np.zeros(count, np.bool_)
    obs = rng.integers(0, 256, (2, count, 1, 8, 8), dtype=np.uint8)
    zeros = np.zeros(count, np.int64)
    return Transitions(obs[0], zeros, zeros * 1.0, obs[1], no, no, np.ones(count, np.int32))


def test_waiting_for_more_than_the_replay_has_room_for_ends(policy: DQN, envs: Envs) -> None:
    images, rng = ReplayBuffer(capacity=2_000), np.random.default_rng(0)

    def show(ctx: Context) -> None:
        ctx.transitions = _noise(rng, 100)

    episodes = EpisodeBuffer(envs.spec, capacity=100, num_envs=envs.num_envs)
    for replay, source in ((images, show), (episodes, mw.collect(policy, envs, steps=100))):
        room = replay.capacity - 1
        with pytest.raises(ConfigError, match=r"has held .* at most, .* Wait for fewer"):
            run_steps(source, mw.add_to(replay), mw.wait_for(replay, size=room), steps=100)


@pytest.mark.parametrize(("limit", "told"), [(-1, "No episode has ended in 220 env"), (150, "")])
def test_waiting_for_the_end_of_an_episode_without_an_end_fails(limit, told) -> None:
    class Balancer(DQN):
        def act(self, obs, *, explore=True, epsilon=None):
            return (obs[:, 2] + 0.3 * obs[:, 3] + 0.02 * obs[:, 0] > 0).astype(np.int64)

    with make_envs("CartPole-v1", 2, env_args={"max_episode_steps": limit}) as envs:
        policy = Balancer(envs.spec, DQNConfig(n_step=1))
        replay = EpisodeBuffer(envs.spec, capacity=100, num_envs=2)
        parts = mw.collect(policy, envs, steps=20), mw.add_to(replay), mw.wait_for(replay, size=90)
        with pytest.raises(ConfigError, match=told) if told else nullcontext():
            run_steps(*parts, steps=40)
        assert len(replay) == (0 if told else 99)


def test_collectors_of_apex_add_with_the_errors_of_their_policy(policy: DQN, envs: Envs) -> None:
    replay = PrioritizedReplay(envs.spec, capacity=100, alpha=1.0, offset=1e-9)
    run_steps(
        mw.collect(policy, envs, steps=32), mw.add_to(replay, priority=policy.td_errors), steps=2
    )

    drawn = replay.draw(400)
    fields = dict(drawn.fields.items())
    errors = np.abs(policy.td_errors(Transitions(**fields)))
    np.testing.assert_allclose(drawn.value, errors, rtol=1e-4, atol=1e-6)
    assert len({*drawn.value.tolist()}) > 10


def test_errors_of_new_transitions_are_in_the_unit_of_normalised_rewards(policy: DQN) -> None:
    envs = make_envs("CartPole-v1", 4, seed=0, reward_scale=100.0)
    replay = PrioritizedReplay(envs.spec, capacity=1_000, alpha=1.0, offset=1e-9)

    def errors_of(batch: Transitions) -> Any:
        assert envs.reward_norm is not None
        return policy.td_errors(envs.reward_norm(batch))

    task = run_steps(
        mw.collect(policy, envs, steps=200),
        mw.add_to(replay, priority=errors_of),
        mw.train(policy, replay, normalize_rewards=envs),
        steps=1,
    )
    drawn, output = replay.draw(200), task.ctx.train_output
    assert drawn.value.max() < 2.0 * np.abs(output["td_error"]).max()


def test_the_newest_earlier_trajectories_follow_the_new_ones() -> None:
    given = [["a"], ["b", "c"], [], None, ["d"], ["e"]]
    seen = []

    def collect(ctx: Context) -> None:
        if (found := given[ctx.total_step]) is not None:
            ctx.trajectories = found

    def note(ctx: Context) -> None:
        seen.append(ctx.get("trajectories"))

    run_steps(collect, mw.replay_trajectories(2), note, steps=6)
    assert seen == [["a"], ["b", "c", "a"], [], None, ["d", "b", "c"], ["e", "d", "b"]]


def test_a_policy_learns_from_both_and_a_saved_run_goes_on_with_the_same(tmp_path) -> None:
    def train(steps: int, *, resume: bool = False) -> IMPALA:
        envs = make_envs("CartPole-v1", 2, seed=1)
        policy = IMPALA(envs.spec, IMPALAConfig(hidden=(8,), epochs=2))
        replayed: Any = mw.replay_trajectories(1)
        parts: dict[str, Any] = {"policy": policy, "envs": envs, "replayed": replayed}
        for name, state in load_checkpoint(tmp_path).state.items() if resume else ():
            parts[name].load_state_dict(state)
        run_steps(mw.collect(policy, envs, unroll=4), replayed, mw.train(policy), steps=steps)
        save_checkpoint(tmp_path, {name: part.state_dict() for name, part in parts.items()})
        return policy

    whole, _, resumed = train(6), train(3), train(3, resume=True)
    assert resumed.train_iter == whole.train_iter == 12
    for name, tensor in whole.weights().items():
        assert tensor.equal(resumed.weights()[name]), name

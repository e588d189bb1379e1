"""Collecting: what reaches the ctx, how it is counted, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite import middleware as mw
from ding_lite.errors import ConfigError, EnvError, NonFiniteError
from ding_lite.rl import A2C, DQN, A2CConfig, DQNConfig, Memory, ReplayBuffer, Rollout
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.envs.sources import EnvLoop
from ding_lite.rl.envs.vector import Envs, make_envs
from ding_lite.rl.formulas.schedules import constant, linear
from ding_lite.rl.policies.ppo import PPO, PPOConfig
from ding_lite.rl.replay.episodes import EpisodeBuffer
from ding_lite.runtime import Context, use_router
from ding_lite.testing import Cluster, run_step
from tests.middleware.running import run_steps
from tests.rl.probes import TellsSuccess


def test_several_rounds_in_one_step_are_one_batch_in_order(policy: DQN, envs: Envs) -> None:
    twin = policy.clone()
    with make_envs("CartPole-v1", 4, seed=0) as twin_envs:
        ctx, _ = run_step(mw.collect(policy, envs, steps=20))
        rounds = mw.collect(twin, twin_envs, steps=4)
        parts = [run_step(rounds)[0].transitions for _ in range(5)]

    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated", "num_steps"):
        together = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(ctx.transitions, name), together)


def test_a_policy_that_wants_n_step_returns_gets_them(envs: Envs) -> None:
    policy = DQN(envs.spec, DQNConfig(hidden=(16,), n_step=3, gamma=0.5))
    collect = mw.collect(policy, envs, steps=4)

    first, second, third = (run_step(collect)[0].transitions for _ in range(3))
    assert (len(first), len(second), len(third)) == (0, 0, 4)
    np.testing.assert_array_equal(third.num_steps, 3)
    np.testing.assert_allclose(third.reward, 1.75)


def test_epsilon_follows_the_env_step_of_the_ctx(policy: DQN, envs: Envs) -> None:
    asked: list[float] = []

    def schedule(env_step: float) -> float:
        asked.append(env_step)
        return linear(1.0, 0.0, steps=100)(env_step)

    ctx, _ = run_step(mw.collect(policy, envs, steps=8, epsilon=schedule), env_step=40)
    assert asked == [40, 44]
    assert ctx.metrics["epsilon"] == pytest.approx(0.56)
    assert ctx.env_step == 48


def test_epsilon_decides_how_much_is_random(policy: DQN, envs: Envs) -> None:
    ctx, _ = run_step(mw.collect(policy, envs, steps=200, epsilon=constant(0.0)))
    greedy = policy.act(ctx.transitions.obs, explore=False)
    np.testing.assert_array_equal(ctx.transitions.action, greedy)

    ctx, _ = run_step(mw.collect(policy, envs, steps=200, epsilon=constant(1.0)))
    greedy = policy.act(ctx.transitions.obs, explore=False)
    assert 60 < (ctx.transitions.action != greedy).sum() < 140


@pytest.mark.parametrize(("kind", "how"), [(DQN, {"steps": 32}), (A2C, {"unroll": 8})])
def test_policies_of_one_seed_explore_differently_on_each_node(kind: Any, how: Any) -> None:
    envs = make_envs("CartPole-v1", 4)
    obs = np.zeros((400, 4), np.float32)
    alone, used = kind(envs.spec), kind(envs.spec)
    used.act(obs)

    def drawn(node: int, policy: Any) -> list[int]:
        with use_router(cluster.routers[node]):
            mw.collect(policy, envs, **how)
        actions: list[int] = policy.act(obs).tolist()
        return actions

    with Cluster(3) as cluster:
        policies = [kind(envs.spec) for _ in range(3)]
        first, second, third = map(drawn, range(3), policies)
        assert first == alone.act(obs).tolist()
        assert first != second != third != first
        assert drawn(1, kind(envs.spec)) == second  # the next run draws it again
        assert drawn(1, used.clone()) == used.act(obs).tolist()  # a resumed policy goes on
    for name, value in alone.weights().items():
        assert all((policy.weights()[name] == value).all() for policy in policies)


def test_the_return_is_the_mean_of_the_last_twenty_episodes(policy: DQN) -> None:
    rows: list[dict[str, float]] = []
    with make_envs("CartPole-v1", 1, seed=3) as envs:
        run_steps(
            mw.collect(policy, envs, steps=1, epsilon=constant(1.0)),
            lambda ctx: rows.append(dict(ctx.metrics)),
            steps=800,
        )

    reported = [row for row in rows if "return" in row]
    ended = [row["episode_return"] for row in reported]
    assert len(ended) > 25
    assert "return" not in rows[0]
    assert all(row["return"] == row["episode_length"] for row in reported)
    assert [row["episodes"] for row in reported] == list(range(1, len(ended) + 1))
    assert reported[4]["return"] == pytest.approx(np.mean(ended[:5]))
    assert reported[-1]["return"] == pytest.approx(np.mean(ended[-20:]))


def test_the_rate_of_success_is_that_of_the_episodes_that_tell_it() -> None:
    class Fixed(DQN):
        def act(self, obs, *, explore=True, epsilon=None):
            return np.array([0, 1, 2, 2])

    with make_envs("probe/Counter-v0", 4, mode="sync", wrappers=[TellsSuccess]) as envs:
        policy = Fixed(envs.spec, DQNConfig(n_step=1))
        parts = mw.collect(policy, envs, steps=12), mw.evaluate(policy, envs, every=1)
        metrics = run_steps(*parts, steps=1).ctx.metrics
    assert (metrics["success_rate"], metrics["eval_success_rate"]) == (0.5, 0.5)


def test_an_observation_that_is_not_finite_names_the_env(policy: DQN) -> None:
    envs = make_envs("CartPole-v1", 4, seed=0, mode="sync")

    def poison(ctx: Context) -> None:
        if ctx.total_step == 2:
            envs.obs[:] = 0.0
            source = envs._source
            assert isinstance(source, EnvLoop)
            source._envs[3].unwrapped.state = np.full(4, np.nan)  # type: ignore[attr-defined]

    with pytest.raises(NonFiniteError, match="Environment 3 of CartPole-v1") as caught:
        run_steps(poison, mw.collect(policy, envs, steps=4), steps=5)
    assert "in middleware `collect`" in "".join(caught.value.__notes__)


def test_a_warmup_fills_the_replay_once_and_acts_at_random(envs, replay) -> None:
    sizes: list[int] = []
    task = run_steps(
        mw.random_warmup(envs, replay, steps=400), lambda ctx: sizes.append(len(replay)), steps=3
    )

    assert sizes == [400, 400, 400]
    assert task.ctx.env_step == 400
    assert 0.35 < float(replay.sample(400).action.float().mean()) < 0.65
    assert len(envs.finished) >= 5  # balancing 80 steps by chance is rare


def test_a_warmup_may_repeat_each_random_action() -> None:
    with make_envs("Pendulum-v1", 2, seed=0) as envs:
        replay = ReplayBuffer(envs.spec, capacity=1_000, seed=0)
        run_step(mw.random_warmup(envs, replay, steps=40, hold=4))
    assert len(np.unique(replay.sample(40).action)) == 10


def test_a_warmup_ends_if_a_replay_never_holds_as_much(envs: Envs) -> None:
    # It has an observation more for each episode.
    episodes: Any = EpisodeBuffer(envs.spec, capacity=100, num_envs=4)
    with pytest.raises(ConfigError, match=r"`steps` is 100, but the replay holds \d+ .* more room"):
        run_step(mw.random_warmup(envs, episodes, steps=100))


def test_a_replay_that_a_resume_has_filled_needs_no_warmup(envs, replay) -> None:
    run_step(mw.random_warmup(envs, replay, steps=100))
    before = envs.state_dict()["rng"]
    ctx, _ = run_step(mw.random_warmup(envs, replay, steps=100), env_step=5_000)
    assert len(replay) == 100
    assert ctx.env_step == 5_000
    np.testing.assert_array_equal(envs.state_dict()["rng"], before)  # nothing was drawn


def test_returns_of_several_steps_end_where_others_have_reset_the_environments() -> None:
    envs = make_envs("probe/Counter-v0", 2)
    collect = mw.collect(DQN(envs.spec, DQNConfig(n_step=3)), envs, steps=8)
    for count in (6, 8, 8):  # the last step of the first round ends in the second, and so on
        transitions = run_step(collect)[0].transitions
        np.testing.assert_array_equal(transitions.obs[:, 0], transitions.next_obs[:, 0])  # episodes
        assert len(transitions) == count
        envs.reset()  # as an evaluation does, or another collector


class Bandit(gymnasium.Env[Any, Any]):
    """Always shows the same observation; the reward is the number of resets."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), dtype=np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    num_resets = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_resets += 1
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(self.num_resets), False, False, {}


def test_rewards_of_two_episodes_are_not_summed_where_all_observations_are_equal() -> None:
    envs = make_envs(Bandit, 1, env_args={"max_episode_steps": 100})
    policy = DQN(envs.spec, DQNConfig(n_step=3, gamma=1.0))
    collectors: list[Any] = [mw.collect(policy, envs, steps=2) for _ in range(2)]
    collect, resumed = collectors
    run_step(collect)
    envs.reset()
    transitions = run_step(collect)[0].transitions
    assert transitions.reward.tolist() == [2.0, 1.0]
    assert transitions.num_steps.tolist() == [2, 1]
    resumed.load_state_dict(collect.state_dict())  # here the episode goes on
    assert run_step(resumed)[0].transitions.reward.tolist() == [6.0, 6.0]


class Counting(DQN):
    """Counts the env steps of each episode in its memory; takes action 0."""

    def make_memory(self, num_envs: int) -> Memory:
        return Memory(num_envs, 1)

    def act(
        self,
        obs: NumpyArray,
        *,
        explore: bool = True,
        epsilon: float | None = None,
        memory: Memory | None = None,
    ) -> NumpyArray:
        assert memory is not None
        memory.state += 1.0
        return np.zeros(len(obs), dtype=np.int64)


def test_states_before_each_step_come_with_the_transitions() -> None:
    envs = make_envs("probe/Counter-v0", 2)
    collect = mw.collect(Counting(envs.spec, DQNConfig(n_step=1)), envs, steps=10)
    for _ in range(3):
        transitions = run_step(collect)[0].transitions
        state = transitions.extra["state"]
        assert state.shape == (10, 1)
        np.testing.assert_array_equal(state[:, 0], transitions.obs[:, 1])  # the age


def test_a_resumed_memory_forgets_episodes_that_did_not_go_on() -> None:
    def make() -> tuple[Envs, Any]:
        envs = make_envs("probe/Counter-v0", 2)
        return envs, mw.collect(Counting(envs.spec, DQNConfig(n_step=1)), envs, steps=4)

    (_, first), (other_envs, second) = make(), make()
    run_step(first)
    state = first.state_dict()
    assert state["memory"]["state"].tolist() == [[2.0], [2.0]]
    second.load_state_dict(state)
    other_envs.step(np.zeros(2, dtype=np.int64))  # they are elsewhere than before
    transitions = run_step(second)[0].transitions
    assert transitions.extra["state"][:, 0].tolist() == [0.0, 0.0, 1.0, 1.0]
    first.load_state_dict(state)
    transitions = run_step(first)[0].transitions
    np.testing.assert_array_equal(transitions.extra["state"][:, 0], transitions.obs[:, 1])


def test_saving_a_memory_starts_no_episodes() -> None:
    class Failing(gymnasium.Wrapper[Any, Any, Any, Any]):
        num_resets = 0

        def reset(self, **more: Any) -> Any:
            Failing.num_resets += 1
            return super().reset(**more)

        def step(self, action: Any) -> Any:
            raise OSError("gone")

    with make_envs("CartPole-v1", 2, mode="sync", wrappers=[Failing]) as envs:
        config = PPOConfig(memory="gru", memory_size=3, hidden=(4,))
        collect: Any = mw.collect(PPO(envs.spec, config), envs, unroll=2)
        before = Failing.num_resets
        assert collect.state_dict()["memory"]["obs"] is None
        assert Failing.num_resets == before
        with pytest.raises(EnvError):
            run_step(collect)
        after = Failing.num_resets
        assert collect.state_dict()["memory"]["obs"] is None
        assert Failing.num_resets == after > before


@pytest.mark.parametrize("settings", [{"steps": 8}, {"unroll": 2}])
def test_a_memory_that_a_mutation_has_widened_is_saved_with_its_new_width(settings: Any) -> None:
    with make_envs("CartPole-v1", 4, seed=0, mode="sync") as envs:
        policy: Any = PPO(envs.spec, PPOConfig(memory="gru", memory_size=3, hidden=(4,)))
        if "steps" in settings:
            policy = Counting(envs.spec, DQNConfig(n_step=1))
        collect = mw.collect(policy, envs, **settings)
        run_step(collect)
        policy.make_memory = lambda num_envs: Memory(num_envs, 5)
        state = collect.state_dict()  # type: ignore[attr-defined]
        collect.load_state_dict(state)  # type: ignore[attr-defined]
    assert state["memory"]["state"].shape == (4, 5)


def test_memory_and_returns_of_several_steps_are_refused(envs: Envs) -> None:
    with pytest.raises(ConfigError, match="`n_step` of this Counting is 3, and it has memory"):
        mw.collect(Counting(envs.spec, DQNConfig(n_step=3)), envs, steps=4)


@pytest.mark.parametrize("env", ["CartPole-v1", "probe/Recall-v0"])  # observations repeat
def test_rollouts_do_not_begin_with_states_of_before_another_agents_turn(env: str) -> None:
    with make_envs(env, 4, seed=0, mode="sync") as envs:
        config = PPOConfig(memory="gru", memory_size=3, hidden=(4,))
        first, second = (
            mw.collect(PPO(envs.spec, replace(config, seed=seed)), envs, unroll=1)
            for seed in range(2)
        )
        (alone,) = run_step(first)[0].trajectories
        (goes_on,) = run_step(first)[0].trajectories
        for _ in range(3):
            run_step(second)
        (returns,) = run_step(first)[0].trajectories
    assert not alone.state.any()
    assert goes_on.state.any(axis=1).all()
    assert not returns.state.any()


@pytest.fixture
def a2c(envs: Envs) -> A2C:
    return A2C(envs.spec, A2CConfig(hidden=(16,)))


def rollout_of(policy: Any, envs: Envs, num_steps: int, **values: Any) -> Rollout:
    """Collect a single rollout."""
    ctx, _ = run_step(mw.collect(policy, envs, unroll=num_steps), **values)
    [rollout] = ctx.trajectories
    assert isinstance(rollout, Rollout)
    return rollout


def test_a_rollout_has_the_steps_in_order(a2c: A2C, envs: Envs) -> None:
    twin = a2c.clone()
    ctx, _ = run_step(mw.collect(a2c, envs, unroll=60), env_step=40)
    [rollout] = ctx.trajectories
    assert ctx.env_step == 40 + 4 * 60
    with make_envs("CartPole-v1", 4, seed=0) as twin_envs:
        for time in range(60):
            action, log_prob = twin.explore(twin_envs.obs)
            step = twin_envs.step(action)
            for name in ("obs", "action", "reward", "terminated", "truncated"):
                np.testing.assert_array_equal(getattr(rollout, name)[time], getattr(step, name))
            np.testing.assert_array_equal(rollout.log_prob[time], log_prob)
    np.testing.assert_array_equal(rollout.last_obs, step.next_obs)
    assert rollout.terminated.any()
    assert len(rollout.cut_obs) == 0


def test_what_episodes_ended_with_that_were_cut_off_is_handed_on() -> None:
    with make_envs("probe/LongCounter-v0", 2, seed=0) as envs:  # ten steps long, and cut after 4
        policy = A2C(envs.spec)
        rollout = rollout_of(policy, envs, 9)
    # The observation counts episodes and steps: an episode that is cut shows its step 4 at the end.
    assert rollout.truncated[:, 0].tolist() == [(time % 4) == 3 for time in range(9)]
    assert rollout.cut_time.tolist() == [3, 3, 7, 7]
    assert rollout.cut_env.tolist() == [0, 1, 0, 1]
    assert rollout.cut_obs.tolist() == [[0.0, 4.0], [0.0, 4.0], [1.0, 4.0], [1.0, 4.0]]
    assert rollout.obs[4].tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_numbers_are_clipped_for_the_envs_and_learned_from_as_they_were_drawn() -> None:
    with make_envs("probe/Pull-v0", 8, seed=0) as envs:  # takes -2 to 3, and shows what it took
        policy = A2C(envs.spec, A2CConfig(log_std_start=1.0))
        rollout = rollout_of(policy, envs, 30)
    assert rollout.action.min() < -2.0
    assert rollout.action.max() > 3.0
    np.testing.assert_array_equal(rollout.obs[1:], rollout.action[:-1].clip(-2.0, 3.0))


def test_a_rollout_says_which_weights_acted(a2c: A2C, envs: Envs) -> None:
    assert rollout_of(a2c, envs, 1).version == 0
    assert rollout_of(a2c, envs, 1, weights_version=12).version == 12


def test_episodes_are_reported_as_with_transitions(a2c: A2C) -> None:
    def rows_of(policy: Any, **how: Any) -> list[dict[str, float]]:
        rows: list[dict[str, float]] = []
        with make_envs("CartPole-v1", 4, seed=0) as envs:
            run_steps(
                mw.collect(policy, envs, **how),
                lambda ctx: rows.append(dict(ctx.metrics)),
                steps=30,
            )
        return rows

    rows = rows_of(a2c.clone(), unroll=10)
    assert rows == rows_of(a2c.clone(), steps=40)
    assert rows[-1]["episodes"] > 20

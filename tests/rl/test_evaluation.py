from typing import Any

import numpy as np
import pytest

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite.errors import ConfigError
from ding_lite.rl import DQN, make_envs, mean_return
from ding_lite.rl.evaluation import is_below, play, play_each
from ding_lite.rl.memory import Memory


class ShortOrLong(DQN):
    """Fails at once in the first environment and balances in the others."""

    def act(self, obs, *, explore=True, epsilon=None):
        assert not explore
        action = (3.0 * obs[:, 2] + obs[:, 3] > 0.0).astype(np.int64)
        action[0] = 0
        return action


class Watcher(DQN):
    """Records its observations."""

    def __init__(self, spec):
        super().__init__(spec)
        self.seen: list[Any] = []

    def act(self, obs, *, explore=True, epsilon=None):
        self.seen.append(obs.tolist())
        return np.zeros(len(obs), dtype=np.int64)


def test_evaluation_resets_the_environments_and_leaves_no_episodes():
    envs = make_envs("probe/Counter-v0", 1)
    policy = Watcher(envs.spec)
    for _ in range(4):
        envs.step(np.zeros(1, dtype=np.int64))
    assert mean_return(policy, envs, episodes=2) == 6.0
    assert policy.seen == [[[2, 0]], [[2, 1]], [[2, 2]], [[3, 0]], [[3, 1]], [[3, 2]]]
    assert envs.finished == []


class Counting(DQN):
    """Keeps the age of each episode in its memory."""

    def __init__(self, spec):
        super().__init__(spec)
        self.seen: list[tuple[Any, Any]] = []

    def make_memory(self, num_envs):
        return Memory(num_envs, 1)

    def act(self, obs, *, explore=True, epsilon=None, memory=None):
        assert memory is not None
        self.seen.append((obs[:, 1].tolist(), memory.state[:, 0].tolist()))
        memory.state += 1.0
        return np.zeros(len(obs), dtype=np.int64)


def test_a_policy_with_memory_has_one_for_each_evaluation():
    envs = make_envs("probe/Counter-v0", 2)
    policy = Counting(envs.spec)
    for _ in range(2):
        assert mean_return(policy, envs, episodes=4) == 6.0
    assert len(policy.seen) == 12
    for observed_age, remembered_age in policy.seen:
        assert observed_age == remembered_age


def test_env_steps_of_waiting_environments_are_counted():
    envs = make_envs("CartPole-v0", 2, seed=0)
    played = play(ShortOrLong(envs.spec), envs)
    assert played.env_steps == 2 * 200  # of which the first environment needs about 10
    assert 104 <= played.mean_return <= 106
    counted = play(
        DQN(make_envs("probe/Counter-v0", 1).spec), make_envs("probe/Counter-v0", 1), episodes=3
    )
    assert counted.env_steps == 9


@pytest.mark.parametrize("rewards", [{}, {"reward_scale": 0.5}, {"reward_scale": 3.0}])
def test_a_limit_of_env_steps_leaves_the_episodes_that_have_ended(rewards):
    envs = make_envs("CartPole-v0", 2, seed=0, **rewards)
    policy = ShortOrLong(envs.spec)
    played = play(policy, envs, max_env_steps=99)
    assert (played.env_steps, played.episodes) == (100, 1)
    assert 8 <= played.mean_return <= 11
    envs.reset()
    none = play(policy, envs, max_env_steps=8)
    assert (none.env_steps, none.episodes) == (8, 0)
    assert none.mean_return == 4.0  # so far
    assert play(policy, envs, max_env_steps=400).episodes == 2


@pytest.mark.parametrize(("length", "count"), [(9, 0), (12, 1)])
def test_a_wait_for_the_end_of_a_long_episode_is_logged(length, count, monkeypatch, caplog):
    monkeypatch.setattr("ding_lite.rl.evaluation._LONG", 10)
    with make_envs("probe/Counter-v0", 2, mode="sync", env_args={"length": length}) as envs:
        mean_return(DQN(envs.spec), envs, episodes=4)
    assert [one.getMessage()[:60] for one in caplog.records if "waits for" in one.message] == [
        "an evaluation in probe/Counter-v0 has made 20 env steps, and"
    ] * count


def test_evaluation_does_not_count_env_steps_of_the_policy():
    envs = make_envs("CartPole-v1", 3)
    policy, twin = DQN(envs.spec), DQN(envs.spec)
    mean_return(policy, envs)
    assert policy.env_step == 0
    assert policy.act(envs.obs, epsilon=1.0).tolist() == twin.act(envs.obs, epsilon=1.0).tolist()


def test_episodes_must_be_a_multiple_of_the_environments():
    envs = make_envs("CartPole-v1", 3)
    for episodes in (4, 0, -3):
        with pytest.raises(ConfigError, match=rf"`episodes` is {episodes}.*3 environments"):
            mean_return(DQN(envs.spec), envs, episodes=episodes)


def test_several_players_share_the_environments():
    """Player 0 falls at once and player 1 balances; both play the same number of episodes."""
    envs = make_envs("CartPole-v0", 3, seed=0)
    acted = []

    def act(obs, player_N):
        acted.append(player_N.copy())
        balance = 3.0 * obs[:, 2] + obs[:, 3] > 0.0
        return np.where(player_N == 1, balance, False).astype(np.int64)

    played = play_each(act, envs, episodes=[4, 2])
    assert 8 <= played.mean_returns[0] <= 11
    assert played.mean_returns[1] == 200.0
    assert played.env_steps == 3 * len(acted)
    # The two long ones lie beside each other, and the short ones before or beside them.
    assert 200 <= len(acted) <= 200 + 2 * 11
    assert envs.finished == []


def test_steps_of_environments_without_an_episode_are_counted():
    envs = make_envs("probe/Counter-v0", 4)
    seen = []

    def act(obs, player_N):
        seen.append(player_N.tolist())
        return np.zeros(4, dtype=np.int64)

    ends = []
    played = play_each(act, envs, episodes=[2, 3], reset=lambda done_N: ends.append(done_N.all()))
    assert played.mean_returns == (6.0, 6.0)
    assert ends == [False, False, True] * 2
    # The fifth episode is played by the first environment, while three have nothing left to do.
    assert seen == [[0, 1, 0, 1]] * 3 + [[1, 1, 0, 1]] * 3
    assert played.env_steps == 4 * 6


@pytest.mark.parametrize("episodes", [[], [2, 0]])
def test_a_player_without_episodes_is_refused(episodes):
    with pytest.raises(ConfigError, match="one or more were expected of each player"):
        play_each(lambda obs, player_N: player_N, make_envs("CartPole-v0", 2), episodes=episodes)


def test_returns_are_below_a_goal_by_more_than_their_standard_error():
    assert is_below(2.6, [1.0, 3.0, 1.0, 3.0])  # 2 +- 0.58
    assert not is_below(2.5, [1.0, 3.0, 1.0, 3.0])
    assert is_below(2.5, [2.0])

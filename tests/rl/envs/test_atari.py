"""Atari games: a life ends what is learned from, and scores are those of whole games."""

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from ding_lite.errors import ConfigError, MissingExtraError
from ding_lite.rl import make_envs
from ding_lite.rl.envs.atari import ATARI_ARGS, play_atari

HAS_ATARI = find_spec("ale_py") is not None and find_spec("cv2") is not None


class ThreeLives(gymnasium.Env):
    """A game of three lives; each ends after two steps, which score 1 and 4."""

    observation_space = Box(0.0, 9.0, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self):
        self.ale = SimpleNamespace(lives=lambda: 3 - self.at // 2)  # as the Arcade Environment has

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.see(), {}

    def step(self, action):
        self.at += 1
        return self.see(), 1.0 if self.at % 2 else 4.0, self.at == 6, False, {}

    def see(self):
        return np.array([self.at], np.float32)


def play(steps, **how: Any):
    with make_envs(ThreeLives, 1, mode="sync", **how) as envs:
        made = [envs.step(np.zeros(1, np.int64)) for _ in range(steps)]
        obs = [float(one.obs[0, 0]) for one in made]
        return made, obs, [(one.ret, one.length) for one in envs.take_finished()]


def test_a_life_ends_what_is_learned_from_and_the_game_goes_on():
    made, obs, finished = play(8, end_at_life_loss=True, clip_rewards=True)
    assert [bool(one.terminated[0]) for one in made] == [False, True] * 4
    assert not any(one.truncated[0] for one in made)
    assert obs == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 1.0]
    assert {float(one.reward[0]) for one in made} == {1.0}
    assert finished == [(15.0, 6)]


def test_evaluations_play_whole_games():
    made, _, finished = play(6)
    assert [bool(one.terminated[0]) for one in made] == [False] * 5 + [True]
    assert [float(one.reward[0]) for one in made] == [1.0, 4.0] * 3
    assert finished == [(15.0, 6)]


def test_what_is_no_atari_game_is_refused():
    games = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    for env, how, told in (
        ("CartPole-v1", {"wrappers": [play_atari]}, "`atari` is on, but CartPoleEnv is no Atari"),
        ("CartPole-v1", {"end_at_life_loss": True}, "_loss` is on, but CartPoleEnv is no Atari"),
        (games, {"end_at_life_loss": True}, "SyncVectorEnv is a vector, .* before they are joined"),
    ):
        with pytest.raises(ConfigError, match=told):
            make_envs(env, 1, **how)


@pytest.mark.optional
@pytest.mark.skipif(find_spec("ale_py") is not None, reason="needs that ale_py is missing")
def test_a_missing_game_names_its_extra():
    with pytest.raises(MissingExtraError, match=r"ALE/Breakout-v5 needs .*\[atari\]"):
        make_envs("ALE/Breakout-v5", 1)


@pytest.mark.optional
@pytest.mark.skipif(not HAS_ATARI, reason="needs ale-py and OpenCV: pip install -e '.[atari]'")
def test_breakout_has_four_grey_pictures():
    how: dict[str, Any] = {"env_args": ATARI_ARGS, "wrappers": [play_atari], "frame_stack": 4}
    with make_envs("ALE/Breakout-v5", 2, seed=0, end_at_life_loss=True, **how) as envs:
        for _ in range(60):
            step = envs.step(envs.random_actions())
        assert step.next_obs.shape == (2, 4, 84, 84)
        assert step.next_obs.dtype == np.uint8

"""Loading the state of `Envs` resumes exactly, or warns."""

import logging
from typing import Any

import gymnasium
import numpy as np
import pytest

import tests.rl.partly
import tests.rl.probes
from ding_lite.errors import CheckpointError
from ding_lite.rl import load_checkpoint, make_envs, save_checkpoint

CASES = [
    ("CartPole-v1", "native", {}),
    ("CartPole-v1", "sync", {}),
    ("Pendulum-v1", "sync", {}),
    ("FrozenLake-v1", "sync", {}),
    ("probe/Wanders-v0", "sync", {"frame_stack": 3}),
    ("probe/Picture-v0", "sync", {"frame_stack": 2}),
    ("partly/Partly-v0", "sync", {"env_args": {"masked": True}}),
]


def play(envs, steps):
    seen = []
    for _ in range(steps):
        step = envs.step(envs.random_actions())
        seen += [step.obs, step.action, step.reward, step.next_obs, step.terminated, step.truncated]
    return seen, envs.take_finished(), envs.obs


def assert_same(one, other):
    np.testing.assert_equal(one[0], other[0])
    assert one[1] == other[1]
    np.testing.assert_array_equal(one[2], other[2])


@pytest.mark.parametrize(("env_id", "mode", "settings"), CASES)
@pytest.mark.parametrize("before", [0, 37])
def test_loaded_environments_go_on_as_the_saved_ones_do(env_id, mode, settings, before, tmp_path):
    envs = make_envs(env_id, 3, seed=1, mode=mode, **settings)
    play(envs, before)
    save_checkpoint(tmp_path, envs.state_dict())
    later = play(envs, 60)

    loaded = make_envs(env_id, 3, seed=2, mode=mode, **settings)
    play(loaded, 5)
    loaded.load_state_dict(load_checkpoint(tmp_path).state)
    assert_same(play(loaded, 60), later)


def test_a_loaded_environment_can_be_saved_again():
    envs, plain = (make_envs("probe/Wanders-v0", 3, seed=1, mode="sync") for _ in range(2))
    for _ in range(5):
        play(envs, 13)
        loaded = make_envs("probe/Wanders-v0", 3, seed=9, mode="sync")
        loaded.load_state_dict(envs.state_dict())
        envs = loaded
    play(plain, 65)
    assert_same(play(envs, 40), play(plain, 40))


def test_the_history_has_only_the_current_episodes():
    envs = make_envs("probe/Wanders-v0", 2, seed=0, mode="sync")
    play(envs, 2_000)
    histories = envs.state_dict()["source"]["histories"]
    assert [len(one["actions"]) for one in histories] == envs.state_dict()["lengths"].tolist()
    source: Any = envs._source
    assert max(map(len, source._actions)) < 1_000


def test_an_episode_with_too_long_a_history_begins_anew(monkeypatch, caplog):
    monkeypatch.setattr("ding_lite.rl.envs.sources.MAX_HISTORY", 1_000)
    envs = make_envs("probe/Shifted-v0", 2, seed=0, mode="sync")
    play(envs, 2_100)
    state = envs.state_dict()
    assert state["source"]["histories"] == [{}, {}]
    envs.load_state_dict(state)
    assert "environments [0, 1] of probe/Shifted-v0 could not be brought back" in caplog.text
    assert envs.obs.tolist() == [[0], [0]]


@pytest.mark.parametrize(
    ("env_id", "why"),
    [
        ("probe/WandersElsewhere-v0", "from elsewhere than np_random"),
        ("probe/Counter-v0", "keep something from one episode to the next"),
        ("probe/DisabledCounters-v0", "nothing of a vector of another package"),
    ],
)
def test_environments_that_cannot_be_saved_begin_new_episodes_with_a_warning(env_id, why, caplog):
    envs, loaded = (make_envs(env_id, 2, seed=0) for _ in range(2))
    play(envs, 10)
    assert envs.state_dict()["lengths"].any()
    loaded.load_state_dict(envs.state_dict())
    assert f"environments [0, 1] of {env_id} could not be brought back" in caplog.text
    assert why in caplog.text
    assert loaded.state_dict()["lengths"].tolist() == [0, 0]
    assert loaded.state_dict()["returns"].tolist() == [0.0, 0.0]
    loaded.step(loaded.random_actions())


class NoisyRewards(gymnasium.Wrapper):
    """Draws from a generator of its own, of which the observations show nothing."""

    def __init__(self, env):
        super().__init__(env)
        self.rng = np.random.default_rng(0)

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward) + self.rng.normal(), *rest


@pytest.mark.parametrize(
    ("mode", "wrapper"), [("sync", gymnasium.wrappers.NormalizeReward), ("async", NoisyRewards)]
)
def test_environments_with_other_rewards_begin_new_episodes_with_a_warning(mode, wrapper, caplog):
    def make():
        return make_envs("CartPole-v1", 2, seed=0, mode=mode, wrappers=[wrapper])

    with make() as envs, make() as loaded:
        play(envs, 5)
        loaded.load_state_dict(envs.state_dict())  # in the first episode they are the same
        assert_same(play(loaded, 5), play(envs, 5))
        while len(envs.finished) < 4:
            play_on = envs.step(envs.random_actions())
        while (play_on.terminated | play_on.truncated).any():
            play_on = envs.step(envs.random_actions())
        assert not caplog.records
        loaded.load_state_dict(envs.state_dict())
    assert "environments [0, 1] of CartPole-v1 could not be brought back" in caplog.text
    assert "from elsewhere than np_random, or keep something from one episode" in caplog.text
    assert loaded.returns.tolist() == [0.0, 0.0]


def test_finished_episodes_not_yet_taken_are_saved():
    wrappers = [tests.rl.probes.TellsSuccess]
    envs = make_envs("probe/OneReward-v0", 2, mode="sync", wrappers=wrappers)
    envs.step(np.array([1, 2]))
    loaded = make_envs("probe/OneReward-v0", 2, mode="sync", wrappers=wrappers)
    loaded.load_state_dict(envs.state_dict())
    assert loaded.take_finished() == envs.take_finished() != []


def test_a_state_of_another_kind_is_refused():
    native, sync = (make_envs("CartPole-v1", 2, mode=mode) for mode in ("native", "sync"))
    play(sync, 3)
    others = make_envs("CartPole-v1", 3), make_envs("Acrobot-v1", 2, mode="sync")
    for envs, state, told in (
        (others[0], native.state_dict(), "no state of 3 environments of CartPole-v1"),
        (others[1], sync.state_dict(), "no state of 2 environments of Acrobot-v1"),
        (native, {"obs": None}, "no state of 2 environments"),
        (native, sync.state_dict(), r'saved in mode "sync".* mode="sync"'),
    ):
        with pytest.raises(CheckpointError, match=told):
            envs.load_state_dict(state)


@pytest.mark.parametrize(("saved", "chosen"), [("native", "sync"), ("sync", "native")])
def test_auto_mode_loads_the_saved_mode(saved, chosen, monkeypatch, caplog):
    def make(mode):
        monkeypatch.setattr("ding_lite.rl.envs.vector.choose", lambda *_: mode)
        return make_envs("CartPole-v1", 3, seed=1)

    envs, loaded = make(saved), make(chosen)
    play(envs, 37)
    play(loaded, 5)
    assert loaded.mode == chosen
    with caplog.at_level(logging.INFO, logger="ding_lite.rl.envs.vector"):
        loaded.load_state_dict(envs.state_dict())
    assert loaded.mode == saved
    assert f"3 environments of CartPole-v1 go on in mode {saved}" in caplog.text
    assert_same(play(loaded, 120), play(envs, 120))

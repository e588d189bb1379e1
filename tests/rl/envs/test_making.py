"""Vector environments of gymnasium are taken as they are, whichever way they reset themselves."""

from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import (
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
)

from ding_lite.errors import ConfigError, EnvError
from ding_lite.rl import make_envs
from tests.rl.envs.test_vector import check_transitions


def cartpole():
    return gymnasium.make("CartPole-v1")


def cartpoles(num_envs=3):
    return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")


def maker_of(envs) -> Any:
    return envs.spec.maker


def episodes_of(env, **how):
    """Play random actions; each episode must begin with a first observation."""
    rng = np.random.default_rng(0)
    with make_envs(env, seed=3, **how) as envs:
        for _ in range(60):
            step = envs.step(rng.integers(2, size=envs.num_envs))
            done = step.terminated | step.truncated
            assert (np.abs(envs.obs[done]) <= 0.05).all()
            assert (np.abs(step.next_obs[done]).max(axis=1) > 0.05).all()
        return [(one.env_index, one.ret, one.length) for one in envs.take_finished()]


def test_each_autoreset_mode_plays_the_same_episodes():
    made = {mode: SyncVectorEnv([cartpole] * 3, autoreset_mode=mode) for mode in AutoresetMode}
    played = [episodes_of(vector) for vector in made.values()]
    played += [episodes_of(cartpoles, num_envs=3), episodes_of(cartpoles)]  # by its own default
    assert len(played[0]) > 5
    assert len({length for _, _, length in played[0]}) > 1
    assert all(other == played[0] for other in played)


@pytest.mark.procs
def test_those_in_processes_are_reset_before_they_reset_themselves_or_refused():
    make = partial(AsyncVectorEnv, [cartpole] * 2, context="forkserver")
    vector = make()
    assert vector.autoreset_mode is AutoresetMode.NEXT_STEP
    assert episodes_of(vector) == episodes_of(SyncVectorEnv([cartpole] * 2))
    with pytest.raises(ConfigError, match=r"`shared_memory=True`, or .*SAME_STEP"):
        make_envs(lambda: RecordEpisodeStatistics(make(shared_memory=False)))


class InPlace(CartPoleEnv):
    """Returns the same array each time, as some simulators do."""

    def __init__(self):
        super().__init__()
        self.kept = np.empty(4, np.float32)

    def reset(self, **how):
        self.kept[:] = super().reset(**how)[0]
        return self.kept, {}

    def step(self, action):
        obs, *rest = super().step(action)
        self.kept[:] = obs
        return (self.kept, *rest)


class Squares(gymnasium.Env):
    """Shows the column as the brightness of all channels."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(0, 255, (5, 5, 5), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((5, 5, 5), np.uint8) + np.arange(5, dtype=np.uint8)[:, None], {}

    def action_masks(self):
        """Say which actions are legal as another package wants it."""
        return [True, False]


def test_images_of_unknown_layout_have_channels_last_and_methods_of_masks_are_told_of(caplog):
    with make_envs(Squares, 2, mode="sync") as envs:
        assert (envs.obs[0, 0] == np.arange(5)).all()
        assert not envs.spec.has_action_mask
    [line] = caplog.messages
    assert "Squares has a method `action_masks`, which is not called" in line


def test_a_last_observation_that_a_reset_overwrites_is_told():
    made = SyncVectorEnv([InPlace] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    told = "overwrites `final_obs` of environment"
    with make_envs(made, seed=0) as envs, pytest.raises(EnvError, match=told):
        all(envs.step(np.zeros(2, np.int64)) for _ in range(30))


class PooledSpec:
    """Stands where others have an entry of gymnasium's registry, as the spec of an EnvPool does."""


class Pool(gymnasium.vector.VectorEnv):
    """CartPoles by EnvPool's conventions.

    The spaces are those of one environment, an environment that has ended is reset at its next
    step, a reset of some returns their rows only, seeds are left alone, and the info is a dict of
    arrays and dicts.
    """

    spec: Any = PooledSpec()
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, num_envs):
        self.num_envs, self._vector = num_envs, SyncVectorEnv([cartpole] * num_envs)
        self.observation_space = self.single_observation_space = self._vector.envs[
            0
        ].observation_space
        self.action_space = self.single_action_space = self._vector.envs[0].action_space

    def reset(self, *, seed=None, options=None):
        ids = np.flatnonzero((options or {}).get("reset_mask", np.ones(self.num_envs)))
        return self._vector.reset(options=options)[0][ids], self._info(ids)

    def step(self, actions):
        obs, reward, terminated, truncated, _ = self._vector.step(actions)
        info = self._info(np.arange(self.num_envs))
        return obs, reward.astype(np.float32), terminated, truncated, info

    def _info(self, ids):
        return {"env_id": ids, "players": {"env_id": ids}, "elapsed_step": 0 * ids}


@pytest.mark.parametrize("num_envs", [1, 3])
def test_one_with_the_conventions_of_envpool_makes_the_transitions_of_its_environments(num_envs):
    with make_envs(Pool, num_envs) as envs:
        assert check_transitions(envs, steps=100) > 1


@pytest.mark.optional
@pytest.mark.skipif(find_spec("envpool") is None, reason="needs pip install -e '.[envpool]'")
@pytest.mark.filterwarnings("ignore")  # those of the package itself, and that seeds are its own
@pytest.mark.parametrize("num_envs", [1, 4])
def test_envpool_makes_the_transitions_of_plain_environments(num_envs):
    envpool = pytest.importorskip("envpool")
    make = partial(envpool.make, "CartPole-v1", env_type="gymnasium")
    with make_envs(lambda num_envs: make(num_envs=num_envs), num_envs) as envs:
        assert check_transitions(envs, steps=100) > 1


@pytest.mark.parametrize(
    ("wrapper", "mode", "told"),
    [
        (NormalizeObservation, "NEXT_STEP", "NormalizeObservation, .* `normalize_obs=True`"),
        (NormalizeReward, "NEXT_STEP", "NormalizeReward, .* take `train.*normalize_rewards=True"),
        (NormalizeReward, "DISABLED", "NormalizeReward, .* or `mw.train.*normalize_rewards=envs"),
    ],
)
def test_wrappers_with_statistics_that_resets_falsify_are_refused(wrapper, mode, told):
    vector = SyncVectorEnv([cartpole] * 2, autoreset_mode=AutoresetMode[mode])
    with pytest.raises(ConfigError, match=told):
        make_envs(RecordEpisodeStatistics(wrapper(vector)))


def test_normalised_rewards_of_environments_that_reset_themselves_at_once_are_taken():
    made = SyncVectorEnv([cartpole] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with make_envs(NormalizeReward(made)) as envs:
        assert (envs.step(np.zeros(2, np.int64)).reward != 1.0).all()


class BeginsAlike(gymnasium.vector.VectorWrapper):
    metadata: Any = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        return self.env.reset(seed=seed, options={"low": 0.0, "high": 0.0})


@pytest.mark.parametrize("wrapper", [lambda vector: vector, BeginsAlike])
def test_one_that_cannot_be_reset_in_part_is_refused(wrapper):
    vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    with pytest.raises(ConfigError, match=r"all were reset.*vectorization_mode=\"sync\""):
        make_envs(wrapper(vector))


def test_a_function_that_returns_the_same_environment_again_is_refused():
    env = cartpole()
    told = "`lambda` returned an environment that is in use"
    with pytest.raises(ConfigError, match=told):
        make_envs(lambda: env, 2, mode="sync")
    with make_envs(lambda: env, 1), pytest.raises(ConfigError, match=told):
        make_envs(lambda: gymnasium.wrappers.TimeLimit(env, 5), 1)
    with make_envs(lambda: env, 1) as envs:  # the first ones are closed
        assert check_transitions(envs, steps=20)


@pytest.mark.parametrize(
    ("env", "num_envs", "how", "told"),
    [
        (lambda: SyncVectorEnv([cartpole] * 2), 3, {}, r"`num_envs` is 3, but .* of 2 environ"),
        (lambda: SyncVectorEnv([cartpole]), 1, {"mode": "sync"}, r'`mode` is "sync", but'),
        (cartpole, None, {}, r"`num_envs` was not given, and cartpole makes one environment"),
        (lambda num_envs: SyncVectorEnv([cartpole]), None, {}, r"missing 1 .*: 'num_envs'"),
        (lambda: None, 1, {}, r"`lambda` returned None; an environment of gymnasium"),
        (
            *(cartpoles, 2, {"env_args": {"max_episode_steps": 5}}),
            r"^`max_episode_steps` .* is 5, and cartpoles makes a vector .*Limit them there\.$",
        ),
    ],
)
def test_what_does_not_fit_a_vector_is_refused(env, num_envs, how, told):
    with pytest.raises(ConfigError, match=told):
        make_envs(env, num_envs, **how)


def test_a_vector_object_is_taken_once_and_found_again_by_its_id():
    with make_envs(SyncVectorEnv([cartpole] * 2)) as envs:
        assert envs.spec.env_id == "SyncVectorEnv"
        with pytest.raises(ConfigError, match="is in use, and others like it are needed"):
            make_envs(maker_of(envs))
    vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync", sutton_barto_reward=1)
    with make_envs(vector) as envs, make_envs(maker_of(envs), 1, mode="sync") as others:
        assert envs.spec == others.spec
        described = {"env": "CartPole-v1", "env_args": {"sutton_barto_reward": 1}}
        assert maker_of(others).described() == described

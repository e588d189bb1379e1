import math
import re
import sys
from dataclasses import astuple
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.error import DependencyNotInstalled
from gymnasium.spaces import Box, Dict, Discrete, flatten_space
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation, TransformAction

from ding_lite.errors import ConfigError, EnvError, MissingExtraError, NonFiniteError, ShapeError
from ding_lite.io.memory import available_bytes
from ding_lite.rl import DQN, SAC, Episode, make_envs
from ding_lite.rl.envs.vector import EnvsMode
from ding_lite.testing.probes import Probe
from tests.rl import probes

MODES: list[EnvsMode] = ["native", "sync"]


def balance(obs_N4):
    """Keep the pole up for a few hundred steps, with some variety."""
    return (3.0 * obs_N4[:, 2] + obs_N4[:, 3] > 0.0).astype(np.int64)


def zeros(obs):
    return np.zeros(len(obs), dtype=np.int64)


def play(envs, act, *, steps):
    return [envs.step(act(envs.obs)) for _ in range(steps)]


def assert_same(steps, others):
    np.testing.assert_equal([*map(astuple, steps)], [*map(astuple, others)])


def random_actions(seed, num_envs):
    rng = np.random.default_rng(seed)
    return lambda obs: rng.integers(0, 2, size=num_envs)


def check_transitions(envs, *, steps, act=None):
    """Compare transitions with those of a plain CartPole; return the number of episodes."""
    plain, num_ended = CartPoleEnv(), 0
    plain.reset(seed=0)
    steps = play(envs, act or random_actions(0, envs.num_envs), steps=steps)
    for step in steps:
        for index in range(envs.num_envs):
            plain.state = step.obs[index].astype(np.float64)
            plain.steps_beyond_terminated = None
            next_obs, reward, terminated, _, _ = plain.step(int(step.action[index]))
            np.testing.assert_allclose(step.next_obs[index], next_obs, rtol=1e-4, atol=1e-5)
            assert step.reward[index] == reward
            x, _, theta, _ = next_obs
            margin = min(abs(abs(x) - 2.4), abs(abs(theta) - 12 * 2 * math.pi / 360))
            assert step.terminated[index] == terminated or margin < 1e-5
            num_ended += int(terminated or step.truncated[index])
    assert num_ended == len(envs.take_finished())
    for step, following in pairwise(steps):
        done_N = step.terminated | step.truncated
        np.testing.assert_array_equal(following.obs[~done_N], step.next_obs[~done_N])
        assert (np.abs(following.obs[done_N]) <= 0.05).all()
    return num_ended


@pytest.mark.parametrize("act", [None, balance])
def test_every_transition_is_one_that_a_plain_cartpole_makes(act):
    envs = make_envs("CartPole-v0", 4, seed=3, mode="native")
    assert check_transitions(envs, steps=450, act=act) >= 8


def test_the_time_limit_truncates_and_shows_the_true_last_observation():
    envs = make_envs("CartPole-v0", 3, seed=1)
    steps = play(envs, balance, steps=200)
    assert not any(step.terminated.any() for step in steps)
    assert steps[-1].truncated.all()
    assert not any(step.truncated.any() for step in steps[:-1])
    assert (np.abs(envs.obs) <= 0.05).all()
    assert (steps[-1].next_obs != envs.obs).all()
    assert envs.take_finished() == [Episode(index, 200.0, 200) for index in range(3)]
    assert envs.take_finished() == []


def test_a_program_that_takes_no_episodes_keeps_the_newest(monkeypatch):
    envs, twin = (make_envs("CartPole-v1", 3, seed=1) for _ in range(2))
    play(twin, random_actions(0, 3), steps=400)
    monkeypatch.setattr("ding_lite.rl.envs.vector.MOST_FINISHED", 5)
    play(envs, random_actions(0, 3), steps=400)
    assert envs.take_finished() == twin.take_finished()[-5:]


def test_returns_and_lengths_are_those_counted_by_hand():
    envs = make_envs("CartPole-v1", 3, seed=5)
    tally, expected = [0, 0, 0], []
    for step in play(envs, random_actions(2, 3), steps=300):
        for index in range(3):
            tally[index] += 1
            if step.terminated[index] or step.truncated[index]:
                expected.append(Episode(index, float(tally[index]), tally[index]))
                tally[index] = 0
    assert envs.finished == expected
    assert len(expected) > 20


@pytest.mark.parametrize(
    "settings", [{}, {"sutton_barto_reward": True, "max_episode_steps": 15}], ids=str
)
def test_the_episodes_do_not_depend_on_the_mode(settings):
    def record(mode):
        with make_envs("CartPole-v0", 5, seed=7, mode=mode, env_args=settings) as envs:
            assert envs.spec.max_episode_steps == settings.get("max_episode_steps", 200)
            steps = play(envs, balance, steps=300) + play(envs, random_actions(4, 5), steps=100)
            envs.reset()
            steps += play(envs, random_actions(5, 5), steps=50)
        return steps, envs.take_finished()

    (native, finished), (sync, others) = record("native"), record("sync")
    assert finished == others
    assert_same(native, sync)
    rewards = {-1.0, 0.0} if settings else {1.0}
    assert rewards == set(np.concatenate([step.reward for step in native]).tolist())
    assert any(step.truncated.any() for step in native)


def test_adjacent_seeds_share_no_episode():
    starts = [make_envs("CartPole-v1", 4, seed=seed, mode="native").obs for seed in range(3)]
    assert len(np.unique(np.concatenate(starts), axis=0)) == 12


def test_a_reset_drops_the_unfinished_episodes():
    envs = make_envs("probe/Counter-v0", 1)
    action = np.zeros(1, dtype=np.int64)
    envs.step(action)
    assert envs.reset().tolist() == [[1, 0]]
    for _ in range(3):
        envs.step(action)
    assert envs.take_finished() == [Episode(0, 6.0, 3)]


def test_actions_are_counted_from_zero_whatever_the_environment_calls_them():
    envs = make_envs("probe/Shifted-v0", 2)
    assert envs.step(np.array([0, 1])).next_obs.tolist() == [[5], [6]]
    drawn = np.concatenate([envs.random_actions() for _ in range(30)])
    assert set(drawn.tolist()) == {0, 1}


def test_box_actions_pass_through():
    envs = make_envs("probe/Pull-v0", 2)
    step = envs.step(np.array([[0.5], [-1.5]], dtype=np.float32))
    assert step.next_obs.tolist() == [[0.5], [-1.5]]
    assert envs.spec.num_actions is None


def test_random_actions_follow_the_seed():
    def draw(seed):
        envs = make_envs("CartPole-v1", 8, seed=seed)
        return [envs.random_actions().tolist() for _ in range(4)]

    assert draw(0) == draw(0) != draw(1)


@pytest.mark.parametrize(
    ("where", "steps", "what"),
    [
        ("step", 2, r"observation \[0.0, nan\]"),
        ("reset", 2, r"observation \[1.0, nan\]"),
        ("reward", 1, "reward nan"),
    ],
)
def test_nan_names_the_environment(where, steps, what):
    envs = make_envs("probe/TurnsNaN-v0", 3, env_args={"where": where})
    play(envs, zeros, steps=steps)
    with pytest.raises(NonFiniteError, match=f"Environment 0 .* {what}"):
        play(envs, zeros, steps=1)


@pytest.mark.parametrize(
    ("kind", "space", "advice"),
    [
        ("observation", Box(0, 255, (2, 8, 8, 3), np.uint8), "ReshapeObservation"),
        ("action", Dict(x=Discrete(2)), "ActionWrapper"),
        ("action", Box(0, 5, (2,), np.int64), "MultiDiscrete"),
        ("action", Box(-1, 1, (0,)), "not empty"),
    ],
)
def test_an_unsupported_space_is_named(kind, space, advice):
    odd = type("Odd", (Probe,), {f"{kind}_space": space})
    told = rf"Odd has the {kind} space {re.escape(str(space))}.*{advice}"
    with pytest.raises(ConfigError, match=told):
        make_envs(odd, 2)


@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_the_advice_for_actions_of_other_axes_helps(shape):
    class Odd(probes.Pull):
        action_space = Box(-1.0, 1.0, shape)

        def step(self, action):
            assert action.shape == shape
            return super().step(np.zeros(2))

    with pytest.raises(ConfigError, match="gymnasium makes a vector of it by") as found:
        make_envs(Odd, 1)
    advice = str(found.value).partition("`")[2].partition("`")[0]
    names = {"TransformAction": TransformAction, "flatten_space": flatten_space}
    with make_envs(Odd, 1, wrappers=[lambda env: eval(advice, names | {"env": env})]) as envs:
        envs.step(envs.random_actions())


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_more_environments_than_fit_into_memory_are_refused(env_id):
    with pytest.raises(ConfigError, match=r"with `num_envs` .* GB of memory.* would fit"):
        make_envs(env_id, available_bytes() // 1_000)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=r"LunarLander-v3 .*pip install -e '\.\[box2d\]'"):
        make_envs("LunarLander-v3", 1)


def test_a_package_that_cannot_be_imported_is_not_said_to_be_missing():
    def broken():
        try:
            raise ImportError("libGL.so.1: cannot open shared object file")
        except ImportError as error:
            raise DependencyNotInstalled("MuJoCo is not installed") from error

    with pytest.raises(MissingExtraError, match=r"be imported: libGL\.so\.1: .*mujoco"):
        make_envs(broken, 1)


@pytest.mark.parametrize(
    ("env", "how", "told"),
    [
        ("CartPole-v1", {"mode": "synk"}, r'Did you mean "sync"'),
        ("Acrobot-v1", {}, r"no native vector form.*CartPole-v0, CartPole-v1"),
        ("CartPole-v1", {"wrappers": [FlattenObservation]}, r"vector form here.*wrappers"),
        ("probe/NextStepCounters-v0", {}, r"no native vector form"),
        (probes.Counter, {}, r"Counter has no native vector form"),
        ("CartPole-v1", {"num_envs": 0}, r"`num_envs` is 0"),
        ("probe/Counter-v0", {"reward_scale": 0.0, "mode": "auto"}, "`reward_scale` is 0.0"),
        ("probe/Counter-v0", {"reward_scale": math.inf, "mode": "auto"}, "`reward_scale` is inf"),
    ],
)
def test_settings_that_do_not_fit_are_refused(env, how, told):
    with pytest.raises(ConfigError, match=told):
        make_envs(env, **{"num_envs": 2, "mode": "native", **how})


def test_rewards_are_scaled_and_returns_are_not():
    envs = make_envs("probe/Counter-v0", 2, reward_scale=0.5)
    steps = play(envs, zeros, steps=3)
    assert [step.reward.tolist() for step in steps] == [[0.5, 0.5], [1.0, 1.0], [1.5, 1.5]]
    assert [episode.ret for episode in envs.take_finished()] == [6.0, 6.0]


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("Counter", "sync"),
        ("SameStepCounters", "native"),
        ("DisabledCounters", "native"),
        ("NextStepCounters", "sync"),  # its vector form resets too late
    ],
)
def test_an_episode_that_ends_for_good_shows_its_last_observation(kind, mode):
    envs = make_envs(f"probe/{kind}-v0", 2)
    assert envs.mode == mode
    steps = play(envs, zeros, steps=7)
    assert [step.obs[0].tolist() for step in steps] == [
        [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0],
    ]  # fmt: skip
    assert [step.next_obs[0].tolist() for step in steps[:4]] == [[0, 1], [0, 2], [0, 3], [1, 1]]
    assert [bool(step.terminated[0]) for step in steps] == [0, 0, 1, 0, 0, 1, 0]
    assert not any(step.truncated.any() for step in steps)
    assert envs.take_finished() == [Episode(index, 6.0, 3) for index in (0, 1, 0, 1)]


@pytest.mark.parametrize(
    ("env", "wrong"), [(probes.Weak, 1), (partial(probes.TurnsNaN, "reward"), 0)]
)
def test_episodes_begin_anew_after_a_failed_step(env, wrong):
    with make_envs(env, 2, mode="sync") as envs:
        envs.step(np.array([0, 0]))
        with pytest.raises((EnvError, NonFiniteError)):
            envs.step(np.array([0, wrong]))  # the first environment has stepped
        step = envs.step(np.array([0, 0]))
        assert step.obs[:, -1].tolist() == [0.0, 0.0]
        assert step.next_obs[:, -1].tolist() == [1.0, 1.0]


NO_NUMBERS: list[Any] = [[[1], [0, 1]], [["left"], ["right"]], [[None], [1]]]


@pytest.mark.parametrize(
    ("env_id", "action", "error", "told"),
    [
        ("CartPole-v1", [0, 1, 0], ShapeError, r"shape \(3,\).*2 environments.*\(2,\)"),
        ("CartPole-v1", [0, 2], ConfigError, r"\[0, 2\].*0 to 1"),
        ("CartPole-v1", [-1, 0], ConfigError, r"\[-1, 0\].*0 to 1"),
        ("CartPole-v1", np.array([0, 2], np.int32), ConfigError, r"\[0, 2\].*0 to 1"),
        ("CartPole-v1", [0.0, 1.0], ShapeError, r"type float64; whole numbers.*Discrete\(2\)"),
        *(("CartPole-v1", action, ShapeError, "`action`") for action in NO_NUMBERS),
        *(("Pendulum-v1", each, (ShapeError, NonFiniteError), "`action`") for each in NO_NUMBERS),
    ],
)
def test_wrong_actions_are_refused_and_step_nothing(env_id, action, error, told):
    envs = make_envs(env_id, 2)
    before = envs.obs
    with pytest.raises(error, match=told):
        envs.step(action)
    assert envs.obs is before


@pytest.mark.parametrize(
    ("env_id", "action"),
    [
        *(("CartPole-v1", action) for action in ([0, 1], (0, 1), torch.tensor([0, 1]))),
        ("Pendulum-v1", torch.nn.Linear(3, 1)(torch.ones(2, 3))),  # with a gradient
    ],
)
def test_actions_may_be_a_list_or_a_tensor(env_id, action):
    found = make_envs(env_id, 2, mode="sync").step(action).action
    assert found.tolist() == np.asarray(torch.as_tensor(action).detach()).tolist()


@pytest.mark.parametrize("mode", MODES)
def test_arrays_of_a_step_are_not_written_to_later_and_close_may_be_called_twice(mode):
    with make_envs("CartPole-v1", 2, seed=0, mode=mode) as envs:
        step = envs.step(np.array([0, 1]))
        before = [step.obs.copy(), step.next_obs.copy(), step.reward.copy()]
        play(envs, random_actions(0, 2), steps=60)
    envs.close()
    np.testing.assert_equal(before, [step.obs, step.next_obs, step.reward])


OWN = pytest.param("async", marks=pytest.mark.procs)


@pytest.mark.parametrize("mode", ["sync", OWN, *AutoresetMode])
def test_episodes_say_whether_their_last_step_was_a_success(mode):
    def make():
        return probes.TellsSuccess(probes.Counter())

    if isinstance(mode, AutoresetMode):
        envs = make_envs(SyncVectorEnv([make] * 3, autoreset_mode=mode))
    else:
        envs = make_envs(make, 3, mode=mode)
    with envs:
        for actions in [[0, 1, 2]] * 4 + [[1, 0, 2]] * 2 + [[2, 2, 2]] * 3:
            envs.step(np.array(actions))
        told = [one.success for one in envs.take_finished()]
    assert told == [False, True, None, True, False, None, None, None, None]


@pytest.mark.parametrize("most", [0.1, 1.0])  # float32 has the second one exactly
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_actions_are_of_the_type_of_their_space(dtype, most):
    class Strict(probes.Pull):
        action_space = Box(-most, most, (2,), dtype)

        def step(self, action):
            assert self.action_space.contains(action)
            assert action.dtype == dtype
            return super().step(action)

    with make_envs(Strict, 2, mode="sync") as envs:
        envs.step(envs.random_actions())
        for bound in (Strict.action_space.low, Strict.action_space.high):
            for rounded in (bound, bound.astype(np.float32)):
                assert envs.step(np.stack([rounded] * 2)).action.dtype == np.float32


def test_the_advice_for_actions_without_bounds_helps():
    class Unbounded(probes.Pull):
        action_space = Box(-np.inf, np.inf, (1,))

    for policy in (DQN, SAC):
        with pytest.raises(ConfigError, match="Take PPO, A2C or IMPALA"):
            policy(make_envs(Unbounded, 1, mode="sync").spec)
    bounded = partial(TransformAction, func=lambda action: action, action_space=Box(-1, 1, (1,)))
    SAC(make_envs(Unbounded, 1, mode="sync", wrappers=[bounded]).spec)

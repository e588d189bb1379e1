"""Every fault of an environment is an `EnvError` that names it, in one process and in several."""

import socket
from collections import namedtuple
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ding_lite.errors import ConfigError, EnvError, MissingExtraError
from ding_lite.rl import make_envs
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.rl.envs.sources import EnvLoop

ZEROS = np.zeros(4, np.float32)
GOOD_STEP: Any = (ZEROS, 1.0, False, False, {})
SPACES: dict[str, Space[Any]] = {
    "box": Box(-9.0, 9.0, (4,), np.float32),
    "bytes": Box(0, 255, (4,), np.uint8),
    "discrete": Discrete(3, start=2),
    "ints": Box(0, 10, (4,), np.int32),
    "flags": Box(0, 1, (4,), np.uint8),
    "dict": Dict(at=Discrete(3)),
    "tuple": Tuple((Discrete(3), Discrete(3))),
}


class _Unshown:
    def __repr__(self):
        raise RuntimeError("not even this")

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("not even this")


class Faulty(gymnasium.Env):
    """Returns given answers; an exception among them is raised."""

    action_space: Space[Any] = Discrete(2)

    def __init__(self, step=GOOD_STEP, reset=(ZEROS, {}), made=None, closed=None, space="box"):
        if made is not None:
            raise made
        self.observation_space = SPACES[space]
        self.answers = {"step": step, "reset": reset, "close": closed}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._answer("reset")

    def step(self, action):
        return self._answer("step")

    def close(self):
        self._answer("close")

    def _answer(self, method):
        answer = self.answers[method]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def play(*, mode="sync", num_envs=2, wrappers=(), **settings):
    with make_envs(Faulty, num_envs, mode=mode, wrappers=wrappers, env_args=settings) as envs:
        return envs.step(np.zeros(num_envs, dtype=np.int64))


NamedStep = namedtuple("NamedStep", ["obs", "reward", "terminated", "truncated", "info"])


def step(obs=ZEROS, reward=1.0, terminated=False, truncated=False, info=None):
    return obs, reward, terminated, truncated, {} if info is None else info


RAISES = {
    "with words": (ValueError("no such place"), r"raised ValueError in `{}`: no such place\."),
    "without words": (RuntimeError(), r"raised RuntimeError in `{}` without a message"),
    "StopIteration": (StopIteration(), r"raised StopIteration in `{}`"),
    "GeneratorExit": (GeneratorExit(), r"raised GeneratorExit in `{}`"),
    "a file too many": (OSError(24, "Too many open files"), r"raised OSError in `{}`.*open files"),
    "sys.exit": (SystemExit(0), r"called sys\.exit\(0\) in `{}`"),
    "lines": (KeyError("a\nb"), r"raised KeyError in `{}`"),
}


@pytest.mark.parametrize("fault", RAISES)
def test_an_error_names_its_environment_and_method(fault):
    error, told = RAISES[fault]
    for name, method in (("step", "step"), ("reset", "reset"), ("closed", "close")):
        named = "Environment 0 of Faulty " + told.format(method)
        with pytest.raises(EnvError, match=named) as caught:
            play(**{name: error})
        assert caught.value.__cause__ is error
    with pytest.raises(EnvError, match="Faulty " + told.format("__init__")):
        play(made=error)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (GOOD_STEP[:4], r"returned 4 values from `step`; a tuple of five .* before 0.26"),
        ((*GOOD_STEP, 0), r"returned 6 values from `step`; a tuple of five .*, info\.$"),
        ([*GOOD_STEP], r"returned a list from `step`; a tuple of five was expected: .*, info\.$"),
        (None, r"returned None from `step`"),
        (step(reward=np.array([1.0])), r"gave the reward array\(\[1\.\]\) from `step`; one number"),
        (step(reward="1"), r"gave the reward '1'"),
        (step(terminated="no"), r"gave `terminated` 'no' from `step`; True or False"),
        (step(terminated=None), r"gave `terminated` None"),
        (step(terminated=2), r"gave `terminated` 2"),
        (step(truncated=np.array([True, False])), r"gave `truncated` array"),
        (step(info=[]), r"gave the info \[\] from `step`; a dict"),
        (step(obs=np.zeros(1, np.float32)), r"from `step` .*shape \(1,\) and dtype float32; "),
        (step(obs=np.float32(0)), r"shape \(\) and dtype float32"),
        (step(obs=np.array(["a"] * 4)), r"dtype <U1"),
        (step(obs=np.zeros(4, "M8[s]")), r"dtype datetime64"),
        (step(obs=None), r"dtype object"),
        (step(obs=[[0.0], [0.0, 1.0], 2.0, 3.0]), r"observation from `step`"),
        (step(obs=_Unshown()), r"_Unshown instance"),
    ],
)
def test_a_step_that_returns_something_else_is_refused(answer, told):
    with pytest.raises(EnvError, match=f"Environment 0 of Faulty .*{told}"):
        play(step=answer)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ZEROS, r"from `reset`; a tuple of two was expected: obs, info"),
        ([ZEROS, {}], r"returned \[array.* from `reset`; a tuple of two"),
        ((ZEROS, {}, 0), r"from `reset`; a tuple of two"),
        ((ZEROS, None), r"gave the info None from `reset`"),
    ],
)
def test_a_reset_that_returns_something_else_is_refused(answer, told):
    with pytest.raises(EnvError, match=f"Environment 0 of Faulty .*{told}"):
        play(reset=answer)


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        *(("bytes", obs) for obs in (np.full(4, 0.5, np.float32), np.full(4, 256))),
        *(("discrete", obs) for obs in (1, 2.5, np.array([2]), 2**70)),
        ("box", np.full(4, 10, np.float32)),
        ("ints", np.full(4, 11, np.int32)),
        ("flags", np.full(4, 10, np.uint8)),
        ("dict", {"at": 0, "to": 1}),
        ("tuple", (0, 1, 2)),
    ],
)
def test_an_observation_outside_of_its_space_is_refused(space, obs):
    with pytest.raises(EnvError, match=r"observation from `reset` that is not of its space"):
        play(space=space, reset=(obs, {}))


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        *(("box", obs) for obs in ([0, 1, 2, 3], np.ones(4, bool), np.full(4, 9.00001, "f4"))),
        *(("bytes", obs) for obs in (np.arange(4), [0, 1, 2, 255])),
        *(("discrete", obs) for obs in (3, np.int64(4))),
        ("ints", np.arange(4)),
    ],
)
def test_unambiguous_values_of_other_types_are_accepted(space, obs):
    seen = play(space=space, reset=(obs, {}), step=step(obs=obs)).next_obs[1]
    expected = np.eye(3)[int(obs) - 2] if space == "discrete" else obs
    np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize("reward", [1, np.float64(1), np.int8(1), np.array(1.0), True])
@pytest.mark.parametrize("flag", [0, np.bool_(False), np.array(False)])
def test_numbers_and_flags_of_numpy_in_a_named_tuple_are_accepted(reward, flag):
    seen = play(step=NamedStep(*step(reward=reward, terminated=flag, truncated=flag)))
    assert seen.reward.tolist() == [1.0, 1.0]
    assert not seen.terminated.any()


@pytest.mark.parametrize("reward", [1e300, -(10**400), np.inf, np.nan])
def test_a_reward_that_float32_cannot_hold_is_not_finite(reward):
    with pytest.raises(ArithmeticError, match=r"Environment 0 .* reward -?(inf|nan)"):
        play(step=step(reward=reward))


def test_four_values_are_recognised_behind_the_wrappers_of_gymnasium():
    with pytest.raises(EnvError, match=r"Environment 0 .* returned 4 values from `step`; a tuple"):
        play(max_episode_steps=5, step=GOOD_STEP[:4])


@pytest.mark.parametrize(
    "fault", [{"reset": StopIteration()}, {"made": ValueError("never")}, {"step": SystemExit(0)}]
)
def test_a_fault_reads_the_same_in_each_mode(fault):
    told = set()
    for mode in ("sync", "async", "auto"):
        with pytest.raises(EnvError) as caught:
            play(mode=mode, **fault)
        told.add(str(caught.value))
    assert len(told) == 1


def test_an_environment_that_is_not_the_first_is_named_by_its_number():
    count = iter(range(9))

    def faulty_if_third(env):
        if next(count) == 3:  # the very first one is made to look at its spaces
            env.unwrapped.answers["step"] = RuntimeError("it is me")
        return env

    with pytest.raises(EnvError, match="Environment 2 of"):
        play(num_envs=4, wrappers=[faulty_if_third])


def test_a_wrapper_that_fails_is_named():
    def breaks(env):
        raise LookupError("no wrapping today")

    told = r"The wrapper `breaks` of Faulty raised LookupError: no wrapping today\. .* mend it\.$"
    with pytest.raises(EnvError, match=told):
        play(wrappers=[breaks])
    with pytest.raises(ConfigError, match=r"The wrapper `lambda` .* returned None; "):
        play(wrappers=[lambda env: None])


def test_environments_are_closed_if_the_next_one_cannot_be_made():
    open_ones: list[object] = []

    class Opens(gymnasium.Wrapper):
        def __init__(self, env):
            if len(open_ones) == 2:
                raise OSError(24, "Too many open files")
            super().__init__(env)
            open_ones.append(self)

        def close(self):
            open_ones.remove(self)

    first = Opens(Faulty())  # so that the failing one is the second of two
    with pytest.raises(EnvError, match=r"The wrapper `Opens` of Faulty raised OSError: "):
        play(num_envs=4, wrappers=[Opens])
    assert open_ones == [first]


def test_all_environments_are_closed_if_one_raises_in_close():
    closed = []

    class Closes(gymnasium.Wrapper):
        def close(self):
            closed.append(self)
            if len(closed) == 2:
                raise OSError("the lid is stuck")

    with pytest.raises(EnvError, match=r"Environment 0 .* raised OSError in `close`: the lid is"):
        play(num_envs=3, wrappers=[Closes])
    assert len(closed) == 4


def test_an_environment_that_writes_to_its_action_changes_only_a_copy():
    class Greedy(gymnasium.ActionWrapper):
        action_space: Any = Box(-1.0, 1.0, (2,), np.float32)

        def action(self, action):
            action *= 0.0
            return action

    with make_envs(Faulty, 2, mode="sync", wrappers=[Greedy]) as envs:
        asked = envs.random_actions()
        before = asked.copy()
        np.testing.assert_array_equal(envs.step(asked).action, before)
        kept = envs.state_dict()["source"]["histories"][0]["actions"][0]
        np.testing.assert_array_equal(kept, before[0])


class Drawing(Faulty):
    """Draws from its generator, and does not seed it."""

    def __init__(self, *, where, action_space=Faulty.action_space, **answers):
        super().__init__(**answers)
        self.where, self.action_space = where, action_space

    def reset(self, *, seed=None, options=None):
        return self._answer("reset")

    def _answer(self, method):
        if method == self.where:
            self.np_random.random()
        return super()._answer(method)


def play_made(make):
    with make_envs(make, 2, mode="sync") as envs:
        return envs.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_environment_that_draws_without_the_seed_is_refused(where):
    with pytest.raises(EnvError, match=rf"drew random numbers in `{where}` .*super\(\)\.reset"):
        play_made(lambda: Drawing(where=where))


def test_an_environment_that_does_not_pass_its_seed_on_is_told_of_once(caplog):
    class Silent(Drawing):
        pass

    play_made(Faulty)
    assert not caplog.records
    for _ in range(2):
        play_made(partial(Silent, where="nowhere"))
    [warning] = caplog.messages
    assert warning.startswith("Silent did not begin its `reset` with `super().reset(seed=seed)`")
    caplog.clear()
    env = Drawing(where="nowhere")
    spec = EnvMaker(lambda: env).spec()
    caplog.clear()
    EnvLoop([env], seeds=[0], spec=replace(spec, env_id="Worker")).reset()  # as in a process
    assert not caplog.records


def test_the_check_of_an_action_space_leaves_its_draws_as_they_were():
    space = Discrete(1000, seed=3)
    make_envs(lambda: Drawing(where="nowhere", action_space=space), 1, mode="sync").close()
    assert space.sample() == Discrete(1000, seed=3).sample()


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        (lambda self: 7, r"action space Discrete\(2\), and its `sample` returned 7"),
        (lambda self: int("x"), "raised ValueError in `action_space.sample`: invalid"),
    ],
)
def test_an_action_space_that_draws_what_it_does_not_contain_is_refused(sample, told):
    odd = type("Odd", (Discrete,), {"sample": sample})(2)
    with pytest.raises(EnvError, match=told):
        play_made(partial(Drawing, where="nowhere", action_space=odd))


@pytest.mark.parametrize("space", [None, [0, 1]])
def test_a_thing_that_is_no_space_of_actions_is_refused(space):
    told = r"Drawing has the action space .*; a choice \(Discrete\)"
    with pytest.raises(ConfigError, match=told):
        play_made(partial(Drawing, where="nowhere", action_space=space))


def needs_a_long_path(self):
    """Fail as a server of processes in a directory with a very long name does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("x" * 200)


def breaks(self):
    raise BrokenPipeError("Broken pipe")


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (breaks, r'ended before it began .*__name__ == "__main__"'),
        (needs_a_long_path, r"\(AF_UNIX path too long\).* set TMPDIR to a shorter one"),
    ],
)
def test_a_process_that_ends_while_it_starts_is_told_with_what_to_do(monkeypatch, start, told):
    monkeypatch.setattr("multiprocessing.context.ForkServerProcess.start", start)
    with pytest.raises(EnvError, match=told):
        play(mode="async")


BYTES = Box(0, 255, (4,), np.uint8)
PARTS = Dict(at=BYTES, key=Discrete(3, start=2))


SAME_STEP = {"autoreset_mode": AutoresetMode.SAME_STEP}


class Together(VectorEnv):
    """Shows given observations, and ends all episodes at each step."""

    fault: dict[str, Any] = {}  # noqa: RUF012
    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, num_envs, *, space=SPACES["box"], shown=None, final=None):
        if final is not None:
            self.metadata = SAME_STEP
        self.num_envs, self.final = num_envs, final
        self.shown = np.zeros((num_envs, 4), np.float32) if shown is None else shown
        self.single_observation_space, self.single_action_space = space, Discrete(2)
        self.observation_space = batch_space(space, num_envs)
        self.action_space = batch_space(Discrete(2), num_envs)

    def reset(self, *, seed=None, options=None):
        return self.shown, {}

    def step(self, action):
        if "raise" in self.fault:
            raise self.fault["raise"]
        ended = np.ones(self.num_envs, bool)
        answer = {"obs": self.shown, "reward": np.ones(self.num_envs)}
        answer |= {"terminated": ended, "truncated": ~ended} | self.fault
        return *answer.values(), {} if self.final is None else {"final_obs": self.final}


class Bare(Faulty):
    def __init__(self):
        pass

    def close(self):
        pass


class Halfway(Together):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        del self.single_action_space


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Bare, r"Bare has no `observation_space`; set it in `__init__`"),
        (Halfway, r"Halfway has no `single_action_space`; set it in"),
        (
            type("Broken", (Bare,), {"observation_space": property(lambda self: self.size)}),
            r"Broken raised AttributeError in `observation_space`: .*no attribute 'size'",
        ),
    ],
)
def test_an_environment_without_spaces_is_an_error(kind, told):
    with pytest.raises(EnvError, match=told):
        make_envs(kind, 2)


def play_together(space, shown, **how):
    with make_envs(partial(Together, space=space, shown=shown, **how), 3) as envs:
        return envs.step(np.zeros(3, np.int64)).next_obs


@pytest.mark.parametrize(
    ("space", "shown", "told"),
    [
        (BYTES, np.full((3, 4), 0.5), r"`observations` of shape \(3, 4\) and dtype float64"),
        (Discrete(3, start=2), np.zeros(3, int), "with 0 in it"),
        (MultiBinary(2), np.full((3, 2), 2, np.int8), "with 2 in it"),
        (MultiDiscrete([2, 3]), np.full((3, 2), 2), "with 2 in it"),
        (
            PARTS,
            {"at": np.full((3, 4), 0.5), "key": np.full(3, 2)},
            r"that are not of their space; their part `obs\[\"at\"\]` is .* dtype float64",
        ),
        (PARTS, {"at": np.zeros((3, 4), np.uint8), "key": np.zeros(3, int)}, "with 0 in it"),
        (PARTS, {"at": np.zeros((3, 4), np.uint8)}, r"`obs\[\"key\"\]` is missing in"),
    ],
)
def test_observations_of_a_vector_that_would_be_converted_to_others_are_refused(space, shown, told):
    with pytest.raises(EnvError, match=f"The vector form of .* gave .*{told}"):
        play_together(space, shown)


@pytest.mark.parametrize(
    ("final", "told"),
    [
        (np.zeros(1, np.uint8), r"shape \(1,\) and dtype uint8"),
        (np.full(4, 300), "with 300 in it"),
        (None, "None"),
    ],
)
def test_the_last_observations_of_a_vector_are_checked_like_all_others(final, told):
    last = np.empty(3, object)
    last[:] = [final] * 3
    with pytest.raises(EnvError, match=f"from `final_obs` that is not of its space: .*{told}"):
        play_together(BYTES, np.zeros((3, 4), np.uint8), final=last)


@pytest.mark.parametrize("flags", [np.array([0, 0, 1]), np.array([1, 1, 0], np.uint8), [1, 0, 0]])
def test_flags_of_a_vector_may_be_the_numbers_0_and_1(flags):
    fault = {"terminated": flags, "truncated": flags}
    with make_envs(type("Numbers", (Together,), {"fault": fault}), 3) as envs:
        step = envs.step(np.zeros(3, np.int64))
    assert step.terminated.dtype == np.bool_
    assert step.terminated.tolist() == step.truncated.tolist() == [*map(bool, flags)]


def test_a_vector_that_fits_its_space_is_played():
    shown = {"at": np.full((3, 4), 7), "key": np.array([2, 3, 4])}
    last = [{"at": np.zeros(4, np.uint8), "key": 2}] * 3
    seen = play_together(PARTS, shown, final=last)
    assert seen.tolist() == [[0, 0, 0, 0, 1, 0, 0]] * 3


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"reset": lambda self, **_: (ZEROS, None)}, EnvError, "gave the info None from `reset`"),
        ({"reset": lambda self, **_: ZEROS}, EnvError, "from `reset`; a tuple of two"),
        ({"step": lambda self, action: GOOD_STEP[:4]}, EnvError, "returned 4 values from `step`"),
        ({"metadata": None}, ConfigError, "has the autoreset mode None"),
        ({"metadata": SAME_STEP}, EnvError, r'no `info\["final_obs"\]` from `step`.*SAME_STEP'),
        ({"raise": RuntimeError()}, EnvError, "raised RuntimeError in `step` without a"),
        ({"obs": np.zeros((2, 1))}, EnvError, r"gave `observations` of shape \(2, 1\)"),
        ({"reward": 1.0}, EnvError, r"gave `reward` of shape \(\)"),
        ({"terminated": np.zeros(2)}, EnvError, "`terminated` .* dtype float64; .*True or False"),
        ({"terminated": np.array([0, 2])}, EnvError, "gave `terminated` .* True or False"),
        ({"truncated": ["no"] * 2}, EnvError, "gave `truncated` .* dtype <U2"),
    ],
)
def test_a_vector_with_answers_of_another_kind_is_refused_and_closed(change, error, told):
    closed = []
    own = change if change.keys() <= {"reset", "step", "metadata"} else {"fault": change}
    kind = type("Odd", (Together,), {**own, "close": lambda self, **_: closed.append(self)})
    with pytest.raises(error, match=f"The vector form of Odd .*{told}"), make_envs(kind, 2) as envs:
        envs.step(np.zeros(2, np.int64))
    assert len(closed) == 1


def test_a_package_that_a_reset_needs_is_named_with_its_extra():
    missing = gymnasium.error.DependencyNotInstalled("pygame is not installed")
    with pytest.raises(MissingExtraError, match=r"Faulty needs a package .*\[video\]"):
        make_envs(partial(Faulty, reset=missing), 1).reset()

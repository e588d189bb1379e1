"""Environments are found by names, and found again by the names that checkpoints keep."""

import functools
import pickle
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from ding_lite.errors import ConfigError, EnvError
from ding_lite.rl import make_envs
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.rl.envs.naming import find_env, name_of

SOURCE = """
import gymnasium
import numpy as np
from corridor_helper import LENGTH


class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=LENGTH):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.at += int(action)
        done = self.at == self.length
        return np.full(2, self.at / self.length, np.float32), float(done), done, False, {}


class Taller(gymnasium.ObservationWrapper):
    def observation(self, obs):
        return obs + 1


class Corridors(gymnasium.vector.VectorEnv):
    pass


def _hidden():
    return Corridor(1)


def short():
    return Corridor(2)


gymnasium.register("named/Corridor-v0", entry_point=Corridor, max_episode_steps=7)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with a file of environments; what is imported of it is forgotten."""
    (tmp_path / "corridor_file.py").write_text(SOURCE)
    (tmp_path / "corridor_helper.py").write_text("LENGTH = 3\n")
    (tmp_path / "corridor_broken.py").write_text("raise LookupError('no maps')\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    gymnasium.registry.pop("named/Corridor-v0", None)
    for module in [name for name in sys.modules if name.startswith("corridor_")]:
        del sys.modules[module]


def steps_to_the_end(env, **how):
    with make_envs(env, 2, seed=0, **{"mode": "sync", **how}) as envs:
        for count in range(1, 20):
            step = envs.step(np.ones(2, dtype=np.int64))
            if (step.terminated | step.truncated).any():
                return envs.spec.env_id, count, bool(step.terminated[0])
    return None


def class_of(name):
    found = find_env(name)
    assert isinstance(found, type)
    return found


def test_all_forms_of_a_name_are_found_and_objects_taken(folder):
    path, long = f"{folder}/corridor_file.py", {"env_args": {"length": 9}}
    limited = {"env_args": {"length": 9, "max_episode_steps": 4}}
    corridor = class_of("corridor_file.py:Corridor")
    limit = functools.partial(gymnasium.wrappers.TimeLimit, max_episode_steps=2)
    for env, how, expected in (
        ("corridor_file.py:Corridor", {}, ("Corridor", 3, True)),
        (f"{path}:short", {}, ("short", 2, True)),
        ("corridor_file:Corridor", {}, ("Corridor", 3, True)),
        ("corridor_file:named/Corridor-v0", long, ("named/Corridor-v0", 7, False)),
        ("named/Corridor-v0", {"imports": [path], **long}, ("named/Corridor-v0", 7, False)),
        (f"{path}:Corridor", limited, ("Corridor", 4, False)),
        (corridor, {"wrappers": [limit]}, ("Corridor", 2, False)),
        (lambda: corridor(5), {}, ("lambda", 5, True)),
        (functools.partial(corridor, length=4), {}, ("Corridor", 4, True)),
    ):
        assert steps_to_the_end(env, **how) == expected, env


@pytest.mark.procs
@pytest.mark.parametrize("form", ["file", "lambda"])
def test_worker_processes_find_it_too(folder, form):
    env: Any = f"{folder}/corridor_file.py:Corridor"
    if form == "lambda":
        env = functools.partial(lambda cls: cls(), class_of(env))
    assert steps_to_the_end(env, mode="async")[1:] == (3, True)


def test_a_maker_is_found_again_by_its_description_and_by_pickle(folder):
    limit = functools.partial(gymnasium.wrappers.TimeLimit, max_episode_steps=2)
    name = f"{folder}/corridor_file.py:Corridor"
    maker = EnvMaker.of(name, args={"length": 4}, wrappers=[limit])
    again = EnvMaker.from_description(maker.described(), name="Corridor")
    wrapper = {"name": "gymnasium.wrappers.common:TimeLimit", "args": {"max_episode_steps": 2}}
    expected = {"env": name, "env_args": {"length": 4}, "wrappers": [wrapper]}
    assert maker.described() == expected
    maker()
    unpickled = pickle.loads(pickle.dumps(maker))
    assert (str(again()), str(unpickled())) == (str(maker()),) * 2


def test_what_has_no_name_is_told_when_it_is_sought(monkeypatch):
    for maker in (EnvMaker.of(lambda: None), EnvMaker.of("CartPole-v1", wrappers=[lambda e: e])):
        with pytest.raises(ConfigError, match=r"cannot be found again.*load_policy\(\.\.\., env="):
            EnvMaker.from_description(maker.described(), name="mine")
    assert name_of(name_of) == "ding_lite.rl.envs.naming:name_of"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "<stdin>", raising=False)
    assert name_of(type("Typed", (), {"__module__": "__main__"})) is None


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ("no/such.py:Env", r"There is no file .*no/such\.py"),
        ("no_such:Env-v0", r"There is no module `no_such`"),
        ("corridor_file.py:Coridor", r'no environment `Coridor`.*mean "Corridor"'),
        (
            "corridor_file.py:Hall",
            r"environments and functions are: Corridor, Corridors, short, named/Corridor-v0\.$",
        ),
        ("corridor_file.py:sort", r'Did you mean "short"'),
        ("corridor_file.py:named/Coridor-v0", r'Did you mean "named/Corridor-v0"'),
        ("json:dumps", r"dumps could not be made with the arguments {}"),
        ("os:getcwd", r"`getcwd` returned a str; an environment of gymnasium"),
        ("CartPol-v1", r"'CartPol-v1' .* Did you mean \"CartPole-v1\"\?"),
        ("Corridor-v0", r"no environment 'Corridor-v0'.*path/to/file\.py:MyEnv"),
        ("x" * 1_000_000, r"^.{,600}$"),
        (3, r"The environment is an int; expected is its name"),
    ],
)
def test_a_name_that_leads_nowhere_is_told(folder, env, told):
    with pytest.raises(ConfigError, match=told):
        make_envs(env, 1)
    with pytest.raises(EnvError, match=r"raised LookupError while .*: no maps"):
        make_envs("corridor_broken.py:Env", 1)


@pytest.mark.parametrize(
    ("env", "how", "told"),
    [
        ("corridor_file.py:Corridor", {"args": {"width": 2}}, r"{'width': 2}.*--env-arg NAME="),
        ("corridor_file.py:Corridor", {"args": ["length"]}, "`env_args` is a list"),
        (gymnasium.make_vec("CartPole-v1", 2), {"args": {"a": 3}}, r"`env_args` is .*made already"),
        ("CartPole-v1", {"wrappers": gymnasium.Wrapper}, "`wrappers` is <class .*a list of"),
        ("CartPole-v1", {"wrappers": ["x"]}, r"`wrappers` is \['x'\]; a list of functions"),
        ("CartPole-v1", {"imports": "a.py"}, "`imports` is 'a.py'; a list of names"),
        ("CartPole-v1", {"imports": [3]}, r"`imports` is \[3\]; a list of names"),
    ],
)
def test_arguments_that_do_not_fit_are_told(folder, env, how, told):
    with pytest.raises(ConfigError, match=told):
        EnvMaker.of(env, **how)()


def test_a_partial_function_of_plain_keywords_is_found_again(folder):
    corridor = class_of("corridor_file.py:Corridor")
    maker = EnvMaker.of(functools.partial(corridor, length=4), args={"length": 5})
    again = EnvMaker.from_description(maker.described(), name="Corridor")
    assert again.args == {"length": 5}
    assert again().unwrapped.length == 5
    of_objects = EnvMaker.of(functools.partial(corridor, length=object()))
    assert of_objects.described() == {"env": None}

"""Environments are found by names, and found again by the names that checkpoints keep."""

import functools
import pickle
import sys

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


def test_all_forms_of_a_name_are_found(folder):
    assert steps_to_the_end("corridor_file.py:Corridor") == ("Corridor", 3, True)
    path = f"{folder}/corridor_file.py"
    found = {name: steps_to_the_end(name) for name in (f"{path}:short", "corridor_file:Corridor")}
    assert list(found.values()) == [("short", 2, True), ("Corridor", 3, True)]
    long = {"env_args": {"length": 9}}
    by_id = steps_to_the_end("corridor_file:named/Corridor-v0", **long)
    assert by_id == ("named/Corridor-v0", 7, False)
    assert steps_to_the_end("named/Corridor-v0", imports=[path], **long) == by_id
    limited = {"length": 9, "max_episode_steps": 4}
    assert steps_to_the_end(f"{path}:Corridor", env_args=limited) == ("Corridor", 4, False)


def test_objects_are_taken_and_wrapped(folder):
    corridor = class_of("corridor_file.py:Corridor")
    limit = functools.partial(gymnasium.wrappers.TimeLimit, max_episode_steps=2)
    assert steps_to_the_end(corridor, wrappers=[limit]) == ("Corridor", 2, False)
    assert steps_to_the_end(lambda: corridor(5)) == ("lambda", 5, True)
    assert steps_to_the_end(functools.partial(corridor, length=4)) == ("Corridor", 4, True)


@pytest.mark.procs
@pytest.mark.parametrize("form", ["file", "lambda"])
def test_worker_processes_find_it_too(folder, form):
    name = f"{folder}/corridor_file.py:Corridor"
    env = name if form == "file" else class_of(name)
    if form == "lambda":
        env = functools.partial(lambda cls: cls(), env)
    _, count, terminated = steps_to_the_end(env, mode="async")
    assert (count, terminated) == (3, True)


def test_a_maker_is_found_again_by_its_description_and_by_pickle(folder):
    limit = functools.partial(gymnasium.wrappers.TimeLimit, max_episode_steps=2)
    name = f"{folder}/corridor_file.py:Corridor"
    maker = EnvMaker.of(name, args={"length": 4}, wrappers=[limit])
    again = EnvMaker.from_description(maker.described(), name="Corridor")
    assert maker.described() == {
        "env": name,
        "env_args": {"length": 4},
        "wrappers": [
            {"name": "gymnasium.wrappers.common:TimeLimit", "args": {"max_episode_steps": 2}}
        ],
    }
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
    ("env", "error", "told"),
    [
        ("no/such.py:Env", ConfigError, r"There is no file .*no/such\.py"),
        ("no_such:Env-v0", ConfigError, r"There is no module `no_such`"),
        ("corridor_file.py:Coridor", ConfigError, r'no environment `Coridor`.*mean "Corridor"'),
        (
            "corridor_file.py:Hall",
            ConfigError,
            r"environments and functions are: Corridor, Corridors, short, named/Corridor-v0\.$",
        ),
        ("corridor_file.py:sort", ConfigError, r'Did you mean "short"'),
        ("corridor_file.py:named/Coridor-v0", ConfigError, r'Did you mean "named/Corridor-v0"'),
        (
            "corridor_broken.py:Env",
            EnvError,
            r"raised LookupError while .*: no maps",
        ),
        ("json:dumps", ConfigError, r"dumps could not be made with the arguments {}"),
        ("os:getcwd", ConfigError, r"`getcwd` returned a str; an environment of gymnasium"),
        ("CartPol-v1", ConfigError, r"'CartPol-v1' .* Did you mean \"CartPole-v1\"\?"),
        ("Corridor-v0", ConfigError, r"no environment 'Corridor-v0'.*path/to/file\.py:MyEnv"),
        (3, ConfigError, r"The environment is an int; expected is its name"),
    ],
)
def test_a_name_that_leads_nowhere_is_told(folder, env, error, told):
    with pytest.raises(error, match=told):
        make_envs(env, 1)


def test_arguments_that_do_not_fit_are_told(folder):
    with pytest.raises(ConfigError, match=r"arguments {'width': 2}.*--env-arg NAME=VALUE"):
        make_envs("corridor_file.py:Corridor", 1, env_args={"width": 2})
    with pytest.raises(ConfigError, match="`env_args` is a list"):
        make_envs("corridor_file.py:Corridor", 1, env_args=["length"])  # type: ignore[arg-type]


def test_a_partial_function_of_plain_keywords_is_found_again(folder):
    corridor = class_of("corridor_file.py:Corridor")
    maker = EnvMaker.of(functools.partial(corridor, length=4), args={"length": 5})
    again = EnvMaker.from_description(maker.described(), name="Corridor")
    assert again.args == {"length": 5}
    assert again().unwrapped.length == 5
    of_objects = EnvMaker.of(functools.partial(corridor, length=object()))
    assert of_objects.described() == {"env": None}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"wrappers": gymnasium.wrappers.FlattenObservation}, "`wrappers` is <class .*a list of"),
        ({"wrappers": ["x"]}, r"`wrappers` is \['x'\]; a list of functions"),
        ({"imports": "corridor_file.py"}, "`imports` is 'corridor_file.py'; a list of names"),
        ({"imports": [3]}, r"`imports` is \[3\]; a list of names"),
    ],
)
def test_wrappers_and_imports_that_are_no_lists_are_refused(how, told):
    with pytest.raises(ConfigError, match=told):
        EnvMaker.of("CartPole-v1", **how)


def test_a_vector_that_has_been_made_takes_no_arguments():
    with pytest.raises(ConfigError, match=r"`env_args` is .*has been made already"):
        EnvMaker.of(gymnasium.make_vec("CartPole-v1", num_envs=2), args={"length": 3})


def test_a_very_long_name_is_not_repeated_in_full():
    with pytest.raises(ConfigError) as caught:
        find_env("x" * 1_000_000)
    assert len(str(caught.value)) < 600

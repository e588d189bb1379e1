"""Settings and options from a file, or from an earlier run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

import ding_lite
from ding_lite.errors import ConfigError
from ding_lite.evolution.search import Search, choice, integer, log_uniform, uniform
from ding_lite.recipes.choices import Choices
from ding_lite.recipes.evolve import plan_evolution
from ding_lite.recipes.plan import RunPlan, make_plan
from ding_lite.recipes.runs.loading import load_policy
from ding_lite.recipes.runs.run import Run
from ding_lite.recipes.saved_options import read_config
from ding_lite.rl.envs.making import EnvMaker

ARGS = {"max_episode_steps": 30}


def wrapped(env: Any) -> Any:
    return gymnasium.wrappers.TransformReward(env, float)


@pytest.fixture
def registering(tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "registering_line.py"
    file.write_text(
        "import gymnasium\n"
        "gymnasium.register('line/Pole-v0', "
        "'gymnasium.envs.classic_control.cartpole:CartPoleEnv', max_episode_steps=50)\n"
    )
    yield str(file)
    sys.modules.pop("registering_line", None)
    gymnasium.registry.pop("line/Pole-v0", None)


def begin(registering: str, wrapper: Any = wrapped) -> Path:
    """Write what a run says of itself, and return the file."""
    env = EnvMaker.of("line/Pole-v0", args=ARGS, wrappers=[wrapper], imports=[registering])
    plan = make_plan("dqn", env, {}, Choices(out=Path("here")))
    with Run("dqn", plan.options, config=plan.described):
        return Path("here/config.json")


def test_a_run_goes_on_with_the_environment_that_it_was_begun_with(registering: str) -> None:
    made: dict[str, Any] = {"env_args": ARGS, "wrappers": [wrapped], "imports": [registering]}
    quick: dict[str, Any] = {"out": "here", "resume": True, "quiet": True}
    ding_lite.train("dqn", "line/Pole-v0", max_env_steps=48, num_envs=16, warmup=0, **made, **quick)
    longer = ding_lite.train("dqn", "line/Pole-v0", max_env_steps=64, **quick)
    assert longer.numbers["env_steps"] == 64
    with pytest.raises(ConfigError, match=r"`env_args` is .*, and was "):
        ding_lite.train("dqn", "line/Pole-v0", env_args={"max_episode_steps": 9}, **quick)


def test_a_run_is_repeated_by_its_description_with_its_environment(registering: str) -> None:
    file = begin(registering)
    about = make_plan("dqn", "line/Pole-v0", {}, Choices(config=file)).options.env_description
    assert about == {name: json.loads(file.read_text())["options"][name] for name in about}
    assert about.keys() == {"env", "env_args", "wrappers", "imports"}
    assert make_plan("dqn", "CartPole-v1", {}, Choices(config=file)).options.env == "CartPole-v1"


def test_code_that_the_description_of_others_names_is_not_imported(registering: str) -> None:
    file = begin(registering)
    about = json.loads(file.read_text())
    about["options"]["imports"] = ["elsewhere.py"]
    file.write_text(json.dumps(about))
    for choices in (Choices(config=file), Choices(out=Path("here"), resume=True)):
        with pytest.raises(ConfigError, match=r"were not saved by you on this machine.*elsewhere"):
            make_plan("dqn", "line/Pole-v0", {}, choices)


def test_a_wrapper_without_a_name_has_to_be_given_again(registering: str) -> None:
    file = begin(registering, lambda env: wrapped(env))
    with pytest.raises(ConfigError, match=r"wrappers and imports of .* cannot be found again"):
        make_plan("dqn", "line/Pole-v0", {}, Choices(config=file))


class Bounded(CartPoleEnv):
    def __init__(self, length: int = 3, space: Any = None) -> None:
        super().__init__()
        assert length + 0 == length
        assert space is None or isinstance(space, gymnasium.Space)


def test_arguments_of_numpy_are_saved_and_those_that_json_has_not_have_to_be_given_again() -> None:
    quick: dict[str, Any] = {"max_env_steps": 48, "num_envs": 16, "warmup": 0, "quiet": True}
    ding_lite.train("dqn", Bounded, env_args={"length": np.int64(5)}, out="number", **quick)
    made: Any = load_policy("number").spec.maker
    assert made.args == {"length": 5}
    ding_lite.train("dqn", Bounded, out="number", resume=True, **quick)

    args: dict[str, Any] = {"length": 5, "space": gymnasium.spaces.Discrete(2)}
    ding_lite.train("dqn", Bounded, env_args=args, out="space", **quick)
    lost = "The arguments of the environment .* cannot be found again"
    with pytest.raises(ConfigError, match=rf"{lost}.*load_policy\(\.\.\., env="):
        load_policy("space")
    assert load_policy("space", env=partial(Bounded, **args)).spec.obs_shape == (4,)
    with pytest.raises(ConfigError, match=rf"{lost}.*env_args="):
        ding_lite.train("dqn", Bounded, out="space", resume=True, **quick)
    ding_lite.train("dqn", Bounded, env_args=args, out="space", resume=True, **quick)


def test_an_atari_run_is_wrapped_once(tmp_path: Path) -> None:
    plan = make_plan("dqn", "CartPole-v1", {"atari": True}, Choices())
    options = {"env": "CartPole-v1", **plan.options.env_description}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"options": options, "config": {"atari": True}}))
    again = make_plan("dqn", "CartPole-v1", {}, Choices(config=file))
    assert again.options.env_description == plan.options.env_description
    off = make_plan("dqn", "CartPole-v1", {"atari": False}, Choices(config=file))
    assert off.options.env == "CartPole-v1"


def test_a_toml_file_names_arguments_and_imports(registering: str) -> None:
    file = Path("best.toml")
    file.write_text(f"lr = 0.25\nimports = ['{registering}']\n[env_args]\nmax_episode_steps = 9\n")
    plan = make_plan("dqn", "line/Pole-v0", {}, Choices(config=file))
    about = {"env_args": {"max_episode_steps": 9}, "imports": [registering]}
    assert plan.options.env_description == {"env": "line/Pole-v0", **about}
    assert plan.policy_config.lr == 0.25
    for text in ("imports = 'tasks.py'", "env_args = 3"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"in best.toml is .*; a (list|dict) was expected"):
            read_config(file)


def test_a_toml_file_names_wrappers_with_their_arguments(tmp_path: Path) -> None:
    Path("wrapping_line.py").write_text(
        "import gymnasium\n"
        "def wrapped(env): return gymnasium.wrappers.TransformReward(env, float)\n"
    )
    file = Path("best.toml")
    limit = "{name = 'gymnasium.wrappers.common:TimeLimit', args = {max_episode_steps = 7}}"
    file.write_text(f"wrappers = ['wrapping_line.py:wrapped', {limit}]\n")
    plan = make_plan("dqn", CartPoleEnv, {}, Choices(config=file))
    assert plan.options.env_description["wrappers"] == [
        {"name": f"{Path.cwd()}/wrapping_line.py:wrapped"},
        {"name": "gymnasium.wrappers.common:TimeLimit", "args": {"max_episode_steps": 7}},
    ]
    for text in ("3", "'wrapped'", "{args = {}}", "{name = 3}", "{name = 'a:b', by = 2}"):
        file.write_text(f"wrappers = [{text}]")
        with pytest.raises(ConfigError, match=r"A wrapper in best.toml is .*; expected is its n"):
            read_config(file)
    file.write_text("wrappers = ['wrapping_line.py:other']")
    with pytest.raises(ConfigError, match=r"no class or function `other`.*It has: wrapped"):
        make_plan("dqn", CartPoleEnv, {}, Choices(config=file))


def test_a_short_name_of_the_environment_of_a_run_is_refused_with_its_full_name() -> None:
    plan = make_plan("dqn", "gymnasium.envs.classic_control:CartPoleEnv", {}, Choices())
    with Run("dqn", replace(plan.options, out=Path("here")), config=plan.described):
        pass
    with pytest.raises(ConfigError, match=r"full name .* gymnasium\.envs.*:CartPoleEnv\.$"):
        make_plan("dqn", "CartPoleEnv", {}, Choices(out=Path("here"), resume=True))


def test_what_only_the_other_command_knows_is_refused_in_a_file() -> None:
    Path("mine.toml").write_text('search = {lr = "1e-4:1e-2:log"}\n')
    with pytest.raises(ConfigError, match=r"`search` in mine\.toml is of `evolve`"):
        make_plan("dqn", "CartPole-v1", {}, Choices(config="mine.toml"))
    Path("mine.toml").write_text("compile = 'graph'\n")
    with pytest.raises(ConfigError, match=r"`compile` in mine\.toml is of `train`; .*Leave it"):
        plan_evolution("dqn", "CartPole-v1", None, {}, Choices(config="mine.toml"))


def test_an_evolution_goes_on_and_is_repeated_with_its_search() -> None:
    bounds: Any = np.array([1e-3, 1e-2], np.float32)
    search = Search(
        lr=log_uniform(*bounds),
        batch_size=choice(*np.array([32, 64])),
        loss=choice("huber", "mse"),
        target_tau=uniform(0.01, 0.1, grow=2.0),
    )
    file = Path("here/config.json")
    begun = plan_evolution("dqn", "CartPole-v1", search, {}, Choices(out=file.parent))
    with Run("evolve-dqn", begun.options, config=begun.described):
        pass
    for choices in (Choices(config=file), Choices(out=file.parent, resume=True)):
        plan = plan_evolution("dqn", "CartPole-v1", None, {}, choices)
        assert plan.search.parameters == search.parameters
    saved = json.loads(file.read_text())["config"]["search"]
    assert saved.pop("target_tau").startswith("Range(low=0.01")  # the command line has no `grow`
    assert saved == {
        "lr": "0.0010000000474974513:0.009999999776482582:log",
        "batch_size": "32|64",
        "loss": "huber|mse",
    }
    described = json.loads(file.read_text())
    described["config"]["search"]["lr"] = repr(search.parameters["lr"])  # as it was saved once
    file.write_text(json.dumps(described))
    plan = plan_evolution("dqn", "CartPole-v1", None, {}, Choices(out=file.parent, resume=True))
    with Run("evolve-dqn", plan.options, config=plan.described):
        pass
    file.write_text(file.read_text().replace("Range(", "Mine("))
    with pytest.raises(ConfigError, match=r"The search of `lr` is 'Mine\(.*cannot be read"):
        plan_evolution("dqn", "CartPole-v1", None, {}, Choices(config=file))


def test_a_toml_file_may_have_the_search_of_an_evolution() -> None:
    file = Path("search.toml")
    file.write_text(
        'population = 3\n[search]\nlr = "1e-4:1e-2:log"\nloss = "huber|mse"\n'
        'batch_size = "8:64"\ntarget_tau = "0.01:0.1"\n'
    )
    plan = plan_evolution("dqn", "CartPole-v1", None, {}, Choices(config=file))
    assert plan.search.parameters == {
        "lr": log_uniform(1e-4, 1e-2),
        "loss": choice("huber", "mse"),
        "batch_size": integer(8, 64),
        "target_tau": uniform(0.01, 0.1),
    }
    assert plan.config.population == 3
    for text, fault in (
        ("search = 'lr'", "`search` in search.toml is 'lr'; a table was expected"),
        ("search = {lr = '2:1'}", "The search of `lr` is refused: `low` is 2 and `high` 1"),
        ("search = {lr = 1e-3}", "The search of `lr` is 0.001, which cannot be read"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=fault):
            plan_evolution("dqn", "CartPole-v1", None, {}, Choices(config=file))


@pytest.mark.parametrize(("begun", "then"), [("dqn", "evolve-dqn"), ("evolve-dqn", "dqn")])
def test_a_run_of_a_policy_and_an_evolution_are_not_repeated_as_each_other(begun, then) -> None:
    def plan(program: str, choices: Choices) -> RunPlan:
        if program == "evolve-dqn":
            return plan_evolution("dqn", "CartPole-v1", None, {}, choices)
        return make_plan("dqn", "CartPole-v1", {}, choices)

    out = Path("here")
    made = plan(begun, Choices(out=out))
    with Run(begun, made.options, config=made.described):
        pass
    for choices in (Choices(config=out / "config.json"), Choices(out=out, resume=True)):
        with pytest.raises(ConfigError, match=f"are those of `{begun}`, and `{then}` has others"):
            plan(then, choices)


@pytest.mark.parametrize("program", ["dqn", "evolve-dqn"])
def test_the_description_of_a_trial_does_not_make_a_run_of_it_a_trial(program: str) -> None:
    def plan(**more: Any) -> RunPlan:
        choices = Choices(**more)
        if program == "dqn":
            return make_plan("dqn", "CartPole-v1", {"lr": 0.5, "eval_every": 90}, choices)
        return plan_evolution("dqn", "CartPole-v1", None, {"lr": 0.5}, choices)

    made = plan(out=Path("here"), smoke=True, max_env_steps=50_000)
    with Run(program, made.options, config=made.described):
        pass
    saved, whole = plan(config=Path("here/config.json")), plan()
    assert (saved.options.max_env_steps, saved.config) == (
        whole.options.max_env_steps,
        whole.config,
    )
    assert saved.policy_config.lr == 0.5


def test_a_run_of_another_environment_gives_its_settings_alone() -> None:
    file = Path("here/config.json")
    begun = make_plan("dqn", "CartPole-v1", {"lr": 0.5}, Choices(out=file.parent))
    with Run("dqn", begun.options, config=begun.described):
        pass
    plan = make_plan("dqn", "Acrobot-v1", {}, Choices(config=file))
    assert (plan.policy_config.lr, plan.options.target) == (0.5, -100.0)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("num-envs = 3", r'Unknown setting "num-envs"\. Did you mean "num_envs"\?'),
        ("max_steps = 300", r'Unknown setting "max_steps"\. Did you mean "max_env_steps"\?'),
        ("learning-rate = 0.1", r'Unknown setting "learning-rate"\. Did you mean "lr"\?'),
        ("total_timesteps = 9", r'"total_timesteps" is .*option "max_env_steps": --'),
        (
            "env = 'CartPole-v1'",
            r'"env" is no setting, but an argument: ding-lite train POLICY ENV',
        ),
        ("policy = 'dqn'", r'"policy" is no setting, but an argument: ding-lite train POLICY ENV'),
        (
            "[train]\nlr = 0.1",
            r"mine\.toml has a table \[train\]; .*Write the lines of the table th",
        ),
    ],
)
def test_a_name_that_a_toml_file_does_not_have_is_answered_by_one_that_it_may(text, fault) -> None:
    Path("mine.toml").write_text(f"{text}\n")
    with pytest.raises(ConfigError, match=fault):
        make_plan("dqn", "CartPole-v1", {}, Choices(config=Path("mine.toml")))


def test_whole_numbers_in_a_toml_file_may_be_written_as_on_the_command_line() -> None:
    Path("mine.toml").write_text("capacity = 1e4\neval_every = 1_0e2\nlr = 1e0\ntarget = 5e2\n")
    made = make_plan("dqn", "CartPole-v1", {}, Choices(config=Path("mine.toml")))
    assert (made.settings["capacity"], made.config.eval_every) == (10_000, 1_000)
    assert repr((made.policy_config.lr, made.options.target)) == "(1.0, 500.0)"
    Path("mine.toml").write_text("capacity = 10000.0\n")
    with pytest.raises(ConfigError, match=r"`capacity` is 10000\.0; `int` was expected"):
        make_plan("dqn", "CartPole-v1", {}, Choices(config=Path("mine.toml")))


def test_a_toml_file_may_have_a_byte_order_mark_and_is_a_regular_file() -> None:
    Path("mine.toml").write_text("lr = 0.5\n", encoding="utf-8-sig")
    assert read_config(Path("mine.toml")).settings == {"lr": 0.5}
    Path("deep.toml").write_text(f"lr = {'[' * 5_000}\n")
    for path in ("/dev/zero", "deep.toml", "none.toml"):
        with pytest.raises(ConfigError, match=f"`config` is '{path}', which cannot be read"):
            read_config(Path(path))


@pytest.mark.parametrize(
    "text",
    [
        *("[", '{"options": 3}', '{"config": []}', '{"lr": 0.5}'),
        '{"config": {}, "options": {"env_args": 3}}',
    ],
)
def test_what_is_no_description_of_a_run_is_refused(text: str) -> None:
    Path("config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"`config` is 'config.json', which cannot be read"):
        read_config(Path("config.json"))


def test_a_file_of_settings_has_at_most_64_kib(tmp_path: Path) -> None:
    file = tmp_path / "long.toml"
    file.write_text("lr = 1e-3\n" + "#" * 65_000)
    assert read_config(file).settings == {"lr": 1e-3}
    file.write_text(f"lr.{'.'.join('a' * 40_000)} = 1")
    with pytest.raises(ConfigError, match="at most 65,536 are read"):
        read_config(file)

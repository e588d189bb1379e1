"""The options of training programs."""

from __future__ import annotations

import inspect
import math
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ding_lite
from ding_lite.cli.parsing.parsers import make_parsers
from ding_lite.errors import ConfigError
from ding_lite.options.run_options import RunOptions
from ding_lite.recipes import Options, Run, parse_options
from ding_lite.recipes.choices import Choices
from ding_lite.recipes.runs.loading import find_policy
from ding_lite.rl.envs.making import EnvMaker


def parse(*arguments: str) -> Options:
    return parse_options(
        "Train.", env="CartPole-v1", max_env_steps=50_000, target=475.0, arguments=arguments
    )


@pytest.mark.parametrize("call", [ding_lite.train, ding_lite.evolve])
def test_a_call_and_its_command_have_the_options_of_the_one_dataclass(call) -> None:
    of_call = [one for one in fields(RunOptions) if call.__name__ in one.metadata["of"]]
    of_python = {one.name: one for one in of_call if one.name not in ("env", "report")}
    parameters = inspect.signature(call).parameters
    by_name = {n: one for n, one in parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert by_name.keys() == of_python.keys()
    for name, parameter in by_name.items():
        own = of_python[name].default  # None stands for one that is found elsewhere unless chosen
        assert parameter.default == (None if own is MISSING or own else own) or own == 0
        assert f"    {name}: " in (inspect.getdoc(call) or "")
    typed = {action.dest for action in make_parsers()[1][call.__name__]._actions}
    assert {one.name for one in of_call if one.metadata["typed"]} == typed - {
        *("help", "policy", "set", "settings", "search")
    }


OWN = Options(
    env="CartPole-v1", seed=0, max_env_steps=50_000, target=475.0, smoke=False, out=None, nodes=1
)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("", OWN),
        (
            "--env Acrobot-v1 --seed 3 --max-env-steps 900 --target -100 --out runs/mine",
            Options(
                env="Acrobot-v1", seed=3, max_env_steps=900, target=-100.0, out=Path("runs/mine")
            ),
        ),
        ("--smoke", replace(OWN, smoke=True, max_env_steps=2_000)),
        ("--smoke --max-env-steps 500", replace(OWN, smoke=True, max_env_steps=500)),
        # where nothing was begun
        ("--out nowhere --resume", replace(OWN, out=Path("nowhere"), resume=True)),
    ],
)
def test_every_value_can_be_chosen_and_else_the_programs_own_hold(words, options) -> None:
    assert parse(*words.split()) == options


def test_a_path_may_begin_with_the_home_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    chosen = parse("--out=~/mine").out, Choices(out="~/mine").given["out"]
    assert chosen == (tmp_path / "mine", tmp_path / "mine")
    assert find_policy("~/mine").parent == tmp_path / "mine"


def test_help_explains_each_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--help")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "Train." in text
    for option in ("--env ENV", "--seed", "--max-env-steps N", "--target RETURN", "--out"):
        assert option in text
    assert "default: 50000" in text


def test_each_use_has_a_seed_of_its_own_that_follows_from_the_seed() -> None:
    first, again, other = parse(), parse(), parse("--seed", "1")
    assert first.seed_for("evaluation") == again.seed_for("evaluation")
    seeds = {o.seed_for(use) for o in (first, other) for use in ("evaluation", "confirmation")}
    assert len(seeds | {first.seed, other.seed}) == 6


def test_what_a_program_has_several_of_can_be_chosen() -> None:
    several: dict[str, Any] = {"nodes": 2, "population": 4, "num_envs": 16}

    def parse(*arguments: str) -> list[int]:
        options = parse_options(
            "Evolve.", env="E", max_env_steps=1, target=1.0, **several, arguments=arguments
        )
        return [getattr(options, name) for name in several]

    assert parse() == [2, 4, 16]
    assert parse("--nodes=1", "--population=6", "--num-envs=8") == [1, 6, 8]
    wrong = r"`nodes` is 0; it must be a whole number from 1 on.*`population` is 0.*`num_envs` is"
    with pytest.raises(ConfigError, match=wrong):
        parse("--nodes=0", "--population=0", "--num-envs=-1")


@pytest.mark.parametrize("words", [("--sead", "1"), ("--nodes", "2")])
def test_an_unknown_option_or_one_of_other_programs_ends_the_program(words, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(*words)
    assert ended.value.code == 2
    assert f"unrecognized arguments: {words[0]}" in capsys.readouterr().err


def test_a_run_that_goes_on_has_the_options_it_was_begun_with(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path))
    with Run("mine", parse(*out, "--seed", "3", "--env", "Acrobot-v1", "--smoke")):
        pass
    assert parse(*out, "--resume") == replace(
        parse(*out), seed=3, env="Acrobot-v1", max_env_steps=2_000, resume=True
    )
    longer = parse(*out, "--resume", "--max-env-steps", "9000")
    assert (longer.seed, longer.env, longer.max_env_steps) == (3, "Acrobot-v1", 9_000)


def test_a_run_without_a_target_goes_on_without_one(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path))
    with Run("mine", parse(*out, "--target", "inf")):
        pass
    assert parse(*out, "--resume").goal is None
    assert parse(*out, "--resume", "--target", "100").goal == 100.0


def test_a_count_of_env_steps_may_be_a_float_without_a_fraction() -> None:
    counts: list[Any] = [1e5, np.float64(1e5)]
    for count in counts:
        made = replace(OWN, max_env_steps=count)
        assert (made.max_env_steps, type(made.max_env_steps)) == (100_000, int)
    too: list[Any] = [1e5 + 0.5, math.inf]
    for wrong in too:
        with pytest.raises(ConfigError, match=r"`max_env_steps` is .*; it must be a whole number"):
            replace(OWN, max_env_steps=wrong)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--seed", "-1", "is -1; it must be a whole number"),
        ("--max-env-steps", "0", "is 0; it must be a whole number"),
        ("--seed", str(2**64), "`seed` is 18446744073709551616; it must be a whole number from 0"),
        ("--max-env-steps", str(2**63), "at most 9223372036854775807"),
        ("--target", "nan", "`target` is nan; it must not be NaN"),
    ],
)
def test_numbers_out_of_range_are_refused(option: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(option, value)
    assert message in str(caught.value)


def test_an_environment_of_the_current_folder_is_found() -> None:
    Path("own_here.py").write_text("from gymnasium.envs.classic_control import CartPoleEnv\n")
    chosen = parse("--env", "own_here:CartPoleEnv").env
    assert isinstance(chosen, EnvMaker)
    assert chosen.spec().obs_shape == (4,)

"""`ding-lite evolve`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ding_lite.cli.evolve import search_of
from ding_lite.cli.main import main
from ding_lite.evolution.search import choice, integer, log_uniform, uniform
from ding_lite.options.words import searched

QUICK = "--set eval_episodes=1 --set hidden=8, --set warmup=64 --set turn=16 --set eval_every=96"

pytestmark = pytest.mark.usefixtures("_here")


def test_a_run_ends_with_its_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("evolve", "dqn", "CartPole-v1", "--population", "2", "--max-env-steps", "900")
    searches = ("--search", "lr=1e-4:1e-2:log", "--search", "batch_size=8:16")
    Path("evolved.py").write_text("def tell(metrics, step):\n    print('told', step)\n")
    report = ("--report", "evolved.py:tell")
    assert main([*words, *searches, *QUICK.split(), *report, "--seed", "3", "--out", "run"]) == 0
    out, err = capsys.readouterr()
    *reported, line = out.splitlines()
    assert reported
    assert all(one.startswith("told ") for one in reported)
    numbers = json.loads(line)
    assert list(numbers)[:10] == [
        *("example", "env", "seed", "solved", "env_steps", "episodes"),
        *("train_iter", "wall_s", "eval_return", "nodes"),
    ]
    assert numbers["example"] == "evolve-dqn"
    assert numbers["seed"] == 3
    assert numbers["population"] == 2
    assert 100 < numbers["env_steps"] <= 900
    assert numbers["hyperparameters"].keys() == {"lr", "batch_size"}
    assert "generation 0: best " in err
    assert "becomes" in err
    assert "lineage      run/lineage.jsonl" in err


def test_settings_are_shown_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evolve", "dqn", "CartPole-v1", "--settings", "--set", "mutation_sd=0.5"]) == 0
    shown = {line.split()[0]: line.split()[1:3] for line in capsys.readouterr().out.splitlines()}
    assert shown["mutation_sd"] == ["0.5", "given"]
    assert shown["population"] == ["6", "default"]
    assert shown["capacity"] == ["50000", "preset"]


def test_what_is_searched_is_read_as_it_is_written() -> None:
    words = ("lr=1e-4:1e-2:log", "batch_size=8:64", "gamma=0.9:0.99", "loss=huber|mse")
    assert search_of([searched(word) for word in words]).parameters == {
        "lr": log_uniform(1e-4, 1e-2),
        "batch_size": integer(8, 64),
        "gamma": uniform(0.9, 0.99),
        "loss": choice("huber", "mse"),
    }

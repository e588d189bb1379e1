"""Results of runs, read from their directories."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ding_lite.errors import ConfigError
from ding_lite.recipes.runs.results import (
    find_results,
    group_results,
    last_row,
    spread_of,
    title_of,
)


def leave(
    directory: str,
    *,
    seed: int = 0,
    program: str = "dqn",
    env: str = "CartPole-v1",
    rows: int = 4,
    target: float = 475.0,
    max_env_steps: int = 500,
    **config: Any,
) -> None:
    """Leave what a run would leave: an evaluation every second row, of 10 for each seed."""
    path = Path(directory)
    path.mkdir(parents=True)
    options = {"env": env, "seed": seed, "max_env_steps": max_env_steps, "target": target}
    described = {"example": program, "options": options, "config": {"lr": 0.5, **config}}
    (path / "config.json").write_text(json.dumps(described))
    lines = [
        {
            "env_step": 100 * k,
            "return": 5.0 * k,
            "eval_return": 10.0 * (seed + k // 2) if k > 1 else None,
            "eval_env_step": 200 * (k // 2) if k > 1 else None,
            "wall_s": k,
        }
        for k in range(1, rows + 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        ("r/cart/2", "r/cart/2"),
        ("r/*/1", "r/bot/1 r/cart/1"),
        ("r/cart", "r/cart/1 r/cart/2 r/cart/10"),  # in the order of their numbers
        ("r/cart/*", "r/cart/1 r/cart/2 r/cart/10"),
        ("r", "r/bot/1 r/cart/1 r/cart/2 r/cart/10"),
        ("r/cart/* r/cart/1", "r/cart/1 r/cart/2 r/cart/10"),
        ("r[1]", "r[1]"),
    ],
)
def test_runs_are_named_by_directory_pattern_or_a_directory_around_them(patterns, found) -> None:
    for name in ("r/cart/10", "r/cart/2", "r/cart/1", "r/bot/1", "r1", "r[1]"):
        leave(name)
    assert [str(result.directory) for result in find_results(patterns.split())] == found.split()


def test_a_path_without_a_run_is_named_with_the_runs_there_are() -> None:
    leave("runs/dqn/CartPole-v1/1")
    for name in ("runs/dqn/CartPole-v1/7", "runs/dqn/*/7"):
        with pytest.raises(ConfigError) as caught:
            find_results([name])
        assert str(caught.value).startswith(f"There is no run in {name}: a directory with a")
        assert "Runs here are: runs/dqn/CartPole-v1/1." in str(caught.value)


def test_the_current_folder_is_named_in_full() -> None:
    with pytest.raises(ConfigError, match=f"There is no run in {Path.cwd()}: a directory with a"):
        find_results(["."])


def test_rows_without_a_description_are_a_run_named_by_its_directory() -> None:
    for name in ("mine/1", "mine/2", "dqn/1"):
        leave(f"runs/{name}")
    for name in ("mine/1", "mine/2"):  # as `mw.report(Path(...))` writes it
        Path(f"runs/{name}/config.json").unlink()
    leave("runs/foreign")
    Path("runs/foreign/config.json").unlink()
    Path("runs/foreign/metrics.jsonl").write_text('{"loss": "of another program"}\n')
    leave("runs/damaged")
    Path("runs/damaged/config.json").rename("runs/damaged/report.json")
    Path("runs/damaged/report.json").write_text("{")
    groups = group_results(find_results(["runs"]))
    assert [group.label for group in groups] == ["dqn", "runs/mine/1", "runs/mine/2"]
    assert title_of(groups[1:]) == "runs/mine/1 and runs/mine/2"
    assert [group.label for group in group_results(find_results(["runs/mine/1"]))] == [
        "runs/mine/1"
    ]


@pytest.mark.parametrize("foreign", ['{"name": "my project"}', "[1]"])
def test_a_config_of_another_program_hides_no_runs_and_is_none(foreign: str) -> None:
    leave("proj/runs/1")
    for folder in ("proj", "proj/runs", "proj/other"):
        Path(folder).mkdir(exist_ok=True)
        Path(folder, "config.json").write_text(foreign)
    for folder in ("proj", "proj/runs"):
        assert [str(result.directory) for result in find_results([folder])] == ["proj/runs/1"]
    with pytest.raises(ConfigError, match=r"in proj/other: .* is damaged, or of another program"):
        find_results(["proj/other"])


def test_a_damaged_run_in_a_folder_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("1", "2", "3"):
        leave(f"runs/{name}")
    Path("runs/1/config.json").write_text('{"example": "dq')
    with Path("runs/2/metrics.jsonl").open("a") as file:
        file.write("damaged\n")
    assert [str(result.directory) for result in find_results(["runs"])] == ["runs/3"]
    assert "runs/1 is left out: runs/1/config.json cannot be read: Unterminated" in caplog.text
    assert "runs/2 is left out: runs/2/metrics.jsonl is damaged: line 5 of 5" in caplog.text
    assert 'Did you mean "runs/1"' not in caplog.text
    with pytest.raises(ConfigError, match=r"runs/2/metrics\.jsonl is damaged"):
        find_results(["runs/2"])


def test_a_run_that_has_written_nothing_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    leave("a", rows=0)
    with pytest.raises(ConfigError, match="These runs have not written anything yet"):
        find_results(["a"])
    leave("b")
    (Path("a") / "metrics.jsonl").unlink()
    assert [str(result.directory) for result in find_results(["a", "b"])] == ["b"]
    assert "a has no row yet, and is left out" in caplog.text


def test_an_unfinished_last_row_is_left_out() -> None:
    leave("a")
    with Path("a/metrics.jsonl").open("a") as file:
        file.write('{"env_step": 50')
    assert len(find_results(["a"])[0].rows) == 4


def test_the_last_row_of_a_file_of_two_gigabytes_is_found() -> None:
    leave("a")
    file = Path("a/metrics.jsonl")
    os.truncate(file, 2 << 30)  # without taking the room
    with file.open("a") as rows:
        rows.write('\n{"env_step": 50}\n{"env_step":')
    assert last_row(file) == {"env_step": 50}


def test_an_evaluation_counts_once_and_when_it_was() -> None:
    leave("a", rows=7)
    [result] = find_results(["a"])
    x, y = result.points("eval_return")
    assert (x.tolist(), y.tolist()) == ([200.0, 400.0, 600.0], [10.0, 20.0, 30.0])
    x, y = result.points("return")
    assert x.tolist() == [100.0 * k for k in range(1, 8)]


SAC, TD3 = {"program": "sac", "alpha": 1.0}, {"program": "td3", "noise": 0.1}


@pytest.mark.parametrize(
    ("runs", "labels", "title"),
    [
        ([{"seed": 1}, {"seed": 2}, {"seed": 3}], {"dqn on CartPole-v1": 3}, "dqn on CartPole-v1"),
        (
            [{}, {"lr": 0.25}, {"lr": 0.25, "seed": 1}, {"lr": 0.25, "hidden": [8, 8]}],
            {"lr 0.5, hidden None": 1, "lr 0.25, hidden None": 2, "lr 0.25, hidden 8-8": 1},
            "dqn on CartPole-v1",
        ),
        (
            [{}, {"program": "mine"}, {"env": "Acrobot-v1"}],
            {"dqn, CartPole-v1": 1, "mine, CartPole-v1": 1, "dqn, Acrobot-v1": 1},
            "dqn and mine",
        ),
        ([{}, {"program": "mine"}], {"dqn": 1, "mine": 1}, "dqn and mine on CartPole-v1"),
        # Settings that only one program has, or that follow from the program, are not named.
        ([SAC, TD3], {"sac": 1, "td3": 1}, "sac and td3 on CartPole-v1"),
        (
            [SAC, TD3, {**TD3, "lr": 0.25}],
            {"sac, lr 0.5": 1, "td3, lr 0.5": 1, "td3, lr 0.25": 1},
            "sac and td3 on CartPole-v1",
        ),
        ([{}, {"program": "ppo", "lr": 0.25}], {"dqn": 1, "ppo": 1}, "dqn and ppo on CartPole-v1"),
        (
            [{}, {"max_env_steps": 900}, {"seed": 1}],
            {"max_env_steps 500": 2, "max_env_steps 900": 1},
            "dqn on CartPole-v1",
        ),
        ([{}, {"target": 9.0}], {"target 475.0": 1, "target 9.0": 1}, "dqn on CartPole-v1"),
    ],
)
def test_runs_that_differ_by_their_seeds_are_a_group_that_is_named_by_other_differences(
    runs: list[dict[str, Any]], labels: dict[str, int], title: str
) -> None:
    for number, differences in enumerate(runs):
        leave(f"r/{number}", **differences)
    groups = group_results(find_results(["r"]))
    assert {group.label: len(group.runs) for group in groups} == labels
    assert title_of(groups) == title


@pytest.mark.parametrize(
    ("seeds", "name"),
    [
        ([7], "dqn on CartPole-v1"),
        ([0, 7], "dqn on CartPole-v1 (2 seeds)"),
        ([7, 7], "dqn on CartPole-v1 (2 runs of 1 seed)"),
        ([0, 7, 7], "dqn on CartPole-v1 (3 runs of 2 seeds)"),
    ],
)
def test_a_group_is_named_with_its_seeds_and_runs_of_the_same_seed_are_no_seeds(
    seeds: list[int], name: str
) -> None:
    for number, seed in enumerate(seeds):
        leave(f"r/{number}", seed=seed)
    assert [group.name for group in group_results(find_results(["r"]))] == [name]


def test_the_time_of_a_run_that_has_ended_is_not_that_of_its_last_row() -> None:
    leave("r")
    assert find_results(["r"])[0].wall_s == 4.0
    for result, wall_s in (('{"wall_s": 9.5}', 9.5), ('{"wall_s": "x"}', 4.0), ("[", 4.0)):
        Path("r/result.json").write_text(result)
        assert find_results(["r"])[0].wall_s == wall_s


def test_a_run_that_has_not_ended_counts_until_its_last_value() -> None:
    leave("r/1", seed=1, rows=2)
    leave("r/2", seed=3, rows=4)
    x, *curves = spread_of(find_results(["r"]), "eval_return")
    assert [curve[0] for curve in curves] == [30.0, 20.0, 40.0, 30.0]
    assert [curve[-1] for curve in curves] == [50.0] * 4
    assert (x[0], x[-1]) == (200.0, 400.0)
    assert np.isfinite(curves).all()


def test_curves_are_joined_over_env_steps() -> None:
    leave("r/1", seed=1, rows=2)
    Path("r/1/result.json").write_text('{"eval_return": 20.0}')
    leave("r/2", seed=3, rows=4)
    x, mean, low, high, median = spread_of(find_results(["r"]), "eval_return")
    assert (x[0], x[-1]) == (200.0, 400.0)
    assert (low[0], mean[0], high[0]) == (20.0, 30.0, 40.0)
    assert (low[-1], mean[-1], high[-1]) == (20.0, 35.0, 50.0)  # the first one has ended at 20
    middle = np.argmin(np.abs(x - 300.0))
    assert high[middle] == pytest.approx(45.0, abs=0.1)
    assert median[-1] == 35.0
    leave("r/3", seed=3, rows=4)
    assert spread_of(find_results(["r"]), "eval_return").median[-1] == 50.0


@pytest.mark.parametrize(
    "row",
    [
        *(b'{"env_step": NaN, "wall_s": 1}', b'{"env_step": 1e999, "wall_s": 1}', b"[" * 9_000),
        *(b'{"env_step": %d, "wall_s": 1}' % 2**64, b"7", b"\xff", b'{"env_step": "1"}', b""),
        *(b'{"env_step": 1}', b'{"wall_s": 1}', b'{"env_step": null, "wall_s": 1}'),
    ],
)
def test_a_row_that_no_run_writes_is_named(row: bytes) -> None:
    leave("runs/1")
    with Path("runs/1/metrics.jsonl").open("ab") as file:
        file.write(row + b"\n")
    with pytest.raises(ConfigError, match=r"runs/1/metrics\.jsonl"):
        find_results(["runs/1"])


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_pipe_in_place_of_a_file_does_not_hang_the_reader(name: str) -> None:
    leave("runs/1")
    Path("runs/1", name).unlink()
    os.mkfifo(Path("runs/1", name))
    with pytest.raises(ConfigError, match="This is no regular file"):
        find_results(["runs/1"])


@pytest.mark.parametrize(
    "described",
    [
        *(b"[]", b"[" * 9_000, b'{"options": ""}', b'{"config": []}', b'{"example": ["dqn"]}'),
        b'{"options": {"env_args": 3}}',
        *(b'{"options": {"seed": "x"}}', b'{"options": {"target": [1]}}', b"9" * 5_000),
    ],
)
def test_settings_that_no_run_writes_are_refused(described: bytes) -> None:
    leave("runs/1")
    Path("runs/1/config.json").write_bytes(described)
    with pytest.raises(ConfigError, match=r"^runs/1/config\.json cannot be read: .* alone\.$"):
        find_results(["runs/1"])

"""`ding-lite runs`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ding_lite.cli.main import main
from ding_lite.cli.parsing.arguments import SORTED_BY
from tests.recipes.runs.test_results import leave

pytestmark = pytest.mark.usefixtures("_here")


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["runs", "--json", *words]) == 0
    return [run["run"] for run in json.loads(capsys.readouterr().out)["runs"]]


def test_all_runs_below_a_folder_are_listed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(runs / "runs"), "--sort", "run"]) == 0
    out, err = capsys.readouterr()
    heading, *rows = [line.split() for line in out.splitlines()]
    assert (heading, err) == (list(SORTED_BY), "")
    assert [row[0] for row in rows] == [
        str(runs / f"runs/{run}")
        for run in (*(f"dqn/CartPole-v1/{k}" for k in (1, 2, 3, 4)), "evolve-dqn/CartPole-v1/1")
    ]
    assert rows[1][1:5] == ["dqn", "CartPole-v1", "1", "320"]
    assert all(row[-3] == "done" for row in rows)


def test_they_are_sorted_by_any_column(capsys: pytest.CaptureFixture[str]) -> None:
    for number, (seed, rows) in enumerate([(3, 4), (1, 2), (2, 0)], start=1):
        leave(f"runs/{number}", seed=seed, rows=rows)
        for file in Path(f"runs/{number}").iterdir():
            os.utime(file, (1e9 + number, 1e9 + number))
    one, two, three = "runs/1", "runs/2", "runs/3"
    assert listed(capsys) == [three, two, one]  # the newest first
    assert listed(capsys, "--sort", "run") == [one, two, three]
    assert listed(capsys, "--sort", "best") == [one, two, three]  # without any last
    assert listed(capsys, "--sort", "seed") == [one, three, two]
    for key in SORTED_BY:
        assert len(listed(capsys, "--sort", key)) == 3
    assert main(["runs", "--json"]) == 0
    newest, *_ = json.loads(capsys.readouterr().out)["runs"]
    assert (newest["steps"], newest["best"], newest["state"]) == (None, None, "interrupted")
    assert tuple(newest) == (*SORTED_BY, "training_last", "training_best")


def test_returns_of_training_are_marked_and_the_final_evaluation_has_its_own_column(capsys) -> None:
    leave("runs/1")
    leave("runs/2", rows=1)
    for run, result in (
        ("1", '{"eval_return": 7.5, "wall_s": 8.5}'),
        ("2", '{"eval_return": null}'),
    ):
        Path(f"runs/{run}/result.json").write_text(result)
    assert main(["runs", "--sort", "run"]) == 0
    heading, *rows, note = capsys.readouterr().out.splitlines()
    first, last = heading.split().index("last"), heading.split().index("final")
    assert [row.split()[first : last + 1] for row in rows] == [
        ["20", "20", "7.5"],
        ["5*", "5*", "1.0"],  # no final evaluation, then the time
    ]
    assert note == "* of training episodes, which explore, as the run has no evaluation"
    assert main(["runs", "--json", "--sort", "last"]) == 0
    one, two = json.loads(capsys.readouterr().out)["runs"]
    assert [one[name] for name in ("last", "final", "training_last")] == [20.0, 7.5, 20.0]
    assert (one["time"], two["time"]) == (8.5, 1)  # of the whole run, and until its last row
    assert [two[name] for name in ("last", "final", "training_last")] == [None, None, 5.0]


def test_the_newest_is_first_where_an_hour_of_local_times_comes_twice(capsys, monkeypatch) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    for number, seconds in ((1, 1792888200), (2, 1792890000)):  # 02:30 and, after it, 02:00
        leave(f"runs/{number}")
        for file in Path(f"runs/{number}").iterdir():
            os.utime(file, (seconds, seconds))
    found = listed(capsys)
    monkeypatch.undo()
    time.tzset()
    assert found == ["runs/2", "runs/1"]


def test_numbers_of_runs_are_sorted_as_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    for number in (10, 2, 1):
        leave(f"runs/{number}", seed=number)
    assert listed(capsys, "--sort", "run") == ["runs/1", "runs/2", "runs/10"]


def test_names_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;title\x07\x9b2J\u202e"
    leave(f"runs/{evil}\nrun", env=f"{evil}\nforged", program=evil)
    leave(f"damaged{evil}")
    Path(f"damaged{evil}/metrics.jsonl").write_text("?\n")
    for words in (["runs"], ["plot", "runs"], ["plot", "runs", "--metric", "x"], ["watch", "runs"]):
        main(words)
    main(["runs", f"damaged{evil}"])
    out, err = capsys.readouterr()
    assert not {*evil} & {"\x1b", "\x07", "\x9b", "\u202e"} & {*out, *err}
    assert r"\x1b]0;title\x07\x9b2J\u202e" in out
    assert err.count(r"\x1b]0;title") == 3


def test_damaged_folders_are_told_and_left_out_as_are_foreign_ones(capsys) -> None:
    leave("runs/1")
    for name, text in (("half", '{"example": "d'), ("foreign", '{"name": 3}')):
        Path(f"runs/{name}").mkdir()
        Path(f"runs/{name}/config.json").write_text(text)
    leave("runs/2")
    Path("runs/2/config.json").unlink()  # as `mw.report(Path("runs/2"))` leaves it
    leave("runs/damaged")
    Path("runs/damaged/metrics.jsonl").write_text("?\n")
    assert main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert sorted(line.split()[0] for line in out.splitlines()) == ["run", "runs/1", "runs/2"]
    assert " unknown " in out
    assert len(err.splitlines()) == 2
    for output in ("no run in runs/half", "runs/damaged/metrics"):
        assert output in err

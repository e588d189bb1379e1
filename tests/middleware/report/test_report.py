"""`mw.report` of a whole run; `test_reporter.py` has what a function gets."""

from __future__ import annotations

import json
from pathlib import Path

from ding_lite import middleware as mw
from ding_lite.recipes import Options, Run
from ding_lite.recipes.runs.results import read_result
from ding_lite.runtime.context import Context
from tests.middleware.running import run_steps

FILES = {"metrics.jsonl", "curve.png", "events"}


def learn(ctx: Context) -> None:
    ctx.metrics.update(loss=0.5, **{"return": 1.0})
    ctx.env_step = 4 * (ctx.total_step + 1)
    ctx.keep("env_step")


def names_in(directory: Path) -> set[str]:
    return {path.name.partition(".out.")[0] for path in directory.iterdir()}


def test_a_run_gets_rows_events_a_curve_and_a_line(tmp_path: Path, capsys) -> None:
    options = Options(env="CartPole-v1", target=9.0, max_env_steps=40, out=tmp_path)
    with Run("mine", options) as run:
        run_steps(learn, mw.report(run, every=5), steps=10)
    assert names_in(tmp_path) == FILES | {"config.json"}
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [row["env_step"] for row in rows] == [20, 40]
    assert "40/40 env steps" in capsys.readouterr().err


def test_a_directory_is_enough_and_goes_on_from_reports_that_were_used_one_by_one(tmp_path) -> None:
    saved = run_steps(
        learn,
        mw.jsonl(tmp_path / "metrics.jsonl", every=5),
        mw.tensorboard(tmp_path, every=5),
        mw.curve(tmp_path / "curve.png"),
        steps=10,
    ).state_dict()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("{}\n")  # of steps that no checkpoint knows
    run_steps(learn, mw.report(tmp_path, every=5, target=2.0), steps=5, state=saved)
    assert names_in(tmp_path) == FILES | {"report.json"}
    assert read_result(tmp_path).target == 2.0  # as `ding-lite plot` draws it
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["env_step"] for row in rows] == [20, 40, 60]


def test_a_report_without_a_target_removes_the_target_of_an_earlier_one(tmp_path: Path) -> None:
    for target, has_file in ((2.0, True), (None, False)):
        run_steps(learn, mw.report(tmp_path, every=5, target=target), steps=1)
        assert (tmp_path / "report.json").exists() is has_file
    assert read_result(tmp_path).target is None
    (tmp_path / "report.json").write_text("[]")  # a user's own
    run_steps(mw.report(tmp_path, every=5), steps=1)
    assert (tmp_path / "report.json").read_text() == "[]"

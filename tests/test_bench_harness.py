"""The benchmark harness: its rows, its files, and when a comparison fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ding_lite.testing.clock import ManualClock
from tests.bench import __main__ as command, harness
from tests.bench.harness import Row, compare, measure, row_from_samples, sample_pairs
from tests.bench.history import (
    FOLDER,
    Run,
    compare_runs,
    markdown_page,
    new_run,
    newest,
    text_table,
)

ROW = Row(name="step", unit="us", median=2.0, spread=0.1, n=9, baseline=1.0, ratio=2.0, target=3.0)


def test_candidate_and_baseline_alternate_and_each_is_first_equally_often() -> None:
    order: list[str] = []
    sample_pairs(lambda: order.append("a"), lambda: order.append("b"), number=1, repeats=6)
    assert order[:2] == ["a", "b"]  # to warm up
    assert "".join(order[2:]) == "baabbaabbaab"


def test_a_row_is_medians_and_the_median_of_the_paired_ratios() -> None:
    row = row_from_samples(
        "x", [2e-6, 4e-6, 6e-6, 8e-6, 100e-6], baseline=[1e-6, 2e-6, 2e-6, 2e-6, 10e-6]
    )
    found = (row.median, row.baseline, row.ratio, row.spread)  # the ratios are 2, 2, 3, 4, 10
    assert found == pytest.approx((6.0, 2.0, 3.0, 4.0))
    assert row.n == 5
    assert row_from_samples("x", [14_000] * 5, unit="env steps").median == 14_000  # not scaled


def test_a_row_holds_the_seconds_per_item_of_each_side(clock: ManualClock, monkeypatch) -> None:
    monkeypatch.setitem(harness._CLOCKS, "cpu", clock.now)

    def ours() -> None:
        clock.advance(6e-6)

    def theirs() -> None:
        clock.advance(3e-6)

    row = compare("x", ours, theirs, number=7, per=2, repeats=5)
    assert (row.median, row.baseline, row.ratio) == pytest.approx((3.0, 1.5, 2.0))
    alone = measure("x", ours, number=7, repeats=5)
    assert alone.median == pytest.approx(6.0)
    assert alone.ratio is None


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="4 samples are too few"):
        row_from_samples("x", [1.0] * 4)
    with pytest.raises(ValueError, match="too few"):
        compare("x", int, int, repeats=3)


@pytest.mark.parametrize(
    ("change", "met"),
    [
        ({}, True),
        ({"ratio": 3.1}, False),
        ({"target": None}, None),
        ({"ratio": None, "median": 2.9}, True),
        ({"ratio": None, "median": 3.1}, False),
    ],
)
def test_a_target_is_for_the_ratio_or_else_for_the_median(change, met: bool | None) -> None:
    assert replace(ROW, **change).met is met


def test_a_run_is_read_back_as_it_was_written_and_the_newest_is_the_latest(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="make bench"):
        newest(tmp_path)
    run = new_run({"bench_x: step": ROW}, load=(0.5, 0.4, 0.3))
    assert Run.load(run.save(tmp_path)) == run
    assert run.machine["cpu"]
    assert run.machine["cores"] >= 1
    assert run.versions["torch"].startswith("2.")
    for hour, commit in ((10, "aaaa"), (9, "zzzz")):
        replace(run, date=f"2999-11-21T{hour:02}:00:00+00:00", commit=commit).save(tmp_path)
    assert newest(tmp_path).commit == "aaaa"


def run_of(**rows: Row) -> Run:
    return new_run({f"bench_x: {name}": row for name, row in rows.items()}, load=(0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("old", "new", "factor", "failed"),
    [
        (ROW, replace(ROW, ratio=2.5, tracked=True), 1.25, True),
        (ROW, replace(ROW, ratio=2.3, tracked=True), 1.15, False),
        (ROW, replace(ROW, ratio=4.0), 2.0, False),
        # A slower machine: ours and the baseline take longer, the ratio does not.
        (ROW, replace(ROW, median=6.0, baseline=3.0, tracked=True), 1.0, False),
        (replace(ROW, ratio=None), replace(ROW, ratio=None, median=5.0, tracked=True), 2.5, True),
    ],
)
def test_only_a_tracked_row_that_is_a_fifth_worse_fails(old: Row, new: Row, factor, failed) -> None:
    (change,) = compare_runs(run_of(step=old), run_of(step=new))
    assert change.factor == pytest.approx(factor)
    assert change.failed is failed
    assert ("WORSE" in str(change)) is failed


def test_a_comparison_exits_with_1_if_a_tracked_row_is_worse_or_missing(capsys) -> None:
    worse = run_of(step=replace(ROW, ratio=9.0, tracked=True))
    assert command.compare_with(run_of(step=ROW), worse) == 1
    assert command.compare_with(worse, worse) == 0
    assert "4.50x WORSE * bench_x: step" in capsys.readouterr().out
    assert command.compare_with(worse, run_of()) == 1
    assert "gone" in capsys.readouterr().out


def test_an_unknown_benchmark_and_two_rows_of_one_name_are_refused(capsys) -> None:
    assert command.run_benchmarks(["bench_nothing"]) == 2
    assert "bench_import" in capsys.readouterr().out
    command.check_names([ROW, replace(ROW, name="other")])
    with pytest.raises(ValueError, match="same name: step"):
        command.check_names([ROW, replace(ROW, name="other"), ROW])


def test_both_tables_show_every_row() -> None:
    other = replace(ROW, name="other", ratio=None, baseline=None, tracked=True)
    run = run_of(step=ROW, other=other)
    text, page = text_table(run.rows), markdown_page(run)
    assert len(text.splitlines()) == 3
    assert "| step | 2 us | 0.1 | 9 | 1 | 2.00x | 3x | yes |" in page
    assert "| other * | 2 us | 0.1 | 9 |  |  | 3 | yes |" in page
    for gpu, shown in (("Some GPU", "GPU: Some GPU"), (None, "This machine has no GPU")):
        assert shown in markdown_page(replace(run, machine=run.machine | {"gpu": gpu}))


def test_the_page_shows_the_newest_run() -> None:
    assert (FOLDER / "README.md").read_text() == markdown_page(newest())

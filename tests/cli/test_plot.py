"""`ding-lite plot`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ding_lite.cli.main import main
from tests.cli.report.pages import Page
from tests.recipes.runs.test_results import leave

pytestmark = pytest.mark.usefixtures("_here")


def words_of(path: Path) -> list[str]:
    """Find the words of an SVG; matplotlib writes each as a comment beside its outlines."""
    return re.findall(r"<!-- (.*?) -->", path.read_text())


def test_seeds_become_one_curve_with_a_band(capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2, 3):
        leave(f"runs/dqn/CartPole-v1/{seed}", seed=seed)
    assert main(["plot", "runs/dqn/CartPole-v1/*", "--out", "curves.svg"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "run seed env steps episodes last eval_return best eval_return final return time",
        "runs/dqn/CartPole-v1/1 1 400 30 30 4.0 s",
        "runs/dqn/CartPole-v1/2 2 400 40 40 4.0 s",
        "runs/dqn/CartPole-v1/3 3 400 50 50 4.0 s",
        "dqn on CartPole-v1, mean of 3 400 40 ± 10 40 ± 10",
        "",
        "Drawn in curves.svg",
    ]
    words = words_of(Path("curves.svg"))
    for expected in (
        "dqn on CartPole-v1",
        "mean of 3 seeds; the band goes from the least to the greatest",
        "return of greedy episodes",
        "env steps",
        "target 475",
    ):
        assert expected in words
    assert 'PolyCollection_1"' in Path("curves.svg").read_text()


def test_the_final_evaluation_and_the_env_step_of_an_earlier_last_one_are_told(capsys) -> None:
    leave("r/1", rows=5)
    Path("r/1/result.json").write_text('{"eval_return": 222.6}')
    leave("r/2", seed=1)
    assert main(["plot", "r"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[1:] for line in out.splitlines()[1:3]] == [
        ["0", "500", "20", "(at", "400)", "20", "222.6", "5.0", "s"],
        ["1", "400", "30", "30", "4.0", "s"],
    ]
    assert "training" not in out


def test_a_mean_of_final_returns_tells_how_many_runs_have_one(capsys) -> None:
    for seed in (1, 1, 2):
        run = Path(f"r/{len(list(Path().glob('r/*')))}")
        leave(str(run), seed=seed)
        if seed == 1:
            (run / "result.json").write_text('{"eval_return": 30.0, "wall_s": 9.0}')
    assert main(["plot", "r", "--out", "curves.svg"]) == 0
    *_, ended, killed, summary, _, _ = capsys.readouterr().out.splitlines()
    assert "dqn on CartPole-v1, mean of 3" in summary
    assert summary.rstrip().endswith("30 ± 0 (of 2)")
    assert ended.split()[-3:] == ["30", "9.0", "s"]
    assert killed.split()[-3:] == ["40", "4.0", "s"]
    words = words_of(Path("curves.svg"))
    assert any(word.startswith("mean of 3 runs of 2 seeds; the band goes") for word in words)


def test_dollar_signs_in_names_are_drawn_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "$\\frac{$"
    leave("r/1", env=evil, program=evil)
    leave("r/2", env="$$$", program="$")
    assert main(["plot", "r", "--out", "curves.svg"]) == 0
    titles = {f"$ and {evil}", f"{evil}, {evil}", "$, $$$"}
    assert titles <= set(words_of(Path("curves.svg")))


def test_runs_that_differ_have_a_curve_each(capsys: pytest.CaptureFixture[str]) -> None:
    leave("r/1")
    leave("r/2", lr=0.25)
    leave("r/3", lr=0.25, seed=1)
    assert main(["plot", "r/1", "r/2", "--out", "two.svg"]) == 0
    words = words_of(Path("two.svg"))
    assert {"dqn on CartPole-v1", "one run each", "lr 0.5", "lr 0.25"} <= set(words)
    assert "mean of" not in capsys.readouterr().out
    assert main(["plot", "r", "--out", "three.svg"]) == 0
    assert {"lr 0.5", "lr 0.25 (2 seeds)"} <= set(words_of(Path("three.svg")))
    assert "lr 0.25, mean of 2" in capsys.readouterr().out


def test_more_curves_than_colors_have_other_line_styles() -> None:
    for number in range(9):
        leave(f"r/{number}", lr=number / 10)
    assert main(["plot", "r", "--metric", "return", "--out", "nine.svg"]) == 0
    drawn = Path("nine.svg").read_text()
    [width] = re.findall(r'<svg [^>]*?width="([\d.]+)pt"', drawn)
    assert float(width) > 8 * 72  # the legend is beside the axes, and hides no curve
    blue = re.findall(r'style="fill: none; (.*?)stroke: #2f6fde', drawn)
    assert [style[:16] for style in blue] == ["", "stroke-dasharray"] * 2  # curves, then the legend
    assert main(["report", "r", "--no-video"]) == 0
    again = Page.of("report.html").of_class("again")
    assert "curve c0 again" in [own["class"] for own in again]
    assert "swatch c0 again" in [own["class"] for own in again]


def test_an_environment_of_a_file_is_named_without_its_folder(capsys) -> None:
    leave("r/1", env="/home/somewhere/tasks/corridor.py:Corridor")
    leave("r/2", env="CartPole-v1")
    assert main(["plot", "r/1", "--out", "one.svg"]) == 0
    assert "dqn on Corridor" in words_of(Path("one.svg"))
    assert main(["plot", "r", "--out", "two.svg"]) == 0
    assert {"Corridor", "CartPole-v1"} <= set(words_of(Path("two.svg")))
    assert "somewhere" not in capsys.readouterr().out


def test_another_metric_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    leave("r/1")
    assert main(["plot", "r/1", "--metric", "wall_s", "--out", "a.svg"]) == 0
    assert "last wall_s" in capsys.readouterr().out
    words = words_of(Path("a.svg"))
    assert "wall_s" in words
    assert "target 475" not in words


def test_without_evaluations_the_returns_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    leave("r/1")
    leave("r/2", rows=1, seed=1)
    assert main(["plot", "r"]) == 0
    out = capsys.readouterr().out
    assert "last return" in out
    assert "The returns are of training episodes, which explore: not all runs have" in out
    assert Path("plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_a_return_is_left_out_unless_its_metric_was_asked_for(capsys) -> None:
    leave("r/1")
    leave("r/2", rows=1, seed=1)
    file = Path("r/2/metrics.jsonl")
    file.write_text(file.read_text().replace('"return": 5.0', '"return": null'))
    assert main(["plot", "r"]) == 0
    out, err = capsys.readouterr()
    assert "last eval_return" in out
    assert "r/2" not in out
    assert "r/2 has no finished episode yet, and is left out" in err
    assert main(["plot", "r", "--metric", "return"]) == 2
    assert "`return` is missing in r/2. Metrics of these" in capsys.readouterr().err
    assert main(["plot", "r/2"]) == 2
    assert "`return` is missing in r/2. Metrics of these" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target", "1e4000"),
        ("target", "-Infinity"),
        ("target", "NaN"),
        ("target", "1" + "0" * 4000),
        ("env", '"\\ud800"'),
        ("env", f'"{"x" * 100_000}"'),
    ],
    ids=["infinite", "minus infinity", "nan", "large", "surrogate", "long"],
)
def test_a_description_of_any_content_is_drawn(name: str, value: str) -> None:
    leave("r/1")
    config = json.loads(Path("r/1/config.json").read_text())
    config["options"][name] = "@value"
    text = json.dumps(config).replace('"@value"', value)
    Path("r/1/config.json").write_text(text)
    assert main(["plot", "r/1", "--out", "curves.png"]) == 0


def test_returns_of_any_size_are_drawn() -> None:
    for number in (1, 2):
        leave(f"r/{number}", seed=number)
        rows = [
            {"env_step": 1, "wall_s": 1, "eval_return": 1.7e308},
            {"env_step": 1.7e308, "eval_steps": 1.7e308, "wall_s": 1, "eval_return": -1.7e308},
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        Path(f"r/{number}/metrics.jsonl").write_text(lines)
    assert main(["plot", "r", "--out", "curves.png"]) == 0
    assert main(["report", "r", "--no-video", "--out", "page.html"]) == 0

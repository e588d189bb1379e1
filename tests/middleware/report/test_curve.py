"""The learning curve: when it is drawn, and what is in it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ding_lite import middleware as mw
from ding_lite.middleware.report import curve as report_curve
from ding_lite.runtime import Context, Middleware, Task
from ding_lite.testing import ManualClock
from tests.middleware.running import run_steps


def learn(ctx: Context) -> None:
    """Stand for a run that gets better: 10 more a step, an evaluation every fifth."""
    ctx.env_step = 100 * (ctx.total_step + 1)
    ctx.metrics["episode_return"] = ctx.metrics["return"] = 10.0 * (ctx.total_step + 1)
    if ctx.total_step % 5 == 4:
        ctx.metrics["eval_return"] = 12.0 * (ctx.total_step + 1)


def draw(path: Path, *extra: Middleware, target: float | None = None, steps: int = 50) -> None:
    curve = mw.curve(path, target=target, title="DQN on CartPole-v1")
    run_steps(learn, *extra, curve, steps=steps)


def texts(path: Path) -> list[str]:
    """Find the words of an SVG; matplotlib writes each as a comment beside its outlines."""
    return re.findall(r"<!-- (.*?) -->", path.read_text())


def report(ctx: Context) -> None:
    ctx.metrics["loss"] = 1.0 / (ctx.total_step + 1)
    if ctx.total_step % 2:
        ctx.metrics |= {"steps_per_s": 900.0, "memory_mb": 412.0 + ctx.total_step}


def test_title_axes_legend_and_target_are_in_it_and_small_curves_below(tmp_path: Path) -> None:
    draw(tmp_path / "curve.svg", report, target=475.0)
    small = "loss", "env steps per second", "memory, MB"
    assert {
        "DQN on CartPole-v1",
        "target reached: last evaluation 600 after 5,000 env steps",
        "env steps",
        "return of an episode",
        "target 475",
        "mean of 20 episodes",
        "greedy evaluation",
        "0",
        *small,
    } <= {*texts(tmp_path / "curve.svg")}
    draw(tmp_path / "without.svg", target=475.0, steps=10)
    words = texts(tmp_path / "without.svg")
    assert "last evaluation 120 after 1,000 env steps" in words
    assert not any("reached" in text for text in words)
    assert not {*small} & {*words}


@pytest.mark.parametrize("env", ["MountainCarContinuous-v0", "package.module:" + "Long" * 12])
def test_titles_fit_into_the_picture_and_the_legend_into_the_axes(env, tmp_path, monkeypatch):
    figures: list[Figure] = []
    monkeypatch.setattr(report_curve, "save_picture", lambda figure, path: figures.append(figure))
    stages = {f"seconds/{name}_of_a_long_name": 1.0 for name in ("collect", "train", "play", "log")}
    run_steps(
        learn,
        lambda ctx: ctx.metrics.update(stages),
        mw.curve(tmp_path / "curve.png", title=f"PPO on {env}"),
        steps=50,
    )
    [figure] = figures
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.texts]
    assert len(boxes) == 2
    assert all(figure.bbox.x0 < box.x0 < box.x1 < figure.bbox.x1 for box in boxes)
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert legend.get_window_extent().y1 < min(box.y0 for box in boxes)


def test_a_small_curve_of_many_points_shows_their_means() -> None:
    series = report_curve._Series()
    for step in range(1_000):
        series.add(step, step % 10)
    x, y = series.means(at_most=100)
    assert x.tolist() == [10 * k + 4.5 for k in range(100)]
    assert y.tolist() == [4.5] * 100
    assert [len(z) for z in series.means(at_most=1_000)] == [1_000, 1_000]
    assert [len(z) for z in series.means(at_most=300)] == [300, 300]


def test_a_long_curve_keeps_regular_points_and_the_newest() -> None:
    series = report_curve._Series()
    for step in range(100_001):
        series.add(step, -step)
        if step == 60_000:
            half, series = series.state(), report_curve._Series()
            series.load(half)
    x, y = series.points()
    assert (x[0], x[-1]) == (0, 100_000)
    assert 5_000 < len(x) < 20_000
    assert (x[1:] - x[:-1]).max() < 20
    assert y.tolist() == (-x).tolist()


def test_a_loss_on_a_device_is_not_waited_for_in_every_step(tmp_path: Path) -> None:
    class Loss:
        asked = 0

        def __float__(self) -> float:
            self.asked += 1
            return 0.5

    loss = Loss()

    def report(ctx: Context) -> None:
        ctx.metrics["loss"] = loss
        if ctx.total_step % 10 == 9:
            ctx.metrics["memory_mb"] = 412.0

    run_steps(report, mw.curve(tmp_path / "curve.svg"), steps=100)
    assert loss.asked == 10


def test_it_is_redrawn_on_the_way_but_not_often(clock: ManualClock, tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    drawn: list[bool] = []

    def watch(ctx: Context) -> None:
        drawn.append(path.exists())
        path.unlink(missing_ok=True)
        clock.advance(4.0)

    run_steps(learn, mw.curve(path, redraw=10.0, clock=clock), watch, steps=8)
    assert [step for step, was_drawn in enumerate(drawn) if was_drawn] == [3, 6]


def test_a_run_that_fails_leaves_its_curve_but_none_without_an_episode(tmp_path: Path) -> None:
    def fail(ctx: Context) -> None:
        if ctx.total_step == 5:
            raise ValueError("a bug")

    for name, first in (("with", learn), ("without", print)):
        with pytest.raises(ValueError, match="a bug"):
            run_steps(first, mw.curve(tmp_path / f"{name}.png"), fail)
    assert [path.name for path in tmp_path.iterdir()] == ["with.png"]


def test_the_picture_is_drawn_without_pyplot_and_its_settings(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw(tmp_path / "new" / "curve.png")
    [picture] = (tmp_path / "new").iterdir()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules


def test_a_curve_goes_on_with_the_points_that_the_checkpoint_knows(tmp_path: Path) -> None:
    states = []

    def keep(ctx: Context) -> Iterator[None]:
        yield
        states.append(task.state_dict())

    def make(path: Path) -> Task:
        return Task().use(keep).use(learn).use(mw.curve(path))

    task = make(tmp_path / "cut.svg")
    task.run(max_step=40)
    task = make(tmp_path / "cut.svg")
    task.load_state_dict(states[29])
    task.run(max_step=20)
    task = make(tmp_path / "whole.svg")
    task.run(max_step=50)

    def shapes(name: str) -> list[str]:
        return re.findall(r'<(?:path|use) [^>]*d="([^"]*)"', (tmp_path / name).read_text())

    assert len(shapes("whole.svg")) > 5
    assert shapes("cut.svg") == shapes("whole.svg")
    assert texts(tmp_path / "cut.svg") == texts(tmp_path / "whole.svg")

"""Reports of a run: rows, a live line, TensorBoard."""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import pty
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError, MiddlewareError
from ding_lite.middleware.report import progress as report_progress
from ding_lite.runtime import Context, Middleware, StepTimer, Task
from ding_lite.testing import ManualClock, run_step
from tests.middleware.running import run_steps


def play(*rows: dict[str, Any], clock: ManualClock | None = None) -> Middleware:
    """Make a middleware that writes one row of ctx keys and metrics a step."""
    remaining = iter(rows)

    def _play(ctx: Context) -> None:
        row = dict(next(remaining))
        for key in ("env_step", "train_iter"):
            if key in row:
                ctx[key] = row.pop(key)
        ctx.metrics.update(row)
        if clock is not None:
            clock.advance(1.0)

    return _play


def run(
    middleware: Middleware,
    *rows: dict[str, Any],
    clock: ManualClock | None = None,
    state: dict[str, Any] | None = None,
    saved_after: int | None = None,
) -> dict[str, Any]:
    """Run over rows, from a state; return the state at the end, or behind so many steps."""
    states: list[dict[str, Any]] = []

    def save(ctx: Context) -> Iterator[None]:
        yield
        if ctx.total_step + 1 == saved_after:
            states.append(task.state_dict())

    with Task() as task:
        task.use(save).use(play(*rows, clock=clock)).use(middleware)
        if state is not None:
            task.load_state_dict(state)
        task.run(max_step=len(rows))
    return states[0] if states else task.state_dict()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_stand_under_a_heading_of_their_columns(clock, capsys) -> None:
    rows = [{"env_step": 800 * k, "train_iter": k, "eval_return": 10.0 * k} for k in range(1, 5)]
    run(mw.log(every=2, clock=clock), *rows, clock=clock)

    assert capsys.readouterr().err.splitlines() == [
        "           env   train    eval         ",
        "  step    step    iter  return  steps/s",
        "     2   1,600       2      20      800",
        "     4   3,200       4      40      800",
    ]


def test_details_and_what_a_node_does_not_count_have_no_columns(capsys) -> None:
    run(mw.log(every=1), {"eval_return": 20.0, "episode_length": 31.0, "time/train": 0.5})
    lines = capsys.readouterr().err.splitlines()
    assert [line.split() for line in lines] == [["eval"], ["step", "return"], ["1", "20"]]


def test_a_row_has_the_newest_value_of_each_metric_and_null_for_what_json_lacks(clock, tmp_path):
    file = tmp_path / "metrics.jsonl"
    rows: list[dict[str, Any]] = [
        {"env_step": 8, "loss": 0.5, "eval_return": 80.0},
        {"loss": 0.25, "ok": torch.tensor(2)},
        {"loss": math.nan, "q": math.inf},
    ]
    run(mw.jsonl(file, every=2, clock=clock), *rows, clock=clock)

    first, last = read(file)
    assert (first["step"], first["loss"], first["eval_return"]) == (2, 0.25, 80.0)
    assert (last["step"], last["loss"], last["eval_return"]) == (3, None, 80.0)
    assert (last["q"], last["ok"]) == (None, 2.0)
    assert (first["wall_s"], last["wall_s"]) == (2.0, 3.0)
    assert (first["eval_env_step"], last["eval_env_step"]) == (8, 8)


def test_a_metric_with_the_name_of_a_counter_does_not_replace_it(tmp_path: Path, capsys) -> None:
    file, row = tmp_path / "metrics.jsonl", {"step": 0.5, "wall_s": 1e9, "train_iter": 0.25}
    for report in (mw.jsonl(file, every=1), mw.log(every=1)):
        with Task() as task:
            task.use(lambda ctx: ctx.update(env_step=8, metrics={**row, "env_step": 7.0}))
            task.use(report).run(max_step=1)
    (found,) = read(file)
    assert (found["step"], found["env_step"], found["train_iter"]) == (1, 8, 0)
    assert found["wall_s"] < 1e9
    assert capsys.readouterr().err.split()[-4:-1] == ["1", "8", "1e+09"]


def test_each_evaluation_has_a_row_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    run(mw.jsonl(file, every=4), *({"env_step": 8 * k, "eval_return": k} for k in range(1, 7)))
    assert [row["eval_env_step"] for row in read(file)] == [8, 16, 24, 32, 40, 48]
    assert [row["eval_return"] for row in read(file)] == [1, 2, 3, 4, 5, 6]


def test_the_file_and_its_seconds_grow_from_run_to_run_up_to_a_failure(clock, tmp_path) -> None:
    file = tmp_path / "runs" / "metrics.jsonl"

    def learn(ctx: Context) -> None:
        clock.advance(1.0)
        if ctx.total_step == 5:
            raise ValueError("a bug")

    with Task() as task:
        task.use(learn).use(mw.jsonl(file, every=4, clock=clock))
        task.run(max_step=3)
        clock.advance(100.0)  # between two runs nothing is counted
        with pytest.raises(ValueError, match="a bug"):
            task.run(max_step=3)
    assert [(row["step"], row["wall_s"]) for row in read(file)] == [(3, 3.0), (4, 4.0), (5, 6.0)]


def test_a_metric_that_is_no_number_is_named() -> None:
    with pytest.raises(ConfigError, match=r'`ctx\.metrics\["losses"\]` is a list') as caught:
        run(mw.log(every=1), {"losses": [1.0, 2.0]})
    assert "in middleware `log`" in "".join(caught.value.__notes__)


ROWS_OF_A_RUN: list[dict[str, Any]] = [
    {"env_step": 800 * k, "loss": 1.0 / k, **({"eval_return": 10.0 * k} if k % 3 == 1 else {})}
    for k in range(1, 11)
]


@pytest.mark.parametrize("steps", [1, 4, 5, 9])
def test_a_log_goes_on_with_the_rows_that_the_checkpoint_knows(tmp_path: Path, steps: int) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    clock = ManualClock()
    run(mw.jsonl(whole, every=4, clock=clock), *ROWS_OF_A_RUN, clock=clock)
    clock = ManualClock()
    log = mw.jsonl(cut, every=4, clock=clock)
    state = run(log, *ROWS_OF_A_RUN[:9], clock=clock, saved_after=steps)
    with cut.open("a") as file:
        file.write('{"step": 11, "env_st')
    log = mw.jsonl(cut, every=4, clock=clock)
    run(log, *ROWS_OF_A_RUN[steps:], clock=clock, state=state)

    assert cut.read_text() == whole.read_text()
    assert [row["wall_s"] for row in read(cut)] == [4.0, 4.0, 8.0, 10.0]


@pytest.mark.parametrize("steps", [3, 4, 9, 10])
def test_an_interrupted_run_has_the_rows_and_points_of_a_whole_one(tmp_path, steps) -> None:
    def log(name: str) -> Middleware:
        events = mw.tensorboard(tmp_path / f"{name} events", every=4)
        return Task().serial(mw.jsonl(tmp_path / name, every=4, clock=clock), events)

    clock = ManualClock()
    run(log("whole"), *ROWS_OF_A_RUN, clock=clock)
    clock = ManualClock()
    state = run(log("cut"), *ROWS_OF_A_RUN[:steps], clock=clock)
    run(log("cut"), *ROWS_OF_A_RUN[steps:], clock=clock, state=state)  # behind the tenth: no more
    assert (tmp_path / "cut").read_text() == (tmp_path / "whole").read_text()
    assert scalars(tmp_path / "cut events") == scalars(tmp_path / "whole events")


def test_a_log_that_has_lost_rows_warns_and_goes_on(tmp_path, clock, caplog) -> None:
    file = tmp_path / "metrics.jsonl"
    state = run(mw.jsonl(file, every=1, clock=clock), *ROWS_OF_A_RUN[:3], clock=clock)
    file.write_bytes(file.read_bytes()[:-20])  # as after a power cut
    run(mw.jsonl(file, every=1, clock=clock), *ROWS_OF_A_RUN[3:], clock=clock, state=state)
    assert [row["step"] for row in read(file)] == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert "the rows that are missing cannot be made again" in caplog.text


def test_what_is_of_one_process_alone_is_in_no_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    row = {"env_step": 8, "loss": 0.5, "steps_per_s": 100.0, "memory_mb": 412.0}
    state = run(mw.jsonl(file, every=1), row)
    run(mw.jsonl(file, every=1), {"env_step": 16}, state=state)
    first, second = read(file)
    assert (first["steps_per_s"], first["memory_mb"]) == (100.0, 412.0)
    assert second["loss"] == 0.5
    assert not {"steps_per_s", "memory_mb"} & second.keys()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], io.StringIO]:
    """Return a function that makes standard error a terminal of some width."""

    def make(width: int) -> io.StringIO:
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, width=width, _environ={})
        monkeypatch.setattr(report_progress, "terminal", lambda: console)
        return screen

    return make


ROWS = [
    {"env_step": 1_000 * k, "return": 10.0 * k, "eval_return": 20.0 * k, "epsilon": 0.5}
    | {"episodes": k}
    for k in range(1, 6)
]


def shown(screen: io.StringIO) -> list[str]:
    """Take the frames that were drawn one over the other, without their colours."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    return [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def test_on_a_terminal_one_line_is_rewritten(clock, terminal) -> None:
    screen = terminal(150)
    run(mw.progress(max_env_steps=10_000, target=475, clock=clock), *ROWS, clock=clock)

    frames = shown(screen)
    assert len(frames) == 7  # the first one, one for each step, and twice the last one
    assert frames[-1].endswith(
        "5,000/10,000 env steps  1,000 steps/s  episodes 5  return 50.0  eval 100.0/475  "
        "epsilon 0.50  0:05"
    )
    assert frames[-3].endswith("epsilon 0.50  0:05, at most 0:05 left")
    assert frames[-1].startswith("━━━━")


@pytest.mark.parametrize("kind", ["terminal", "pipe"])
def test_a_run_goes_on_when_the_reader_of_its_lines_is_gone(kind: str, clock, monkeypatch) -> None:
    reader, writer = pty.openpty() if kind == "terminal" else os.pipe()
    stderr = open(writer, "w", buffering=1)  # noqa: SIM115 - which cannot be closed in order
    monkeypatch.setattr("sys.stderr", stderr)
    with Task() as task:
        task.use(mw.progress(clock=clock)).use(mw.log(every=1)).use_step_wrapper(StepTimer())
        task.use(lambda ctx: clock.advance(60.0))
        task.use(lambda ctx: os.close(reader) if ctx.total_step == 2 else None)
        task.run(max_step=5)
    assert task.ctx.total_step == 4
    with suppress(OSError):
        stderr.close()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100])
def test_the_line_fits_into_any_terminal(clock, terminal, width) -> None:
    screen = terminal(width)
    progress = mw.progress(max_env_steps=10_000, target=475, title="DQN", clock=clock)
    run(progress, *ROWS, clock=clock)

    frames = shown(screen)
    assert len(frames) == 7
    assert all(len(frame) <= width - 2 for frame in frames)
    if width >= 60:
        assert "5,000/10,000 env steps" in frames[-1]
        assert "eval 100.0/475" in frames[-1]


def test_returns_loss_speed_and_memory_are_on_the_screen(clock, terminal, capsys) -> None:
    rows = [{**row, "loss": 0.0123456, "memory_mb": 412.3} for row in ROWS]
    run(mw.progress(max_env_steps=10_000, clock=clock), *rows, clock=clock)
    everything = (
        "5,000/10,000 env steps  1,000 steps/s  episodes 5  return 50.0  eval 100.0  "
        "loss 0.0123  epsilon 0.50  412 MB  0:05"
    )
    assert capsys.readouterr().err.splitlines() == [everything]

    screen = terminal(160)
    run(mw.progress(max_env_steps=10_000, clock=clock), *rows, clock=clock)
    assert shown(screen)[-1].endswith(everything)
    screen = terminal(100)  # where there is no room for all of it
    run(mw.progress(max_env_steps=10_000, clock=clock), *rows, clock=clock)
    rest = "1,000 steps/s  return 50.0  eval 100.0  loss 0.0123  0:05"
    assert shown(screen)[-1].endswith(rest)


def test_it_is_not_drawn_more_often_than_one_can_see(terminal) -> None:
    screen = terminal(100)
    run(mw.progress(clock=ManualClock()), *[{"env_step": k} for k in range(500)])
    assert len(shown(screen)) <= 2


def test_without_a_terminal_there_is_one_line_a_minute(clock, capsys) -> None:
    rows = [{"env_step": 100 * k} for k in range(1, 151)]
    run(mw.progress(clock=clock), *rows, clock=clock)

    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "6,000 env steps  100 steps/s  1:00",
        "12,000 env steps  100 steps/s  2:00",
        "15,000 env steps  100 steps/s  2:30",
    ]


def test_the_time_left_follows_from_the_rate_of_late(clock, capsys) -> None:
    def slow_down(ctx: Context) -> None:
        clock.advance(60.0 * (ctx.total_step > 0))
        ctx.env_step = (0, 6_000, 6_600)[ctx.total_step]

    run_steps(slow_down, mw.progress(max_env_steps=12_600, clock=clock), steps=3)
    first, second, _ = capsys.readouterr().err.splitlines()
    assert first.endswith("100 steps/s  1:00, at most 1:06 left")
    assert second.endswith("10 steps/s  2:00, at most 10:00 left")


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Read a directory as TensorBoard does."""
    reading = importlib.import_module(
        "tensorboard.backend.event_processing.plugin_event_accumulator"
    )
    to_array = importlib.import_module("tensorboard.util.tensor_util").make_ndarray
    events = reading.EventAccumulator(str(directory)).Reload()
    return {
        tag: [(event.step, float(to_array(event.tensor_proto))) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def test_tensorboard_gets_each_metric_over_env_steps(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"env_step": 8, "loss": 0.5, "eval_return": 20.0},
        {"env_step": 16, "loss": 0.25},
        {"env_step": 24, "loss": 0.125},
        {"env_step": 32, "loss": torch.tensor(0.0625)},
        {"env_step": 40, "loss": 2.0},
    ]
    run(mw.tensorboard(tmp_path / "events", every=2), *rows)

    assert scalars(tmp_path / "events") == {
        "loss": [(16, 0.25), (32, 0.0625), (40, 2.0)],
        "eval_return": [(16, 20.0)],
    }


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_tensorboard_forgets_the_points_that_come_again(tmp_path: Path, steps: int) -> None:
    run(mw.tensorboard(tmp_path / "whole", every=3), *ROWS_OF_A_RUN)
    lies = [{**row, "loss": 7.0} for row in ROWS_OF_A_RUN[steps:8]]
    rows = [*ROWS_OF_A_RUN[:steps], *lies, {"env_step": 7200}]
    state = run(mw.tensorboard(tmp_path / "cut", every=3), *rows, saved_after=steps)
    [file] = (tmp_path / "cut").iterdir()
    file.rename(file.with_name(file.name.replace("tfevents.1", "tfevents.2")))  # by a faster clock
    run(mw.tensorboard(tmp_path / "cut", every=3), *ROWS_OF_A_RUN[steps:], state=state)
    assert scalars(tmp_path / "cut") == scalars(tmp_path / "whole")


def test_what_tensorboard_was_given_before_a_checkpoint_is_on_disk_then(tmp_path: Path) -> None:
    written: list[bytes] = []

    def save(ctx: Context) -> Iterator[None]:
        yield
        task.state_dict()
        written.append(b"".join(file.read_bytes() for file in tmp_path.iterdir()))

    with Task() as task:
        task.use(save)
        task.use(play({"env_step": 8, "loss": 0.5}))
        task.use(mw.tensorboard(tmp_path, every=1))
        task.run(max_step=1)
    assert b"loss" in written[0]


def test_reports_of_a_run_without_metrics_say_at_least_the_step(tmp_path, capsys) -> None:
    for middleware in (mw.log(every=1), mw.progress(), mw.tensorboard(tmp_path, every=1)):
        run_step(middleware)
    lines = capsys.readouterr().err.splitlines()
    assert lines[1].split() == ["step"]  # the numbers of env steps and updates are not known
    assert lines[2].split() == ["1"]
    assert lines[3].startswith("0 env steps")


def test_tensorboard_that_was_not_entered_is_an_error(tmp_path: Path) -> None:
    events = mw.tensorboard(tmp_path, every=1)

    def hidden(ctx: Context) -> None:
        ctx.metrics["loss"] = 0.5
        events(ctx)

    with pytest.raises(MiddlewareError, match=r"Give it to `task\.use` itself"):
        run_step(hidden)

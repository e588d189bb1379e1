"""The script of the results: its tasks, its statistics, and resumed runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ding_lite import train
from ding_lite.recipes.choices import Choices
from ding_lite.recipes.plan import make_plan
from tests.fonts import open_fonts
from tests.results import __main__ as command, page
from tests.results.page import interquartile_mean, interval
from tests.results.tasks import TASKS, ZOO, policies_of

PAIRS = [(policy, env) for envs in TASKS.values() for env in envs for policy in policies_of(env)]


def test_all_tuned_values_belong_to_a_task_and_only_pictures_have_none() -> None:
    assert {*ZOO} <= {*PAIRS}
    without = {env for policy, env in {*PAIRS} - {*ZOO}}
    assert all(env.startswith(("MinAtar/", "ALE/")) for env in without)


@pytest.mark.parametrize(("policy", "env"), PAIRS[:14])
def test_a_task_has_a_preset_with_a_target(policy: str, env: str) -> None:
    plan = make_plan(policy, env, {}, Choices())
    assert plan.has_preset
    assert np.isfinite(plan.options.target)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["Nothing-v0"], "no such task: Nothing-v0; there are: CartPole-v1"),
        (["--policies", "sacs"], "no such policy: sacs; there are: dqn, ppo, sac, td3"),
    ],
)
def test_a_wrong_argument_is_an_error(words, message, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["tests.results", *words])
    with pytest.raises(SystemExit):
        command.main()
    assert message in capsys.readouterr().err


def test_the_runs_of_a_background_job_can_be_interrupted(monkeypatch) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts it
    try:
        monkeypatch.setattr("sys.argv", ["tests.results", "Nothing-v0"])
        with pytest.raises(SystemExit):
            command.main()
        show = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT))"]
        shown = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    finally:
        signal.signal(signal.SIGINT, before)
    assert "default_int_handler" in shown


def test_the_interquartile_mean_is_the_mean_of_the_middle_half() -> None:
    assert interquartile_mean([7.0]) == 7.0
    assert interquartile_mean([0.0, 10.0, 20.0, 1_000.0]) == 15.0
    # A quarter of three is 0.75: of the outer ones a quarter is left.
    assert interquartile_mean([0.0, 10.0, 100.0]) == pytest.approx((0.25 * 100 + 10) / 1.5)
    values = np.random.default_rng(0).normal(size=400)
    assert interquartile_mean(values) == pytest.approx(np.sort(values)[100:300].mean())


def test_the_interval_holds_the_mean_and_narrows_with_more_seeds() -> None:
    values = np.random.default_rng(1).normal(size=64)
    widths = []
    for count in (4, 16, 64):
        low, high = interval(values[:count])
        assert low <= interquartile_mean(values[:count]) <= high
        widths.append(high - low)
    assert all(later < earlier for earlier, later in pairwise(widths))


@pytest.fixture(scope="module", autouse=True)
def _fonts() -> None:
    open_fonts()


def without_end(folder: Path) -> Path:
    """Make a folder in which `python -m ding_lite` works until it is interrupted."""
    package = folder / "without_end" / "ding_lite"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("while True: ...\n")
    return package.parent


@pytest.mark.procs
def test_the_processor_time_before_ctrl_c_counts(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(command, "ROOT", without_end(tmp_path))
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    job = command.Job("ding_lite", "ppo", "CartPole-v1", 0)
    main = threading.get_ident()
    threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        command.advance(job, 100.0)
    assert float((job.folder / "cpu_s").read_text()) > 0.0


@pytest.mark.procs
def test_an_interrupted_run_is_resumed_and_its_result_is_on_the_page(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(command, "FOLDER", tmp_path / "runs")
    monkeypatch.setattr(page, "FOLDER", tmp_path / "docs")
    monkeypatch.setattr(page, "README", tmp_path / "README.md")
    page.README.write_text("<!-- results: x -->\nold\n<!-- end of results -->\n")
    job = command.Job("ding_lite", "ppo", "CartPole-v1", 0)
    run = job.folder / "run"  # what the last slice leaves
    train("ppo", "CartPole-v1", unroll=32, num_envs=4, max_env_steps=512, quiet=True, out=run)
    with monkeypatch.context() as patch:
        patch.setattr(command, "ROOT", without_end(tmp_path))
        assert command.advance(job, 0.3) is None
    results = command.advance(job, 100.0)
    assert results is not None
    command.keep(job, results)
    assert command.is_complete(job)
    assert not command.is_complete(command.Job("ding_lite", "ppo", "CartPole-v1", 1))
    page.write()
    text = (tmp_path / "docs" / "README.md").read_text()
    [row] = page.rows_of("CartPole-v1")
    assert row["env_steps"] == 512
    assert f"| PPO | ding_lite | 475 | {row['solved']:d} of 1 | {row['return']:,.1f} [" in text
    assert "### Acrobot-v1" not in text
    assert "\n- classic control: CartPole-v1 (DQN), Acrobot-v1 (PPO, DQN), " in text
    assert (tmp_path / "docs" / "CartPole-v1.png").stat().st_size > 5_000
    assert "CartPole" not in page.README.read_text()  # the other side has not run
    page.save_rows("CartPole-v1", [row, {**row, "side": "stable_baselines3", "solved": True}])
    page.write()
    [_, _, _, line, _] = page.README.read_text().splitlines()
    assert line.startswith(f"| PPO on CartPole-v1, 475 | {row['solved']:d} of 1")
    assert line.endswith(f"| 1 of 1: 512 env steps, **{row['cpu_s']:,.0f} s** |")

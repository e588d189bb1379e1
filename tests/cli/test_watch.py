"""`ding-lite watch`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ding_lite import middleware as mw
from ding_lite.cli.main import main
from ding_lite.recipes.runs import video
from ding_lite.rl.checkpoint.save_load import load_checkpoint, save_checkpoint
from ding_lite.rl.envs.catch import CATCH_ID
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.testing import run_step
from tests.cli.calls import Typed

pytestmark = pytest.mark.usefixtures("_here", "_no_display")


@pytest.fixture
def _no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


def save(env: str, directory: str = "here/checkpoint") -> None:
    with make_envs(env, 1) as envs:
        run_step(mw.checkpoint(DQN(envs.spec, DQNConfig(hidden=(8,))), directory, every=1))


def test_without_a_display_there_are_returns(capsys: pytest.CaptureFixture[str]) -> None:
    save("CartPole-v1")
    assert main(["watch", "here", "--episodes", "3", "--seed", "1"]) == 0
    out = capsys.readouterr().out
    first, hint, *lines = out.splitlines()
    assert first == "DQN on CartPole-v1, from here/checkpoint"
    assert hint == "No display here: only the returns are shown; --record DIR writes videos."
    assert [line.split()[:3] for line in lines[:3]] == [
        ["episode", str(number), "return"] for number in (1, 2, 3)
    ]
    assert lines[3].startswith("mean of 3: ")
    main(["watch", "here/checkpoint", "--episodes", "3", "--seed", "1"])
    assert capsys.readouterr().out.splitlines()[1:] == out.splitlines()[1:]


def test_the_best_policy_plays_unless_the_last_one_is_asked_for(capsys) -> None:
    with make_envs("CartPole-v1", 1) as envs:
        best, last = (DQN(envs.spec, DQNConfig(hidden=(8,), seed=seed)) for seed in (1, 2))
        run_step(mw.checkpoint(last, "here/checkpoint", every=1), env_step=9_000, eval_value=12.5)
        run_step(mw.keep_best(best, "here/best"), env_step=8_000, eval_value=461.0)
    played = {}
    for words in ([], ["--last"]):
        assert main(["watch", "here", "--episodes", "2", *words]) == 0
        first, _, *played[len(words)] = capsys.readouterr().out.splitlines()
        output = "here/checkpoint (after 9,000 env steps, return 12.5 in its evaluation)"
        if not words:
            output = "here/best (after 8,000 env steps, return 461 in its evaluation)"
        assert first == f"DQN on CartPole-v1, from {output}"
    assert played[0] != played[1]


def test_videos_are_written(capsys, monkeypatch) -> None:
    monkeypatch.setattr(video, "find_ffmpeg", lambda: None)
    save(CATCH_ID)
    assert main(["watch", "here", "--episodes", "2", "--record", "videos"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == [
        "videos/episode-001.gif",
        "videos/episode-002.gif",
    ]
    assert all(Path(line.split()[-1]).read_bytes().startswith(b"GIF") for line in lines[1:3])


def test_where_a_window_is_impossible_the_returns_are_shown(capsys, monkeypatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    save(CATCH_ID)
    assert main(["watch", "here", "--episodes", "1"]) == 0
    _, hint, line, _ = capsys.readouterr().out.splitlines()
    assert hint == (
        "ding_lite/Catch-v0 cannot be drawn as `human`; it knows: rgb_array. Only the returns "
        "are shown."
    )
    assert line.startswith("episode 1 ")


@pytest.mark.parametrize("value", ["x", [1], 2**1300, float("inf"), np.ones(2)], ids=type)
def test_counters_that_are_no_numbers_are_left_out(capsys, value) -> None:
    save("CartPole-v1")
    saved = load_checkpoint("here/checkpoint")
    meta = {**saved.meta, "env_step": value, "eval_value": value}
    save_checkpoint("here/checkpoint", saved.state, meta=meta)
    assert main(["watch", "here", "--episodes", "1"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "DQN on CartPole-v1, from here/checkpoint"


@pytest.mark.parametrize(
    "words",
    [
        ("watch", ".", "--episodes", "1", "--record", "videos"),
        ("report", "."),
        ("export", ".", "--format", "torch"),
    ],
)
def test_no_module_of_the_folder_of_a_run_is_imported(typed: Typed, words: tuple[str, ...]) -> None:
    """A folder from elsewhere may contain modules of the names of optional packages."""
    save(CATCH_ID, "checkpoint")  # which draws itself
    for name in ("imageio_ffmpeg", "mpmath", "onnx", "pygame"):
        Path(f"{name}.py").write_text("open('imported', 'w')\n")
    Path("config.json").write_text('{"example": "dqn", "options": {"env": "Catch"}}')
    Path("metrics.jsonl").write_text('{"env_step": 1, "wall_s": 1.0, "return": 1.0}\n')
    code, _, err = typed(Path.cwd(), *words, PATH="")  # without ffmpeg
    assert not Path("imported").exists()
    assert code == 0, err

"""Playing where one can see it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

from ding_lite.errors import ConfigError, MissingExtraError, pip_line
from ding_lite.recipes import record_video
from ding_lite.recipes.runs import video
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.envs.catch import CATCH_ID
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.evaluation import mean_return
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.torch_policies.r2d2 import R2D2, R2D2Config


@pytest.fixture
def catcher() -> DQN:
    """Return a policy that has learned nothing of a game that draws itself."""
    with make_envs(CATCH_ID, 1, frame_stack=2) as envs:
        return DQN(envs.spec, DQNConfig(hidden=(8,)))


@pytest.fixture
def without_ffmpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "find_ffmpeg", lambda: None)


def pictures(count: int) -> Iterator[NumpyArray]:
    for number in range(count):
        picture = np.full((30, 41, 3), number % 256, dtype=np.uint8)
        picture[number % 30] = 255
        yield picture


def frames_of(path: Path) -> int:
    with Image.open(path) as image:
        count: int = getattr(image, "n_frames", 1)
        return count


@pytest.mark.parametrize(
    ("environ", "driver"),
    [({}, "dummy"), ({"DISPLAY": ":0"}, None), ({"SDL_VIDEODRIVER": "x11"}, "x11")],
)
def test_without_a_display_pygame_looks_for_none(
    catcher: DQN,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    environ: dict[str, str],
    driver: str | None,
) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"], **environ})
    record_video(catcher, tmp_path)
    assert os.environ.get("SDL_VIDEODRIVER") == driver


def test_episodes_are_played_to_their_ends(catcher: DQN) -> None:
    episodes = list(video.play(catcher, episodes=3, seed=1))
    assert [episode.length for episode in episodes] == [episodes[0].length] * 3
    assert all(-10.0 <= episode.ret <= 10.0 for episode in episodes)
    assert list(video.play(catcher, episodes=3, seed=1)) == episodes


@pytest.mark.usefixtures("without_ffmpeg")
def test_a_policy_with_memory_is_watched() -> None:
    policy = R2D2(make_envs("CartPole-v1", 1).spec, R2D2Config(hidden=(4,), memory_size=3))
    envs = make_envs("CartPole-v1", 1, seed=5)
    returns = [episode.ret for episode in video.play(policy, episodes=3, seed=5)]
    assert sum(returns) / 3 == mean_return(policy, envs, episodes=3)


@pytest.mark.usefixtures("without_ffmpeg")
def test_an_episode_is_cut_after_its_steps_or_seconds(catcher: DQN, tmp_path: Path) -> None:
    films = list(video.play_and_record(catcher, tmp_path, episodes=2, seed=1, max_steps=3))
    assert [episode.length for episode, _ in films] == [3, 3]
    assert all(1 < frames_of(path) <= 4 for _, path in films)
    films = list(video.play_and_record(catcher, tmp_path, episodes=2, seed=1, seconds=0.0))
    assert [episode.length for episode, _ in films] == [1, 1]


@pytest.mark.usefixtures("without_ffmpeg")
def test_each_episode_becomes_a_video(catcher: DQN, tmp_path: Path) -> None:
    videos = record_video(catcher, str(tmp_path / "videos"), episodes=2, seed=1)
    assert [path.name for path in videos] == ["episode-001.gif", "episode-002.gif"]
    assert sorted((tmp_path / "videos").iterdir()) == videos  # no unfinished third
    for episode, path in zip(video.play(catcher, episodes=2, seed=1), videos, strict=True):
        assert 1 < frames_of(path) <= episode.length + 1
    kept = videos[0].read_bytes()
    assert [path.name for path in record_video(catcher, tmp_path / "videos")] == ["episode-003.gif"]
    assert videos[0].read_bytes() == kept
    swapped: Any = tmp_path
    with pytest.raises(ConfigError, match=r"`policy` is .*, which has no `act` method"):
        record_video(swapped, catcher)  # type: ignore[arg-type]


def test_a_gif_keeps_its_speed(tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    film = video.GifWriter(path, fps=50.0)
    for picture in pictures(20):
        film.add(picture)
    assert not path.exists()
    film.finish()
    with Image.open(path) as image:
        assert image.info["duration"] == 40
    assert frames_of(path) == 10
    assert [file.name for file in tmp_path.iterdir()] == ["a.gif"]


def fake_ffmpeg(folder: Path, body: str) -> str:
    """Write a program that takes what ffmpeg takes."""
    program = folder / "ffmpeg"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_ffmpeg_gets_every_picture_whole_and_writes_to_no_file_of_a_link(tmp_path) -> None:
    ffmpeg = fake_ffmpeg(tmp_path, 'for last; do :; done; cat > "$last"; echo "$@" > "$last.said"')
    (tmp_path / ".a.mp4.unfinished.mp4").symlink_to(tmp_path / "own")
    path = tmp_path / "a.mp4"
    film = video.Mp4Writer(path, fps=50.0, ffmpeg=ffmpeg)
    given = list(pictures(5))
    for picture in given:
        film.add(picture)
    film.finish()
    assert path.read_bytes() == b"".join(picture.tobytes() for picture in given)
    assert not (tmp_path / "own").exists()
    [said] = tmp_path.glob(".a.unfinished-*.mp4.said")
    assert "-pix_fmt rgb24 -s 41x30 -r 50 -i -" in said.read_text()


def test_an_error_of_ffmpeg_is_reported(tmp_path: Path) -> None:
    ffmpeg = fake_ffmpeg(tmp_path, 'echo "no such codec" >&2; exit 3')
    film = video.Mp4Writer(tmp_path / "a.mp4", fps=50.0, ffmpeg=ffmpeg)
    for picture in pictures(200):  # more than a pipe holds
        film.add(picture)
    with pytest.raises(ConfigError, match=r"could not write .*a\.mp4: no such codec"):
        film.finish()
    assert [file.name for file in tmp_path.iterdir()] == ["ffmpeg"]


def test_a_film_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    ffmpeg = fake_ffmpeg(tmp_path, 'for last; do :; done; cat > "$last"')
    for film in (
        video.Mp4Writer(tmp_path / "a.mp4", fps=50.0, ffmpeg=ffmpeg),
        video.GifWriter(tmp_path / "a.gif", fps=5),
    ):
        film.add(next(pictures(1)))
        film.drop()
    assert [file.name for file in tmp_path.iterdir()] == ["ffmpeg"]


def test_ffmpeg_is_found_where_programs_are(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    before = video.find_ffmpeg()
    assert before is None or "imageio" in before
    ffmpeg = fake_ffmpeg(tmp_path, "exit 0")
    assert video.find_ffmpeg() == ffmpeg


class Blind(gymnasium.Env[Any, Any]):
    """An environment that draws nothing."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as gymnasium's
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, dtype=np.float32), {}


class Painter(Blind):
    def __init__(self, picture: Any) -> None:
        self.picture = picture

    def step(self, action: Any) -> Any:
        return np.zeros(2, dtype=np.float32), 0.0, False, False, {}

    def render(self) -> Any:
        return self.picture


@pytest.mark.parametrize(
    ("picture", "found"),
    [
        (None, "None"),
        (np.zeros((4, 4), np.uint8), r"uint8 of shape \(4, 4\)"),
        (np.zeros((4, 4, 1), np.uint8), r"uint8 of shape \(4, 4, 1\)"),
        (np.full((4, 4, 3), 255.0), r"float64 of shape \(4, 4, 3\)"),
    ],
)
def test_what_is_no_picture_in_colours_is_named(picture: Any, found: str) -> None:
    with pytest.raises(ConfigError, match=f"drew {found} as `rgb_array`"):
        video.EpisodeRecorder(
            Painter(picture), lambda fps: video.GifWriter(Path("x.gif"), fps=fps)
        ).reset()


def test_pictures_of_floats_are_not_black(tmp_path: Path) -> None:
    writer = video.GifWriter(tmp_path / "x.gif", fps=10)
    recorder = video.EpisodeRecorder(Painter(np.ones((4, 4, 3))), lambda fps: writer)
    recorder.reset()
    recorder.step(0)
    writer.finish()
    with Image.open(tmp_path / "x.gif") as image:
        assert image.convert("RGB").getextrema() == ((255, 255),) * 3


def test_an_environment_that_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    gymnasium.register("ding_lite_tests/Blind-v0", entry_point=lambda **_: Blind())
    try:
        with make_envs("ding_lite_tests/Blind-v0", 1) as envs:
            policy = DQN(envs.spec, DQNConfig(hidden=(8,)))
        told = r"cannot be drawn as `rgb_array`; it knows: nothing\. .*\[\"render_modes\"\]"
        with pytest.raises(ConfigError, match=told):
            next(video.play_and_record(policy, tmp_path))
    finally:
        del gymnasium.registry["ding_lite_tests/Blind-v0"]


def test_a_vector_environment_that_is_to_be_drawn_is_refused(tmp_path: Path) -> None:
    def vector(num_envs: int) -> Any:
        return gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * num_envs)

    with make_envs(vector, 2) as envs:
        policy = DQN(envs.spec, DQNConfig(hidden=(8,)))
    with pytest.raises(ConfigError, match=r"vector makes a vector environment, .*env=\.\.\."):
        next(video.play_and_record(policy, tmp_path))


def test_a_package_that_drawing_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pygame(self: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed, run `pip ...`")

    monkeypatch.setattr(
        "gymnasium.envs.classic_control.cartpole.CartPoleEnv.render", no_pygame, raising=True
    )
    with make_envs("CartPole-v1", 1) as envs:
        policy = DQN(envs.spec, DQNConfig(hidden=(8,)))
    with pytest.raises(MissingExtraError, match="CartPole-v1 needs a package that is") as caught:
        list(video.play(policy, episodes=1, render_mode="human"))
    assert pip_line("video") in str(caught.value)

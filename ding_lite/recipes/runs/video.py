"""Play episodes of a policy in a window, or record them as videos.

The environment renders its frames, and the wrapper `Camera` collects them. Videos are .mp4 if
ffmpeg is installed, which may come with moviepy, else .gif by Pillow, which matplotlib installs.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import ConfigError, MissingExtraError, kind_of
from ding_lite.io.files import new_beside, replacing
from ding_lite.middleware.checks import check_has
from ding_lite.recipes.runs.directory import make_directory
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.envs.making import EnvMaker, EnvWrapper
from ding_lite.rl.envs.vector import Episode, make_envs
from ding_lite.rl.evaluation import greedy_steps
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings.environment import process_environ, suggest_environ

if TYPE_CHECKING:
    from PIL.Image import Image

Env: TypeAlias = gymnasium.Env[Any, Any]

_GIF_FPS = 25
"""Maximum frames per second: more make a large file, and browsers play them too slowly."""
_GIF_WIDTH = 400


def play(
    policy: Policy,
    *,
    episodes: int,
    seed: int = 0,
    render_mode: str | None = None,
    wrappers: Sequence[EnvWrapper] = (),
) -> Iterator[Episode]:
    """Play greedy episodes one after the other, and yield each when it has ended."""
    spec = policy.spec
    drawn = {} if render_mode is None else {"render_mode": render_mode}
    with make_envs(
        spec.maker or spec.env_id,
        1,
        seed=seed,
        frame_stack=spec.frame_stack,
        wrappers=wrappers,
        env_args=drawn,
    ) as envs:
        ended = itertools.chain.from_iterable(greedy_steps(policy, envs))
        yield from itertools.islice(ended, episodes)


def record_video(
    policy: Policy, directory: str | os.PathLike[str], *, episodes: int = 1, seed: int = 0
) -> list[Path]:
    """Play greedy episodes, and write a video of each: .mp4 if ffmpeg is installed, else .gif.

    Videos that the directory already has are kept: the numbers continue behind theirs.

    Args:
        policy: Acts without exploration; `load_policy` loads that of a run.
        directory: The directory of the videos; it is made if it does not exist.
        episodes: Number of episodes.
        seed: The seed of the environment.

    Returns:
        The paths of the videos, in the order of the episodes.

    Raises:
        ConfigError: The environment cannot be rendered as `rgb_array`, or `policy` is no policy.
        MissingExtraError: A package that rendering needs is not installed.
    """
    check_has(policy, "act", "policy")
    recorded = play_and_record(policy, Path(directory), episodes=episodes, seed=seed)
    return [path for _, path in recorded]


def play_and_record(
    policy: Policy,
    directory: Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    seconds: float = math.inf,
    max_steps: float = math.inf,
) -> Iterator[tuple[Episode, Path]]:
    """Play greedy episodes, and yield each with the path of its video; see `record_video`.

    Episodes are cut after `max_steps` each, and after `seconds` in all.
    """
    check_render_mode(policy.spec, "rgb_array")
    if not {"DISPLAY", "WAYLAND_DISPLAY"} & process_environ().keys():
        # pygame, which draws classic control, else looks for a display, and prints errors.
        suggest_environ("SDL_VIDEODRIVER", "dummy")
    make_directory(directory)
    paths: list[Path] = []
    numbers = itertools.count(1)
    ffmpeg = find_ffmpeg()
    deadline = SYSTEM_CLOCK.now() + seconds

    def open_writer(fps: float) -> VideoWriter:
        ending = "gif" if ffmpeg is None else "mp4"
        names = (f"episode-{number:03d}.{ending}" for number in numbers)
        path = next(path for name in names if not (path := directory / name).exists())
        paths.append(path)
        return (
            GifWriter(path, fps=fps) if ffmpeg is None else Mp4Writer(path, fps=fps, ffmpeg=ffmpeg)
        )

    for episode in play(
        policy,
        episodes=episodes,
        seed=seed,
        render_mode="rgb_array",
        wrappers=[
            lambda env: EpisodeRecorder(env, open_writer, deadline=deadline, max_steps=max_steps)
        ],
    ):
        yield episode, paths[-1]


def check_render_mode(spec: EnvSpec, mode: str) -> None:
    """Raise ConfigError if an environment does not support a render mode."""
    maker = EnvMaker.of(spec.maker or spec.env_id)
    env = maker(num_envs=1) if maker.takes_num_envs else maker()
    env.close()
    if isinstance(env, VectorEnv):
        raise ConfigError(
            f"{spec.env_id} makes a vector environment, and single ones are drawn. Name one of its "
            f"environments: load_policy(..., env=...)."
        )
    modes = list(env.metadata.get("render_modes") or ())
    if mode not in modes:
        known = ", ".join(modes) or (
            'nothing. Declare the mode in its `metadata["render_modes"]`, and let its `__init__` '
            "take and set `render_mode`"
        )
        raise ConfigError(f"{spec.env_id} cannot be drawn as `{mode}`; it knows: {known}.")


class EpisodeRecorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records each episode of an environment; an episode that does not end has no video.

    `open_writer` is called with the frames per second at the first step of an episode. Episodes are
    cut at `deadline`, in seconds of the system's clock, and after `max_steps`.
    """

    def __init__(
        self,
        env: Env,
        open_writer: Callable[[float], VideoWriter],
        *,
        deadline: float = math.inf,
        max_steps: float = math.inf,
    ) -> None:
        super().__init__(env)
        self._open_writer = open_writer
        self._deadline = deadline
        self._max_steps = max_steps
        self._steps = 0
        self._first: NumpyArray | None = None
        self._writer: VideoWriter | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - of the environment
        result = super().reset(seed=seed, options=options)
        self._steps = 0
        if self._writer is not None:
            self._writer.finish()
            self._writer = None
        self._first = self._picture()
        return result

    def step(self, action: Any) -> Any:  # noqa: ANN401 - of the environment
        result = super().step(action)
        self._steps += 1
        if self._writer is None:
            self._writer = self._open_writer(float(self.metadata.get("render_fps") or 30))
            if self._first is not None:
                self._writer.add(self._first)
        self._writer.add(self._picture())
        if self._steps >= self._max_steps or SYSTEM_CLOCK.now() > self._deadline:
            return *result[:3], True, result[4]
        return result

    def close(self) -> None:
        if self._writer is not None:
            self._writer.drop()
            self._writer = None
        super().close()

    def _picture(self) -> NumpyArray:
        picture: Any = self.render()
        is_array = isinstance(picture, np.ndarray)
        if is_array and picture.dtype.kind == "f" and picture.max(initial=0.0) <= 1.0:
            picture = (255.0 * picture).astype(np.uint8)  # MinAtar draws floats from 0 to 1
        has_colours = is_array and picture.ndim == 3 and picture.shape[2] >= 3
        if not has_colours or picture.dtype.kind not in "iu":
            found = f"{picture.dtype} of shape {picture.shape}" if is_array else kind_of(picture)
            raise ConfigError(
                f"{self.spec.id if self.spec else self.env} drew {found} as `rgb_array`; an array "
                f"of height, width and three colours was expected, of bytes or of floats from 0 to "
                f"1. Draw one in its `render`, or in that of a wrapper."
            )
        return np.ascontiguousarray(picture[..., :3], dtype=np.uint8)


def find_ffmpeg() -> str | None:
    """Return the path of ffmpeg: the system's, or that of moviepy; None if there is none."""
    if found := shutil.which("ffmpeg"):
        return found
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        return None
    with suppress(RuntimeError):  # it has no ffmpeg for this platform
        return str(importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe())
    return None


class Mp4Writer:
    """A .mp4 video, which ffmpeg writes while the episode is played."""

    def __init__(self, path: Path, *, fps: float, ffmpeg: str) -> None:
        """Prepare the video; ffmpeg starts with the first frame, which has the size."""
        self._path = path
        self._unfinished: Path | None = None
        self._fps = fps
        self._ffmpeg = ffmpeg
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, picture: NumpyArray) -> None:
        if self._process is None:
            height, width, _ = picture.shape
            self._unfinished, handle = new_beside(self._path)
            os.close(handle)
            self._process = subprocess.Popen(
                [
                    *(self._ffmpeg, "-loglevel", "error", "-y"),
                    *("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"),
                    *("-r", f"{self._fps:g}", "-i", "-"),
                    *("-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"),
                    str(self._unfinished),
                ],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # `finish` shows the error of ffmpeg
                self._process.stdin.write(picture.data)

    def finish(self) -> None:
        """Wait for ffmpeg; raise ConfigError if it has failed."""
        if self._process is not None:
            _, errors = self._process.communicate()
            if self._process.returncode:
                self._remove()
                raise ConfigError(
                    f"{self._ffmpeg} could not write {self._path}: "
                    f"{errors.decode(errors='replace').strip() or self._process.returncode}"
                )
            if self._unfinished is not None:
                self._unfinished.replace(self._path)

    def drop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._remove()

    def _remove(self) -> None:
        if self._unfinished is not None:
            self._unfinished.unlink(missing_ok=True)


class GifWriter:
    """A .gif video, which is written at the end of the episode, with at most 25 frames a second."""

    def __init__(self, path: Path, *, fps: float) -> None:
        self._path = path
        self._stride = max(1, round(fps / _GIF_FPS))
        self._milliseconds = 1000.0 * self._stride / fps
        self._kept: list[Image] = []
        self._count = 0
        self._pillow = _pillow()

    def add(self, picture: NumpyArray) -> None:
        """Keep a frame, in 256 colours."""
        if self._count % self._stride == 0:
            image: Image = self._pillow.fromarray(picture)
            image.thumbnail((_GIF_WIDTH, _GIF_WIDTH))
            self._kept.append(image.quantize())
        self._count += 1

    def finish(self) -> None:
        first, *others = self._kept
        with replacing(self._path) as unfinished:
            first.save(
                unfinished, save_all=True, append_images=others, duration=self._milliseconds, loop=0
            )

    def drop(self) -> None:
        self._kept.clear()


VideoWriter: TypeAlias = Mp4Writer | GifWriter


def _pillow() -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise MissingExtraError(
            "Videos need ffmpeg (for .mp4) or Pillow (for .gif), and neither is installed: "
            "pip install pillow."
        ) from error

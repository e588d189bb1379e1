"""Film an agent before and after training: `python -m tests.site.agent` writes docs/images.

It trains PPO on LunarLander-v3 (about a minute), and needs the extras `box2d` and `video`.
"""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
from PIL import Image, ImageDraw

import ding_lite
from ding_lite.rl import PPO, Policy

FILM = Path(__file__).resolve().parents[2] / "docs" / "images" / "before-and-after.gif"
ENV = "LunarLander-v3"
SEED = 3
SIZE = (300, 200)
COLORS = 48
EVERY = 5
"""Of the environment's 50 pictures a second."""


def film(policy: Policy) -> tuple[list[Image.Image], float]:
    """Play a greedy episode; return its pictures and its return."""
    env = gymnasium.make(ENV, render_mode="rgb_array")
    obs, _ = env.reset(seed=SEED)
    pictures, total, step, over = [], 0.0, 0, False
    while not over:
        if step % EVERY == 0:
            pictures.append(picture_of(env))
        action = policy.act(np.asarray(obs)[None], explore=False)[0]
        obs, reward, terminated, truncated, _ = env.step(action)
        total, step, over = total + float(reward), step + 1, terminated or truncated
    pictures.append(picture_of(env))
    env.close()
    return pictures, total


def picture_of(env: gymnasium.Env[object, object]) -> Image.Image:
    return Image.fromarray(np.asarray(env.render())).resize(SIZE)


def beside(left: list[Image.Image], right: list[Image.Image], titles: tuple[str, str]) -> None:
    """Write the film: two episodes side by side; the shorter one stays at its end."""
    width, height = SIZE
    frames = []
    for number in range(max(len(left), len(right)) + 12):
        frame = Image.new("RGB", (2 * width + 4, height + 20), "white")
        for place, pictures in enumerate((left, right)):
            frame.paste(pictures[min(number, len(pictures) - 1)], (place * (width + 4), 20))
            ImageDraw.Draw(frame).text((place * (width + 4) + 6, 4), titles[place], "black")
        frames.append(frame.quantize(COLORS, dither=Image.Dither.NONE))
    frames[0].save(
        FILM, save_all=True, append_images=frames[1:], duration=EVERY * 20, loop=0, optimize=True
    )


def main() -> None:
    trained = ding_lite.train("ppo", ENV, seed=0)
    before, worse = film(PPO(trained.policy.spec))
    after, better = film(trained.policy)
    steps = trained.numbers["env_steps"]
    beside(before, after, (f"before: {worse:.0f}", f"after {steps:,} env steps: {better:.0f}"))


if __name__ == "__main__":
    main()

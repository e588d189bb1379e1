"""Draw the pictures of the pages about mutations: `python -m tests.bench.mutation_pictures`.

It also prints the returns that the page about weights tells of the agents in its picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ding_lite import Task, middleware as mw
from ding_lite.evolution import Agent, Mutation, Search, log_uniform
from ding_lite.middleware.report.style import (
    BLUE,
    COLORS,
    ORANGE,
    add_titles,
    save_picture,
    style_axes,
)
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs, mean_return

IMAGES = Path(__file__).parents[2] / "docs" / "images"
ANGLES = np.linspace(-0.2, 0.2, 201, dtype=np.float32)
NONE: dict[str, Any] = dict.fromkeys(("none", "architecture", "weights", "hyperparameters"), 0.0)
STYLES = ("-", "--", ":")


def trained() -> Agent:
    envs = make_envs("CartPole-v1", 8, seed=0)
    agent = Agent(DQN(envs.spec, DQNConfig(hidden=(32, 32), lr=3e-3)))
    replay = ReplayBuffer(envs.spec, capacity=50_000)
    with Task() as task:
        task.use(mw.collect(agent.policy, envs, steps=8)).use(mw.add_to(replay))
        task.use(mw.train(agent.policy, replay, updates=8))
        eval_envs = make_envs("CartPole-v1", 20, seed=1)
        task.use(mw.evaluate(agent.policy, eval_envs, every=50, stop_at=495.0))
        task.run(max_step=10_000)
    return agent


def mutated(agent: Agent, mutation: Mutation) -> Agent:
    copy = agent.clone()
    mutation.mutate(copy)
    return copy


def values(agent: Any) -> np.ndarray:
    """Return the value of each action at each angle of a pole that stands still, [angles, 2]."""
    obs = np.zeros((len(ANGLES), 4), np.float32)
    obs[:, 2] = ANGLES
    return np.asarray(agent.policy.q_values(obs))


def panels(titles: Sequence[str], x_label: str, y_label: str) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(8.0, 3.9), dpi=160, facecolor="white")
    figure.subplots_adjust(left=0.1, right=0.98, top=0.71, bottom=0.14, wspace=0.12)
    panels = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
    for axes, title in zip(panels, titles, strict=True):
        style_axes(axes, y_label="")
        axes.set_xlabel(x_label)
        axes.autoscale(axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.set_title(title, fontsize=10.5, loc="left", pad=8)
    panels[0].set_ylabel(y_label, fontsize=11)
    return figure, list(panels)


def draw_values(
    name: str, title: str, below: str, agent: Agent, copies: dict[str, list[Agent]]
) -> None:
    """Draw the values before a mutation as broad bands, and those of copies as lines."""
    figure, axes = panels([*copies], "angle of the pole", "value of an action")
    for panel, mutants in zip(axes, copies.values(), strict=True):
        for action, color in enumerate((BLUE, ORANGE)):
            word = ("left", "right")[action]
            panel.plot(
                ANGLES, values(agent)[:, action], color=color, alpha=0.25, linewidth=8,
                label=f"{word}, before",
            )  # fmt: skip
            for mutant, style in zip(mutants, STYLES, strict=False):
                label = f"{word}, after" if style == "-" else None
                panel.plot(ANGLES, values(mutant)[:, action], style, color=color, label=label)
        panel.set_xlim(ANGLES[0], ANGLES[-1])
    add_titles(figure, title, below)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="upper right", ncols=2, frameon=False, fontsize=9
    )
    save_picture(figure, IMAGES / f"mutation-{name}.png")


def draw_step_sizes() -> None:
    factors = [(1.2, 0.8), (2.0, 0.5)]
    titles = [f"grow {grow:g}, shrink {shrink:g}" for grow, shrink in factors]
    figure, axes = panels(titles, "generation", "lr of an agent")
    spec = make_envs("CartPole-v1", 1).spec
    for panel, (grow, shrink) in zip(axes, factors, strict=True):
        search = Search(lr=log_uniform(1e-4, 1e-2, grow=grow, shrink=shrink))
        mutation = Mutation(search, **{**NONE, "none": 4.0, "hyperparameters": 1.0}, seed=3)
        for lr, color in zip(np.geomspace(2e-4, 5e-3, 6), COLORS, strict=False):
            agent = Agent(DQN(spec, DQNConfig(hidden=(4,), lr=float(lr))), searched=("lr",))
            rates = [agent.config.lr]
            for _ in range(40):
                mutation.mutate(agent)
                rates.append(agent.config.lr)
            panel.step(range(41), rates, color=color, where="post")
        panel.set(yscale="log", xlim=(0, 40), ylim=(9e-5, 1.1e-2))
    add_titles(figure, "Step sizes of six agents", "one mutation in five generations, no selection")
    save_picture(figure, IMAGES / "mutation-hyperparameters.png")


def main() -> None:
    agent = trained()
    noisy = {
        f"mutation_sd {sd}": [
            mutated(agent, Mutation(**{**NONE, "weights": 1.0}, mutation_sd=sd, seed=seed))
            for seed in range(3)
        ]
        for sd in (0.02, 0.1, 0.3)
    }
    below = "a DQN for CartPole-v1, and three copies"
    draw_values("weights", "Noise on all weights", below, agent, noisy)
    for title, agents in {"before": [agent], **noisy}.items():
        envs = make_envs("CartPole-v1", 20, seed=1)
        print(title, [mean_return(one, envs, episodes=20) for one in agents])

    changes = {"more units": (0.0, 0.0), "a layer more": (1.0, 0.0), "fewer units": (0.0, 1.0)}
    shapes = {}
    for word, (layer, remove) in changes.items():
        odds = {"new_layer_prob": layer, "remove_prob": remove, "num_nodes": (16,), "seed": 1}
        mutant = mutated(agent, Mutation(**{**NONE, "architecture": 1.0, **odds}))
        shapes[f"{word}: {mutant.config.hidden}"] = [mutant]
    below = "a DQN for CartPole-v1 with two layers of 32"
    draw_values("architecture", "Units and layers", below, agent, shapes)

    others = {}
    for seed in range(20):
        mutant = mutated(agent, Mutation(**NONE, activation=1.0, seed=seed))
        others[f"relu -> {mutant.config.activation}"] = [mutant]
    below = "a DQN for CartPole-v1 that has learned with relu"
    last = {title: others[title] for title in sorted(others)[-3:]}
    draw_values("activation", "Another activation", below, agent, last)
    draw_step_sizes()


if __name__ == "__main__":
    main()

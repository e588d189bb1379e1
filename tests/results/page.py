"""The results on record, one file for each environment, and their page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import median
from typing import Any

import numpy as np

from tests.bench.harness import ROOT
from tests.results.tasks import TASKS, policies_of

FOLDER = ROOT / "docs" / "results"
README = ROOT / "README.md"
NAMES = {"ding_lite": "ding_lite", "stable_baselines3": "Stable-Baselines3"}
BRIEF = (
    ("ppo", "CartPole-v1"),
    ("ppo", "Acrobot-v1"),
    ("dqn", "Acrobot-v1"),
    ("dqn", "MountainCar-v0"),
    ("sac", "Pendulum-v1"),
    ("td3", "Pendulum-v1"),
    ("ppo", "LunarLander-v3"),
    ("dqn", "LunarLander-v3"),
)
"""The tasks in the table of the README."""
NUM_RESAMPLES = 2_000
_BETWEEN = re.compile(r"(<!-- results: .*? -->\n).*?(<!-- end of results -->)", re.DOTALL)
INTRODUCTION = """# Results

Written by `make results`: `ding-lite train POLICY ENV --seed N` trains the presets of PPO, DQN,
SAC and TD3 on the tasks below, and the same script trains Stable-Baselines3 with the tuned values
of [its zoo](https://github.com/DLR-RM/rl-baselines3-zoo). A run of ding_lite ends when 20 greedy
episodes reach the target plus the preset's `target_margin` (20 on Pendulum with SAC and TD3 and on
the landers with PPO, 40 on LunarLander with DQN, 0 elsewhere), one of Stable-Baselines3 when they
reach the target; both end with their env steps. If its last 20 episodes reach the target, a run
counts as *reached*, too. Evaluations take a tenth of the env steps of both. *Return* is the
interquartile mean of the seeds, each the mean of 20 greedy episodes after the run, with its 95 %
bootstrap interval; *env steps* and *processor time* are medians of the seeds that reached the
target, evaluations and start-up included. `data/` has the day, the commit and the processor of each
run."""
NOTES = {
    "MinAtar": """The targets are returns of PPO in [gymnax](https://github.com/RobertTLange/gymnax),
which plays easier games: MinAtar repeats the last action in a tenth of the env steps."""
}
"""What to know about the targets of a group."""


def rows_of(env: str) -> list[dict[str, Any]]:
    file = FOLDER / "data" / f"{_file_name(env)}.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return rows


def save_rows(env: str, rows: Sequence[dict[str, Any]]) -> None:
    file = FOLDER / "data" / f"{_file_name(env)}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row) for row in sorted(rows, key=lambda row: _order(row)))
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """Return the mean of the middle half, as Agarwal et al. 2021 (arXiv:2108.13264) suggest.

    A quarter of the values goes on each side; where that is no whole number, the last one that goes
    counts in part.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    cut = len(ordered) / 4.0
    places = np.arange(len(ordered))
    low = np.clip(places + 1 - cut, 0.0, 1.0)
    high = np.clip(len(ordered) - cut - places, 0.0, 1.0)
    weights = np.minimum(low, high)
    return float((weights * ordered).sum() / weights.sum())


def interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the interquartile mean; of few seeds it is wide."""
    rng = np.random.default_rng(0)
    drawn = rng.choice(np.asarray(values), size=(NUM_RESAMPLES, len(values)))
    low, high = np.quantile([interquartile_mean(row) for row in drawn], [0.025, 0.975])
    return float(low), float(high)


def write() -> None:
    """Write the page, a picture for each environment with results, and the table of the README."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for env in _envs():
        if rows := rows_of(env):
            draw(env, rows)
    (FOLDER / "README.md").write_text(markdown())
    README.write_text(_BETWEEN.sub(lambda m: m[1] + summary() + m[2], README.read_text()))


def markdown() -> str:
    lines, missing = [INTRODUCTION], []
    for group, envs in TASKS.items():
        sections = [("", f"### {env}", "", *_section(env)) for env in envs if rows_of(env)]
        if sections:
            note = ["", NOTES[group]] if group in NOTES else []
            lines += ["", f"## {group}", *note, *chain(*sections)]
        names = {env: ", ".join(map(str.upper, _missing(env))) for env in envs}
        without = [f"{env} ({policies})" for env, policies in names.items() if policies]
        missing += [f"- {group}: {', '.join(without)}"] if without else []
    if missing:
        lines += ["", "## Not run yet", "", *missing]
        lines += ["", "`make results ARGS=ENV` runs those of one environment."]
    return "\n".join(lines) + "\n"


def summary() -> str:
    """Render the README's table: the tasks of `BRIEF` that both sides have done."""
    lines = ["| task, return to reach | ding_lite | Stable-Baselines3 |", "|---|---|---|"]
    for policy, env in BRIEF:
        of_both = [_rows(policy, env, side) for side in NAMES]
        if all(of_both):
            target = f"{of_both[0][0]['target']:g}"
            cells = [f"{policy.upper()} on {env}, {target}", *map(_in_brief, of_both)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _rows(policy: str, env: str, side: str) -> list[dict[str, Any]]:
    return [row for row in rows_of(env) if (row["policy"], row["side"]) == (policy, side)]


def _in_brief(rows: Sequence[dict[str, Any]]) -> str:
    solved = [row for row in rows if row["solved"]]
    reached = f"{len(solved)} of {len(rows)}"
    if not solved:
        return reached
    steps, seconds = (median(row[name] for row in solved) for name in ("env_steps", "cpu_s"))
    return f"{reached}: {steps:,.0f} env steps, **{seconds:,.0f} s**"


def _section(env: str) -> Iterator[str]:
    yield "| | | target | reached | return | env steps | processor time |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for policy in policies_of(env):
        for side, name in NAMES.items():
            if found := _rows(policy, env, side):
                yield _line(policy, name, found)
    yield ""
    yield f"![Greedy returns over env steps on {env}]({_file_name(env)}.png)"


def _missing(env: str) -> list[str]:
    there = {row["policy"] for row in rows_of(env)}
    return [policy for policy in policies_of(env) if policy not in there]


def _line(policy: str, name: str, rows: Sequence[dict[str, Any]]) -> str:
    solved = [row for row in rows if row["solved"]]
    returns = [row["return"] for row in rows]
    low, high = interval(returns)
    spent = ["-", "-"]
    if solved:
        spent[0] = f"{median(row['env_steps'] for row in solved):,.0f}"
        spent[1] = f"{median(row['cpu_s'] for row in solved):,.0f} s"
    return (
        f"| {policy.upper()} | {name} | {rows[0]['target']:,g} | {len(solved)} of {len(rows)} "
        f"| {interquartile_mean(returns):,.1f} [{low:,.1f}, {high:,.1f}] "
        f"| {spent[0]} | {spent[1]} |"
    )


def draw(env: str, rows: Sequence[dict[str, Any]]) -> None:
    from matplotlib.figure import Figure

    policies = [p for p in policies_of(env) if any(row["policy"] == p for row in rows)]
    figure = Figure(figsize=(4.2 * len(policies), 3.0), dpi=100, layout="constrained")
    for axes, policy in zip(
        figure.subplots(1, len(policies), squeeze=False)[0], policies, strict=True
    ):
        for side, colour in (("stable_baselines3", "#b0752a"), ("ding_lite", "#1f5fa8")):
            runs = [row for row in rows if (row["policy"], row["side"]) == (policy, side)]
            for index, row in enumerate(runs):
                points = [*row["curve"], (row["env_steps"], row["return"])]
                label = NAMES[side] if index == 0 else None
                axes.plot(*zip(*points, strict=True), color=colour, lw=1.2, alpha=0.8, label=label)
                axes.plot(*points[-1], marker="o", ms=3.5, color=colour)
        axes.axhline(rows[0]["target"], color="0.5", lw=0.8, ls="--")
        axes.set_title(f"{policy.upper()} on {env}", fontsize=9, loc="left")
        axes.set_xlim(left=0)
        axes.set_xlabel("env steps", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False, loc="lower right")
    figure.savefig(FOLDER / f"{_file_name(env)}.png")


def _envs() -> list[str]:
    return [env for envs in TASKS.values() for env in envs]


def _file_name(env: str) -> str:
    return env.replace("/", "-")


def _order(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["policy"], row["side"], row["seed"]

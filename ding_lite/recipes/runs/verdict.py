"""The verdict of a run: fresh greedy episodes with the trained policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ding_lite.recipes.options import Options
from ding_lite.recipes.runs.criterion import EPISODES_PER_COLLECTOR
from ding_lite.recipes.runs.results import reaches
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.evaluation import Played, play
from ding_lite.rl.protocols import Policy

JUDGED_EPISODES = 20
_ALWAYS, _AT_LEAST = 10_000, 1_000
"""Env steps that a verdict may always take: for 20 episodes if they suffice, and for one."""
JUDGE_SEED = 1_000_003
_WORTH_NAMING_S = 2.0
"""The least seconds of a verdict of which a line says why it took more than a tenth of the run."""


def play_verdict(
    policy: Policy, options: Options, last: Mapping[str, Any], eval_share: float | None
) -> tuple[Played, int]:
    """Play as many episodes as there is room for; return them, and all env steps played.

    `last` is the last row of the run's metrics.
    """
    verdict = _play(policy, options, *_room(options, last, eval_share))
    if not 0 < verdict.episodes < JUDGED_EPISODES or not _reaches(verdict, options):
        return verdict, verdict.env_steps
    longer = _play(policy, options, JUDGED_EPISODES)
    return longer, verdict.env_steps + longer.env_steps


def is_solved(verdict: Played, options: Options, last: Mapping[str, Any]) -> bool | None:
    """Return whether a run is solved; None without a target."""
    if options.criterion == "seed":
        return last.get(EPISODES_PER_COLLECTOR) is not None
    if options.goal is None:
        return None
    return _reaches(verdict, options) and verdict.episodes >= JUDGED_EPISODES


def explain_verdict(result: Mapping[str, Any], goal: float | None) -> list[str]:
    """Describe the values of a run's last line in lines of text."""
    target = "" if goal is None else f" (target {goal:g})"
    evaluated = ""
    if "population" in result:  # its env steps contain those of evaluations
        evaluated = f" ({result['eval_env_steps']:,} of them in evaluations)"
    lines = [
        f"\n{_title(result['solved'], result['env'])}: a mean return of "
        f"{result['eval_return']:z.1f} in {result['eval_episodes']} greedy "
        f"episode{'s' * (result['eval_episodes'] != 1)}{target} after "
        f"{result['env_steps'] or 0:,} env steps{evaluated}, {result['wall_s']:.1f} s."
    ]
    if "seconds" in result:
        stages = ", ".join(f"{stage} {s:.1f} s" for stage, s in result["seconds"].items())
        lines.append(f"  time         {stages}")
        seconds = result["seconds"]["verdict"]
        if seconds >= _WORTH_NAMING_S and seconds > 0.1 * (result["wall_s"] + seconds):
            lines.append(
                f"  verdict      took {result['verdict_env_steps']:,} env steps and "
                f"{seconds:.1f} s, more than a tenth of this run: it has {JUDGED_EPISODES} "
                f"episodes if they are short or reach the target, else at least one"
            )
    played = result.get(EPISODES_PER_COLLECTOR)
    if played is not None:
        lines.append(f"A collector met the criterion after {played:,} of its own episodes.")
    return lines


def verdict_is_short(max_episode_steps: int | None) -> bool:
    """Return whether 20 episodes with this time limit are played regardless of the share."""
    return max_episode_steps is not None and JUDGED_EPISODES * max_episode_steps <= _ALWAYS


def _room(options: Options, last: Mapping[str, Any], share: float | None) -> tuple[int, int | None]:
    """Return the limits of a verdict in episodes and in env steps; None for no limit."""
    if share is None or reaches(last, options.goal):
        return JUDGED_EPISODES, None
    left = int(share * last.get("env_step", 0) - (last.get("eval_env_steps") or 0))
    limit = EnvMaker.of(options.env).spec().max_episode_steps
    length = min(2 * (last.get("episode_length") or math.inf), limit or math.inf)
    if verdict_is_short(limit):
        return JUDGED_EPISODES, max(left, _ALWAYS)
    return int(min(max(left / length, 1), JUDGED_EPISODES)), max(left, _AT_LEAST)


def _reaches(played: Played, options: Options) -> bool:
    return played.mean_return >= options.target


def _play(policy: Policy, options: Options, episodes: int, most: int | None = None) -> Played:
    seed = options.seed + JUDGE_SEED
    with make_envs(options.env, episodes, seed=seed, frame_stack=policy.spec.frame_stack) as envs:
        return play(policy, envs, max_env_steps=most)


def _title(solved: bool | None, env: str) -> str:
    if solved is None:
        return f"Trained on {env}"
    return f"Solved {env}" if solved else f"Did not solve {env}"

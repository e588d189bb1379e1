"""The verdict of a run: fresh greedy episodes with the trained policy."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from ding_lite.recipes.options import Options
from ding_lite.recipes.runs.criterion import EPISODES_PER_COLLECTOR
from ding_lite.recipes.runs.results import reaches
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.evaluation import Played, play
from ding_lite.rl.protocols import Policy

JUDGED_EPISODES = 20
_ALWAYS, _AT_LEAST = 10_000, 1_000
"""Env steps that a verdict may always take: for 20 episodes if they suffice, and for the first."""
_DELIVERED = {"best": "the policy of the best evaluation", "last": "the last policy"}
_WHY = {"best": ", as the share had no env steps left", "last": ", as its evaluation ended the run"}
JUDGE_SEED = 1_000_003
ENVS_FOR_ONE_OF_EVALUATIONS = 8
"""Training environments for each evaluation environment with an `eval_share`: env steps of both
then cost about the same."""
_WORTH_NAMING_S = 2.0
"""The least seconds of a verdict of which a line says why it took more than a tenth of the run."""


@dataclass(frozen=True)
class Verdict:
    """The verdict of a run, and which policy it is of."""

    played: Played
    env_steps: int
    """All env steps played, including those of a policy that is not delivered."""
    delivered: Literal["best", "last"] | None = None
    """Which policy is delivered; None if no evaluation has kept another one than the last."""
    other: Played | None = None
    """The episodes of the policy that is not delivered."""


def play_verdict(
    policy: Policy,
    options: Options,
    last: Mapping[str, Any],
    eval_share: float | None,
    best: Mapping[str, Any] | None = None,
) -> Verdict:
    """Play as many episodes as there is room for.

    Args:
        policy: The last policy of the run. It gets the weights that the verdict is of.
        options: The options of the run.
        last: The last row of the run's metrics.
        eval_share: The maximum ratio of evaluation env steps to training env steps.
        best: The state of the policy of the best evaluation, if that is not the last one. Both
            play the same episodes, each in half of the room, and the one with the higher mean
            return is delivered. If there is no room for both, this one is.
    """
    room = None if best is None else _room(options, last, eval_share, policies=2)
    if best is not None and room is not None:
        verdict = _compare(policy, best, options, room)
    else:
        if best is not None:
            policy.load_state_dict(best)
        played = _play(policy, options, _room(options, last, eval_share) or _Room())
        verdict = Verdict(played, played.env_steps, None if best is None else "best")
    episodes = verdict.played.episodes
    if not 0 < episodes < JUDGED_EPISODES or not _reaches(verdict.played, options):
        return verdict
    # Not the episodes by which the better one of two was chosen: those favour it.
    longer = _play(policy, options, _Room(), seed=int(verdict.other is not None))
    spent = verdict.env_steps + longer.env_steps
    return dataclasses.replace(verdict, played=longer, env_steps=spent)


def _compare(policy: Policy, best: Mapping[str, Any], options: Options, room: _Room) -> Verdict:
    last = copy.deepcopy(policy.state_dict())
    policy.load_state_dict(best)
    of_best = _play(policy, options, room)
    policy.load_state_dict(last)
    of_last = _play(policy, options, room.after(of_best))
    spent = of_best.env_steps + of_last.env_steps
    if of_last.mean_return > of_best.mean_return:
        return Verdict(of_last, spent, "last", of_best)
    policy.load_state_dict(best)
    return Verdict(of_best, spent, "best", of_last)


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
    if "delivered" in result:
        lines.append(f"  delivered    {_DELIVERED[result['delivered']]}, {_compared(result)}")
    played = result.get(EPISODES_PER_COLLECTOR)
    if played is not None:
        lines.append(f"A collector met the criterion after {played:,} of its own episodes.")
    return lines


def verdict_is_short(max_episode_steps: int | None) -> bool:
    """Return whether 20 episodes with this time limit are played regardless of the share."""
    return max_episode_steps is not None and JUDGED_EPISODES * max_episode_steps <= _ALWAYS


@dataclass(frozen=True)
class _Room:
    """The limits of what a policy plays in a verdict."""

    episodes: int = JUDGED_EPISODES
    env_steps: float = math.inf
    num_envs: int = JUDGED_EPISODES
    """The number of episodes that are played at a time."""
    at_first: int = 0
    """Env steps that the first of them may take in any case."""

    def after(self, played: Played) -> _Room:
        """Return the room of a second policy: what the first one has left of the room of both."""
        episodes = self.episodes
        if self.num_envs < episodes:  # one after the other, until there was no room
            episodes = max(1, played.episodes)
        return _Room(episodes, 2 * self.env_steps - played.env_steps, self.num_envs)


def _room(
    options: Options, last: Mapping[str, Any], share: float | None, *, policies: int = 1
) -> _Room | None:
    """Return the limits of each policy in a verdict; None if there is no room for so many."""
    is_alone = policies == 1
    if share is None or (is_alone and reaches(last, options.goal)):
        return _Room()
    left = int(share * last.get("env_step", 0) - (last.get("eval_env_steps") or 0))
    limit = EnvMaker.of(options.env).spec().max_episode_steps
    of_training = last.get("episode_length") or math.inf
    length = min(2 * of_training, limit or math.inf)
    if limit is not None and verdict_is_short(limit):
        left, length = max(left, _ALWAYS), limit
    each = left // policies
    if not is_alone and each < min(of_training, length):
        return None
    longest = length if is_alone else limit or math.inf  # what is cut cannot be compared
    if verdict_is_short(limit) or each >= JUDGED_EPISODES * longest:
        episodes = min(JUDGED_EPISODES, int(each / length))
        return _Room(episodes, each, episodes)
    at_once = max(1, min(options.num_envs // ENVS_FOR_ONE_OF_EVALUATIONS, int(each / length)))
    while JUDGED_EPISODES % at_once:
        at_once -= 1
    return _Room(JUDGED_EPISODES, max(each, 0), at_once, _AT_LEAST if is_alone else 0)


def _reaches(played: Played, options: Options) -> bool:
    return played.mean_return >= options.target


def _play(policy: Policy, options: Options, room: _Room, *, seed: int = 0) -> Played:
    """Play some episodes at a time, as long as there is room for as many more.

    Only the first ones are cut if they are too long; then their returns so far count.
    """
    seed += options.seed + JUDGE_SEED
    num_envs, spent, longest = room.num_envs, 0, 0
    values: list[float] = []
    with make_envs(options.env, num_envs, seed=seed, frame_stack=policy.spec.frame_stack) as envs:
        while len(values) * num_envs < room.episodes and spent + longest <= room.env_steps:
            left = max(room.env_steps - spent, 0 if values else room.at_first)
            most = None if math.isinf(left) else int(left)
            played = play(policy, envs, max_env_steps=most)
            spent, longest = spent + played.env_steps, max(longest, played.env_steps)
            if played.episodes == num_envs:
                values.append(played.mean_return)
            elif not values:
                return played
            else:
                break
    return Played(fmean(values), spent, len(values) * num_envs)


def _compared(result: Mapping[str, Any]) -> str:
    """Say what the policy played that is not delivered."""
    is_best = result["delivered"] == "best"
    other = _DELIVERED["last" if is_best else "best"]
    if result["other_return"] is None:
        return f"without a comparison with {other}" + _WHY[result["delivered"]]
    return f"chosen by the same episodes as {other}, which had {result['other_return']:z.1f}"


def _title(solved: bool | None, env: str) -> str:
    if solved is None:
        return f"Trained on {env}"
    return f"Solved {env}" if solved else f"Did not solve {env}"

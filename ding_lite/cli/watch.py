"""`ding-lite watch`: play with a trained policy in a window or a video."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean

from ding_lite.cli.report.records import is_number
from ding_lite.errors import ConfigError, MissingExtraError, printable
from ding_lite.io.importing import look_here
from ding_lite.io.text import as_text
from ding_lite.log import configure
from ding_lite.recipes.runs.directory import make_directory
from ding_lite.recipes.runs.loading import find_policy, load_policy
from ding_lite.recipes.runs.video import check_render_mode, play, play_and_record
from ding_lite.rl.checkpoint.save_load import load_checkpoint
from ding_lite.rl.envs.vector import Episode
from ding_lite.rl.protocols import Policy
from ding_lite.settings.environment import limit_torch_threads, process_environ


def watch_run(options: argparse.Namespace) -> None:
    configure("warning")
    if options.trust:
        look_here()
    policy: Policy = load_policy(options.run, last=options.last, trust=options.trust)
    limit_torch_threads()  # there is no task that calls it
    if options.record is not None:
        make_directory(Path(options.record))
    print(describe_policy(policy, options.run, last=options.last))
    chosen = {"episodes": options.episodes, "seed": options.seed}
    if options.record is not None:
        videos = play_and_record(policy, Path(options.record), **chosen)
        _print_episodes((episode, str(path)) for episode, path in videos)
        return

    hint = _no_window(policy, process_environ())
    if hint is None:
        try:
            _print_episodes(
                (episode, "") for episode in play(policy, render_mode="human", **chosen)
            )
        except MissingExtraError as error:
            hint = f"{error} Only the returns are shown."
    if hint is not None:
        print(hint)
        _print_episodes((episode, "") for episode in play(policy, **chosen))


def describe_policy(policy: Policy, directory: str, *, last: bool) -> str:
    path = find_policy(directory, last=last)
    meta = load_checkpoint(path, only=()).meta
    facts = []
    if is_number(meta.get("env_step")) and meta["env_step"]:
        facts.append(f"after {meta['env_step']:,} env steps")
    if is_number(meta.get("eval_value")):
        facts.append(f"return {as_text(meta['eval_value'])} in its evaluation")
    origin = f"from {path}" + (f" ({', '.join(facts)})" if facts else "")
    return printable(f"{type(policy).__name__} on {policy.spec.env_id}, {origin}")


def _print_episodes(played: Iterable[tuple[Episode, str]]) -> None:
    returns = []
    for number, (episode, remark) in enumerate(played, start=1):
        returns.append(episode.ret)
        line = f"episode {number:<3} return {as_text(episode.ret):<8} length {episode.length:<6}"
        print(f"{line}{remark}".rstrip(), flush=True)
    print(
        f"mean of {len(returns)}: {as_text(fmean(returns))} "
        f"(from {as_text(min(returns))} to {as_text(max(returns))})"
    )


def _no_window(policy: Policy, environ: Mapping[str, str]) -> str | None:
    """Return the reason why no window can be opened; None if it can."""
    if not environ.get("DISPLAY") and not environ.get("WAYLAND_DISPLAY"):
        return "No display here: only the returns are shown; --record DIR writes videos."
    try:
        check_render_mode(policy.spec, "human")
    except ConfigError as error:
        return f"{error} Only the returns are shown."
    return None

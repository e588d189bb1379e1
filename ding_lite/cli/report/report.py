"""`ding-lite report`: write a report of runs as one HTML file, or serve it while they train."""

from __future__ import annotations

import argparse
import tempfile
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from ding_lite.cli.report.figures import tag
from ding_lite.cli.report.page import document, grouped, page
from ding_lite.cli.report.records import Record
from ding_lite.cli.report.server import Server
from ding_lite.errors import ConfigError, DingLiteError
from ding_lite.io.files import replacing
from ding_lite.io.importing import look_here
from ding_lite.io.text import as_text
from ding_lite.log import configure
from ding_lite.middleware.report.jsonl import file_path
from ding_lite.recipes.runs.directory import make_directory
from ding_lite.recipes.runs.loading import load_policy
from ding_lite.recipes.runs.results import Result, find_results
from ding_lite.recipes.runs.video import play_and_record

_REFRESH = 5
"""Seconds between two reloads of a live page."""
_SECONDS, _STEPS = 20.0, 1_000
"""The limits of a video: seconds to record it, and env steps."""
_MOST_FILMS = 4


def report_runs(options: argparse.Namespace) -> None:
    configure("warning")
    if options.live:
        if options.out is not None:
            raise ConfigError(
                f"--out is {options.out}, but nothing is written with --live. Leave one out."
            )
        _serve(options.runs, options.port or 0)
    if options.port is not None:
        raise ConfigError(
            f"--port is {options.port}, but nothing is served without --live. Add that, or leave "
            f"--port out."
        )
    path = file_path(options.out or "report.html")
    results = find_results(options.runs)
    videos = {} if options.no_video else _videos(results, trust=options.trust)
    content = page(results, videos)
    make_directory(path.parent)
    try:
        with replacing(path) as unfinished:
            unfinished.write_bytes(content)
    except OSError as error:
        raise ConfigError(
            f"The report {path} cannot be written: {error.strerror}. Name another one with `--out`."
        ) from error
    print(f"Written to {path}")


def _serve(patterns: Sequence[str], port: int) -> None:
    def make() -> bytes:
        try:
            return page(find_results(patterns), {}, refresh=_REFRESH)
        except (DingLiteError, OSError) as error:  # a file may be removed while it is read
            return document("No report yet", "", [tag("p", str(error))], refresh=_REFRESH)

    with Server(make, port) as server:
        print(f"The report is at {server.url} until Ctrl-C.", flush=True)
        server.serve_forever()


def _videos(results: Sequence[Result], *, trust: bool) -> dict[str, Element | str]:
    """Return a video of the best policy of each group of runs, or the reason why there is none."""
    if trust:
        look_here()
    best = [group.best for group in grouped(results)[:_MOST_FILMS]]
    return {str(run.directory): _video(run, trust=trust) for run in best}


def _video(run: Record, *, trust: bool) -> Element | str:
    try:
        policy = load_policy(run.directory, trust=trust)
        with tempfile.TemporaryDirectory() as folder:
            videos = play_and_record(policy, Path(folder), seconds=_SECONDS, max_steps=_STEPS)
            [(episode, path)] = videos
            kind, data = path.suffix[1:], b64encode(path.read_bytes()).decode()
    except DingLiteError as error:
        return f"There is no video: {error}"
    reached = f"return {as_text(episode.ret)} in {episode.length} env steps"
    caption = f"The policy plays an episode: {reached}"
    if kind == "gif":
        player = tag("img", src=f"data:image/gif;base64,{data}", alt=caption)
    else:
        source = f"data:video/{kind};base64,{data}"
        player = tag("video", src=source, aria_label=caption, controls="", loop="", muted="")
    return tag("div", player, tag("p", f"{caption}.", class_="note"))

"""The page of a report: one HTML file without scripts, links or external resources."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from statistics import fmean
from typing import Any
from xml.etree.ElementTree import Element, tostring

import numpy as np

from ding_lite.cli.report.figures import NUM_COLORS, Line, chart, color_of, family, figure, tag
from ding_lite.cli.report.records import OF_TRAINING, Record, Stage, is_number, rates
from ding_lite.io.files import named
from ding_lite.io.text import as_text
from ding_lite.middleware.report.throughput import STAGE_SECONDS
from ding_lite.recipes.runs.results import (
    Result,
    RunGroup,
    group_results,
    shortened,
    spread_of,
    title_of,
)
from ding_lite.version import __version__

POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"
"""The content security policy: a browser loads nothing except the page itself."""
_RETURNS = {
    "eval_return": "Evaluations: return of greedy episodes",
    "return": "Training: mean return of the last 20 episodes",
}
_COUNTED = {"step", "wall_s", "env_step", "eval_env_step", "episode_return"}
"""Metrics without a curve of their own."""
_SENT = ("events_out", "ctx_out", "items_out")
_RECEIVED = ("events_in", "ctx_in")
_MOST_EVALUATIONS = _MOST_SHOWN = 200
"""Limits of evaluations of a run, and of charts, nodes and stages: a damaged file may have any."""
_MOST_LIVES = 5_000
_SEVERAL_SEEDS = (
    "Several seeds: the line is their median, the band goes from the least to the greatest. A run "
    "that has ended counts on with its last value, any other one until its last value."
)

Videos = Mapping[str, Element | str]
"""The video of a run, or the reason why there is none, by the run's directory."""


@dataclass(frozen=True)
class Group(RunGroup):
    """Runs that differ only in their seeds, with their colour on the page."""

    runs: Sequence[Record]
    color: int

    @property
    def best(self) -> Record:
        return max(self.runs, key=Record.best)

    def line(self, metric: str) -> Line | None:
        """Return the curve of a metric; None if no run has it."""
        runs = [run for run in self.runs if run.has(metric)]
        if not runs:
            return None
        if len(runs) == 1:
            return Line(self.name, *runs[0].points(metric), color=self.color)
        spread = spread_of(runs, metric)
        return Line(self.name, spread.x, spread.median, spread.low, spread.high, self.color)


def page(results: Sequence[Result], videos: Videos, *, refresh: int | None = None) -> bytes:
    """Return the HTML page of runs; with `refresh` a browser reloads it after so many seconds."""
    groups = grouped(results)
    title = title_of(group_results(results))
    sections = [_summary(groups), _curves(groups), _videos(groups, videos), _stages(groups)]
    sections += _pipelines(groups)
    for group in groups:
        of = f" of {group.label}" if len(groups) > 1 else ""
        sections += [_nodes(group.best, of), _population(group.best, of)]
    sections += [_others(groups), _evaluations(groups), _settings(groups), _commands(groups)]
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    below = f"{_counted(len(results), 'run')}, as of {now}, by ding-lite {__version__}"
    if refresh is not None:
        below += f"; live, renewed every {refresh} s"
    found = [section for section in sections if section is not None]
    return document(title, below, found, refresh=refresh)


def document(
    title: str, below: str, sections: Iterable[Element], *, refresh: int | None = None
) -> bytes:
    again = [] if refresh is None else [tag("meta", http_equiv="refresh", content=refresh)]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        *again,
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", _STYLE),
    )
    header = tag("header", tag("h1", title), tag("p", below, class_="note"))
    html = tag("html", head, tag("body", header, tag("main", *sections)), lang="en")
    text = tostring(html, encoding="unicode", method="html")
    return f"<!doctype html>\n{text}\n".encode("utf-8", "backslashreplace")


def grouped(results: Sequence[Result]) -> list[Group]:
    return [
        Group(group.label, [Record(run) for run in group.runs], k)
        for k, group in enumerate(group_results(results))
    ]


def _section(title: str, *content: Element | str) -> Element:
    return tag("section", tag("h2", title), *content)


def _folded(title: str, *content: Element | str) -> Element:
    return tag("section", tag("details", tag("summary", tag("h2", title)), *content))


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[Element | str]]) -> Element:
    """Make a table with a scroll bar of its own for narrow pages."""
    head = tag("tr", *(tag("th", heading, scope="col") for heading in headings))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in rows
    ]
    table = tag("table", tag("caption", title), tag("thead", head), tag("tbody", *body))
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=title)


def _legend(labels: Iterable[str]) -> Element:
    swatches = (tag("span", class_=f"swatch {color_of(k)}") for k in count())
    items = [tag("li", swatch, label) for swatch, label in zip(swatches, labels, strict=False)]
    return tag("ul", *items, class_="legend")


def _runs(groups: Sequence[Group]) -> list[Record]:
    return [run for group in groups for run in group.runs]


def _remark(text: str) -> Element:
    return tag("p", text, class_="note")


def _summary(groups: Sequence[Group]) -> Element:
    rows, note = [], ""
    for run in _runs(groups):
        _, y = run.points(run.metric)
        last, best = (as_text(float(y[-1])), as_text(run.best())) if len(y) else ("", "")
        if last and run.metric == "return":
            last, best, note = f"{last}*", f"{best}*", OF_TRAINING
        env_steps, wall_s = as_text(run.env_steps or 0), f"{run.wall_s or 0.0:,.1f} s"
        about = (named(run.directory), _formatted(run.seed), run.state)
        rows.append((*about, env_steps, last, best, _verdict(run), wall_s))
    headings = ["run", "seed", "state", "env steps", "last return", "best return"]
    headings += ["final evaluation", "time"]
    table = _table("What each run has reached", headings, rows)
    return _section("Results", table, *([_remark(note)] if note else []))


def _verdict(run: Record) -> str:
    value, episodes = run.verdict.get("eval_return"), run.verdict.get("eval_episodes")
    if not isinstance(value, int | float) or not is_number(value):
        return "none yet" if run.state in ("running", "interrupted") else "none"
    solved = run.verdict.get("solved")
    shown = "" if solved is None else "solved, " if solved else "not solved, "
    return f"{shown}{as_text(value)} in {_counted(episodes, 'episode')}"


def _curves(groups: Sequence[Group]) -> Element | None:
    targets = {run.target for run in _runs(groups)}
    target = targets.pop() if len(targets) == 1 else None
    charts = _charts(groups, _RETURNS, target)
    if not charts:
        return None
    note = "" if all(len(group.runs) == 1 for group in groups) else _SEVERAL_SEEDS
    legend = _legend(group.name for group in groups)
    return _section("Curves", legend, _cards(charts), _remark(note))


def _charts(
    groups: Sequence[Group], titles: Mapping[str, str], target: float | None = None
) -> list[Element]:
    made = []
    for metric, title in titles.items():
        lines = [line for group in groups if (line := group.line(metric)) is not None]
        if lines:
            made.append(chart(title, lines, target=target))
    return made


def _cards(figures: Sequence[Element]) -> Element:
    return tag("div", *figures, class_="cards")


def _others(groups: Sequence[Group]) -> Element | None:
    names = {
        name: shortened(name)
        for run in _runs(groups)
        for name in run.last
        if name not in _COUNTED and name not in _RETURNS and not name.startswith(STAGE_SECONDS)
    }
    charts = _charts(groups, dict(islice(names.items(), _MOST_SHOWN)))
    legend = _legend(group.name for group in groups)
    title = _counted(len(names), "other metric")
    more = _more(len(names), _MOST_SHOWN)
    return _folded(title, legend, _cards(charts), *more) if charts else None


def _more(number: int, shown: int) -> list[Element]:
    return [_remark(f"... and {number - shown:,} more.")] if number > shown else []


def _evaluations(groups: Sequence[Group]) -> Element | None:
    rows = [
        (named(run.directory), as_text(float(env_step)), as_text(float(value)))
        for run in _runs(groups)
        for env_step, value in list(zip(*run.points("eval_return"), strict=True))[
            -_MOST_EVALUATIONS:
        ]
    ]
    if not rows:
        return None
    table = _table("The return of each evaluation", ("run", "env steps", "return"), rows)
    return _folded(_counted(len(rows), "evaluation"), table)


def _videos(groups: Sequence[Group], videos: Videos) -> Element | None:
    cards = []
    for group in groups:
        video = videos.get(str(group.best.directory))
        if video is not None:
            what = tag("p", video) if isinstance(video, str) else video
            cards.append(figure(f"{group.label}: {group.best.directory}", what))
    return _section("The best policy", _cards(cards)) if cards else None


def _stages(groups: Sequence[Group]) -> Element | None:
    cards = []
    for group in groups:
        shown = [run.stages for run in group.runs if run.stages]
        names = {name: None for stages in shown for name in stages}
        means = {name: fmean(stages.get(name, 0.0) for stages in shown) for name in names}
        total = sum(means.values())
        if total > 0:
            rows = [
                (name, f"{s:,.1f} s", _bar(s / total, group.color))
                for name, s in sorted(means.items(), key=lambda item: -item[1])
            ]
            table = _table(f"Time by stage of {group.name}", ("stage", "time", "share"), rows)
            cards.append(figure(group.name, table))
    return _section("Time by stage", _cards(cards)) if cards else None


def _bar(share: float, color: int) -> Element:
    width = f"width: {max(0.0, min(100.0, 100 * share)):.1f}%"
    bar = tag("span", class_=f"bar c{color % NUM_COLORS}", style=width)
    return tag("span", bar, tag("span", f"{100 * share:.0f} %"), class_="share")


def _pipelines(groups: Sequence[Group]) -> Iterator[Element]:
    """Draw each pipeline: a lane for each kind of node, with its middleware in order."""
    of: dict[tuple[Stage, ...], list[str]] = {}
    for group in groups:
        of.setdefault(tuple(group.best.pipeline), []).append(group.label)
    for every, labels in of.items():
        stages = every[:_MOST_SHOWN]
        lanes = []
        for where in dict.fromkeys(stage.where for stage in stages):
            boxes = [
                tag("li", stage.name, *(tag("small", mark) for mark in stage.marks))
                for stage in stages
                if stage.where == where
            ]
            boxes.append(tag("li", "next step", class_="again"))
            label = f"Middleware on {where}"
            lanes += [tag("h3", where), tag("ol", *boxes, class_="pipeline", aria_label=label)]
        of_some = f" of {', '.join(labels)}" if len(of) > 1 else ""
        if stages:
            yield _section(f"Pipeline{of_some}", *lanes, *_more(len(every), _MOST_SHOWN))


def _nodes(run: Record, of: str) -> Element | None:
    if not run.nodes:
        return None
    lines: dict[str, list[Line]] = {}
    rows = []
    is_running = run.state == "running"  # else the last record is of a node that ran, too
    for color, (number, points) in enumerate(islice(run.nodes.items(), _MOST_SHOWN)):
        last = points[-1]
        labels = last.get("labels")
        roles = [str(one) for one in labels] if isinstance(labels, list) else []
        roles = [one for one in roles if "." not in one and one != "distributed"]
        name = shortened(f"node {number}" + (f" ({', '.join(roles)})" if roles else ""))
        counts = ("total_step", "env_step", *_SENT, *_RECEIVED)
        state = [shortened(f"{last.get('state')}")] if is_running else []
        rows.append((name, *(_formatted(last.get(count)) for count in counts), *state))
        for title, counted in (
            ("Messages sent per second", _SENT),
            ("Messages received per second", _RECEIVED),
            ("Steps per second", ("total_step",)),
        ):
            lines.setdefault(title, []).append(Line(name, *rates(points, counted), color=color))
    charts = [chart(title, some, x_label="seconds") for title, some in lines.items()]
    headings = ["node", "steps", "env steps", "events out", "ctx out", "items out", "events in"]
    headings += ["ctx in", "state"] if is_running else ["ctx in"]
    return _section(
        f"Nodes and their messages{of}",
        _table("The newest counts of each node", headings, rows),
        _legend(line.label for line in lines["Steps per second"]),
        _cards(charts),
        *_more(len(run.nodes), _MOST_SHOWN),
        _remark(
            "Nodes on the machine of the node that reports, as last recorded: every second, later "
            "each hundredth of the job's age. Items count where they are sent."
        ),
    )


def _population(run: Record, of: str) -> Element | None:
    lives = [life for life in run.lives if life["fitness"] is not None]
    if not lives:
        return None
    charts = [family(run.lives[-_MOST_LIVES:])]
    generations: dict[int, list[Mapping[str, Any]]] = {}
    for life in lives:
        generations.setdefault(life["generation"], []).append(life)
    values = {"fitness": [[life["fitness"] for life in some] for some in generations.values()]}
    for name in islice(lives[0]["hyperparameters"], _MOST_SHOWN):
        shown = [
            [life["hyperparameters"].get(name) for life in some] for some in generations.values()
        ]
        if all(is_number(value) for some in shown for value in some):
            values[name] = shown
    x = np.array([*generations], dtype=float)
    for name, shown in values.items():
        low, middle, high = (
            np.array([fn(some) for some in shown], dtype=float) for fn in (min, np.median, max)
        )
        lines = [Line("median of the agents", x, middle, low, high)]
        charts.append(chart(shortened(name), lines, x_label="generation"))
    note = "Lines: the median of the agents; bands: from the least to the greatest."
    if len(run.lives) > _MOST_LIVES:
        note += f" The lineage begins with the last {_MOST_LIVES:,} of {len(run.lives):,} entries."
    return _section(f"Population{of}", _cards(charts), _remark(note))


def _settings(groups: Sequence[Group]) -> Element:
    shown = [_settings_of(group.runs[0]) for group in groups]
    names = list(dict.fromkeys(name for one in shown for name in one))
    names.sort(key=lambda name: len({one.get(name) for one in shown}) == 1)
    rows = [(name, *(one.get(name, "") for one in shown)) for name in names]
    headings = ("setting", *(group.label for group in groups))
    note = "Of the first run of each curve; what differs comes first."
    return _folded("All settings", _remark(note), _table("Settings", headings, rows))


def _settings_of(run: Record) -> dict[str, str]:
    shown: dict[str, str] = {}
    for section in ("options", "config", "versions"):
        named = run.description.get(section) or {}
        version = " version" if section == "versions" else ""
        shown |= {f"{name}{version}": _formatted(value) for name, value in named.items()}
    return shown


def _formatted(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_formatted, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={_formatted(one)}" for name, one in value.items())
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def _counted(number: object, noun: str) -> str:
    return f"{_formatted(number)} {noun}{'s' * (number != 1)}"


def _commands(groups: Sequence[Group]) -> Element:
    lines = [
        run.command or f"# {str(run.directory)!r}: its command was not recorded"
        for run in _runs(groups)
    ]
    code = tag("code", "\n".join(dict.fromkeys(lines)))
    label = "Commands that repeat the runs"
    pre = tag("pre", code, class_="scroll", tabindex=0, role="region", aria_label=label)
    return _section("Reproduce", pre)


_STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --grey: #5f6c7b; --line: #dfe3e8; --back: #f5f6f8;
  --card: #fff; --target: #2b8a3e; --c0: #2f6fde; --c1: #d9480f; --c2: #2b8a3e; --c3: #9c36b5;
  --c4: #c92a2a; --c5: #0c8599; --c6: #96690a; --c7: #5c677d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --grey: #9aa7b5; --line: #343c46;
  --back: #14181d; --card: #1d232a; --target: #69db7c; --c0: #74a9ff; --c1: #ff9d6b; --c2: #69db7c;
  --c3: #da8bf0; --c4: #ff8f8f; --c5: #4fd1e3; --c6: #e5b84b; --c7: #a9b4c4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1200px; padding: 1rem; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: .5rem 0 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 .5rem; display: inline-block; overflow-wrap: anywhere; }
h3 { font-size: .9rem; font-weight: 600; margin: .6rem 0 .2rem; color: var(--grey); }
section { margin: 1.6rem 0; }
summary { cursor: pointer; }
.note { color: var(--grey); font-size: .85rem; margin: .3rem 0; }
.cards { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 350px), 1fr)); }
figure { margin: 0; padding: .7rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; min-width: 0; container-type: inline-size; overflow-wrap: anywhere; }
figcaption { font-weight: 600; font-size: .9rem; margin-bottom: .3rem; overflow-wrap: anywhere; }
figure img, figure video { display: block; max-width: 100%; margin: auto; border-radius: 4px; }
svg { display: block; width: 100%; max-width: 620px; height: auto; margin: auto; }
svg text { font: 12px system-ui, sans-serif; fill: var(--grey); }
@container (min-width: 450px) { svg text { font-size: 10px; } }
svg text.target { fill: var(--target); }
.grid { stroke: var(--line); } line.target { stroke: var(--target); stroke-dasharray: 5 3; }
.curve { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
path.again { stroke-dasharray: 6 3; } .swatch.again { background: repeating-linear-gradient(
  90deg, currentColor 0 4px, transparent 4px 6px); }
.band { fill: currentColor; opacity: .18; } .mark { fill: currentColor; stroke: var(--card); }
path.kin { fill: none; stroke: currentColor; stroke-width: 1.4; }
path.changed { stroke-dasharray: 4 3; } circle.kin { fill: currentColor; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: 0;
  margin: .3rem 0 .6rem; }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em;
  background: currentColor; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums;
  width: 100%; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; vertical-align: top; }
thead th { color: var(--grey); font-weight: 500; }
tbody th { font-weight: 500; white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
.share { display: flex; align-items: center; gap: .5rem; min-width: 8rem; }
.share .bar { height: .7em; min-width: 1px; background: currentColor; border-radius: 2px; }
.pipeline { list-style: none; display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; margin: 0;
  padding: 0 1.2rem 0 0; }
.pipeline li { position: relative; padding: .3rem .7rem; background: var(--card); max-width: 100%;
  border: 1px solid var(--line); border-radius: 8px; overflow-wrap: anywhere; }
.pipeline li:not(:last-child)::after { content: "\\2192"; position: absolute; right: -1.2rem;
  top: .3rem; color: var(--grey); }
.pipeline small { display: block; color: var(--grey); }
.pipeline .again { border-style: dashed; color: var(--grey); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .7rem; }
""" + "".join(f".c{k} {{ color: var(--c{k}); }}\n" for k in range(NUM_COLORS))

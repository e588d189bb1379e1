"""Figures of a report as inline SVG, which follows the colours of the page.

Elements are built as a tree and escaped when they are written, as names in a run may be any text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from ding_lite.io.text import as_text, as_tick
from ding_lite.middleware.report.evolution import families
from ding_lite.middleware.report.style import LARGEST
from ding_lite.rl.batch import NumpyArray

NUM_COLORS = 8
_WIDTH, _HEIGHT = 400, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 10, 12, 34
_MOST_POINTS = 300
_MOST_MARKS = 40
_ROW = 24


class Line(NamedTuple):
    """A curve, with a band around it if it summarises several curves."""

    label: str
    x: NumpyArray
    y: NumpyArray
    low: NumpyArray | None = None
    high: NumpyArray | None = None
    color: int = 0

    def clipped(self) -> Line:
        low, high = (None if side is None else _clip(side) for side in (self.low, self.high))
        return Line(self.label, _clip(self.x), _clip(self.y), low, high, self.color)


def tag(name: str, /, *children: Element | str, **attributes: object) -> Element:
    """Make an element; `class_` is the attribute class, and `aria_label` is aria-label."""
    texts = {key.rstrip("_").replace("_", "-"): _text(value) for key, value in attributes.items()}
    made = Element(name, texts)
    for child in children:
        if not isinstance(child, str):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + child
        else:
            made.text = (made.text or "") + child
    return made


def color_of(number: int) -> str:
    """Return the classes of a curve by its number; every other round of colours is dashed."""
    again = number // NUM_COLORS % 2
    return f"c{number % NUM_COLORS}{' again' * again}"


def _text(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def figure(title: str, *content: Element | str, note: str = "") -> Element:
    below = [tag("p", note, class_="note")] if note else []
    return tag("figure", tag("figcaption", title), *content, *below)


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str = "env steps",
    target: float | None = None,
) -> Element:
    """Draw curves over env steps or another quantity; points of short curves show their values."""
    lines = [one.clipped() for one in lines]
    values = [part for one in lines for part in (one.y, one.low, one.high) if part is not None]
    if target is not None and abs(target) < LARGEST:
        values.append(np.array([target], dtype=float))
    else:
        target = None
    y_low, y_high = _range(values)
    x_low, x_high = _range([one.x for one in lines])

    def place(x: float, y: float) -> tuple[float, float]:
        right, up = (x - x_low) / (x_high - x_low), (y - y_low) / (y_high - y_low)
        return (
            _LEFT + right * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = []
    for y in ticks(y_low, y_high, most=5):
        _, down = place(x_low, y)
        parts += [
            tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=down, y2=down, class_="grid"),
            tag("text", as_tick(y), x=_LEFT - 7, y=down + 4, text_anchor="end"),
        ]
    for x in ticks(x_low, x_high, most=6):
        if x_label == "generation" and not float(x).is_integer():
            continue
        right, _ = place(x, y_low)
        parts.append(tag("text", as_tick(x), x=right, y=_HEIGHT - 17, text_anchor="middle"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(tag("text", x_label, x=middle, y=_HEIGHT - 3, text_anchor="middle"))
    if target is not None:
        _, down = place(x_low, target)
        parts += [
            tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=down, y2=down, class_="target"),
            tag("text", f"target {as_text(target)}", x=_LEFT + 5, y=down - 5, class_="target"),
        ]
    for one in lines:
        parts += _curve(one, place)
    summary = "; ".join(f"{one.label}: last {as_text(float(one.y[-1]))}" for one in lines)
    return figure(title, _svg(parts, f"{title} over {x_label}. {summary}", _HEIGHT))


def _clip(values: NumpyArray) -> NumpyArray:
    clipped: NumpyArray = np.clip(np.nan_to_num(values), -LARGEST, LARGEST)
    return clipped


def _curve(line: Line, place: Any) -> list[Element]:  # noqa: ANN401 - the function within `chart`
    few = np.unique(np.linspace(0, len(line.x) - 1, _MOST_POINTS).astype(int))
    points = [place(x, y) for x, y in zip(line.x[few], line.y[few], strict=True)]
    color = color_of(line.color)
    parts = []
    if line.low is not None and line.high is not None:
        above = [place(x, y) for x, y in zip(line.x[few], line.high[few], strict=True)]
        below = [place(x, y) for x, y in zip(line.x[few], line.low[few], strict=True)]
        band = _path([*above, *reversed(below)])
        parts.append(tag("path", d=f"{band}Z", class_=f"band {color}"))
    parts.append(tag("path", d=_path(points), class_=f"curve {color}"))
    if len(points) <= _MOST_MARKS:
        for (right, down), x, y in zip(points, line.x[few], line.y[few], strict=True):
            title = tag("title", f"{line.label}: {as_text(float(y))} at {as_text(float(x))}")
            parts.append(tag("circle", title, cx=right, cy=down, r=3, class_=f"mark {color}"))
    return parts


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _svg(parts: Sequence[Element], label: str, height: int) -> Element:
    title = tag("title", label)
    return tag("svg", title, *parts, viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label=label)


def _range(values: Sequence[NumpyArray]) -> tuple[float, float]:
    """Return the bounds of an axis, which begins at 0 if no value is below, and is never empty."""
    low = min(float(part.min()) for part in values)
    high = max(float(part.max()) for part in values)
    low = min(low, 0.0)
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1 / LARGEST):
        room = 0.5 * abs(high) if abs(high) > 1 / LARGEST else 1.0
        return low - room * (low < 0), high + room
    room = 0.04 * (high - low)
    return (low if low == 0 else low - room), high + room


def ticks(low: float, high: float, *, most: int) -> list[float]:
    """Return at most `most` + 1 round numbers between two bounds."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(
        factor for factor in (1, 2, 2.5, 5, 10, 20) if (high - low) <= most * step * factor
    )
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def family(lives: Sequence[Mapping[str, Any]]) -> Element:
    """Draw the lineage of a population: columns are generations, rows places, colours families."""
    at = {(life["generation"], life["id"]): life["place"] for life in lives}
    parents = {life["id"]: life["parent"] for life in lives}
    family_of = families(parents)
    generations = max(life["generation"] for life in lives)
    best: dict[int, float] = {}
    for life in lives:
        if life["fitness"] is not None:
            best[life["generation"]] = max(life["fitness"], best.get(life["generation"], -math.inf))
    across = (_WIDTH - 2 * _ROW) / max(generations, 1)
    parts: list[Element] = []
    circles: list[Element] = []
    for life in lives:
        color, number = f"c{family_of[life['id']] % NUM_COLORS}", life["generation"]
        right, down = _ROW + across * number, _ROW * (life["place"] + 0.7)
        before = at.get((number - 1, life["id"]), at.get((number - 1, life["parent"])))
        if before is not None:
            changed = "" if life.get("mutation") in ("first", "copy", "none") else " changed"
            above = _ROW * (before + 0.7)
            d = _path([(right - across, above), (right, down)])
            parts.append(tag("path", d=d, class_=f"kin {color}{changed}"))
        fitness = life["fitness"]
        is_best = fitness is not None and fitness == best[number]
        worth = "not evaluated" if fitness is None else f"fitness {as_text(fitness)}"
        caption = f"generation {number}, agent {life['id']} ({life.get('mutation')}): {worth}"
        size = min(across / 3, 7 if is_best else 4)
        circle = tag(
            "circle", tag("title", caption), cx=right, cy=down, r=size, class_=f"kin {color}"
        )
        circles.append(circle)
    height = int(_ROW * (1.4 + max(life["place"] for life in lives)))
    label = f"Lineage of {len(parents)} agents over {generations + 1} generations"
    note = "Rows are places, columns generations, colours families. Large: the best of a "
    note += "generation; dashed: a mutation."
    return figure("Lineage", _svg([*parts, *circles], label, height), note=note)

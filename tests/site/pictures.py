"""Draw the pictures of nodes and pipelines in docs/images: `python -m tests.site.pictures`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
INK, GREY, BLUE, ORANGE, GREEN = "#1f2933", "#7b8794", "#2f6fde", "#e8590c", "#2b8a3e"
COLORS = {"learner": BLUE, "collector": GREEN, "evaluator": ORANGE}
_HALF_HEIGHT = 23.0


@dataclass
class Picture:
    """Boxes with words in them, and lines between them, by the names of the boxes."""

    width: int
    height: int
    title: str
    boxes: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """The middle of each box, and half its width."""
    lines: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)

    def box(self, name: str, x: float, y: float, *words: str, color: str = GREY) -> None:
        """Draw a box around `x, y`, with at most two lines of words."""
        half = max(34.0, 4.4 * max(map(len, words)) + 9)
        self.boxes[name] = (x, y, half)
        self.shapes.append(
            f'<rect x="{x - half:g}" y="{y - _HALF_HEIGHT:g}" width="{2 * half:g}" '
            f'height="{2 * _HALF_HEIGHT:g}" rx="8" fill="#ffffff" stroke="{color}" '
            'stroke-width="2"/>'
        )
        for row, word in enumerate(words):
            self.words(x, y + 5 + 17 * row - 8.5 * (len(words) - 1), word, GREY if row else INK)

    def words(self, x: float, y: float, text: str, color: str = GREY) -> None:
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="middle" fill="{color}">{escape(text)}</text>'
        )

    def line(self, one: str, other: str, *, arrow: bool = True, shift: float = 0.0) -> None:
        """Draw a line from box to box, `shift` beside that of their middles."""
        (x1, y1, half1), (x2, y2, half2) = self.boxes[one], self.boxes[other]
        length = math.hypot(x2 - x1, y2 - y1)
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        x1, x2, y1, y2 = x1 - shift * dy, x2 - shift * dy, y1 + shift * dx, y2 + shift * dx
        from_1, from_2 = _way_out(half1, dx, dy), _way_out(half2, dx, dy) + 4 * arrow
        marker = ' marker-end="url(#tip)"' if arrow else ""
        self.lines.append(
            f'<line x1="{x1 + from_1 * dx:.1f}" y1="{y1 + from_1 * dy:.1f}" '
            f'x2="{x2 - from_2 * dx:.1f}" y2="{y2 - from_2 * dy:.1f}"{marker}/>'
        )

    def chain(self, *names: str) -> None:
        for one, other in pairwise(names):
            self.line(one, other)

    def path(self, data: str) -> None:
        self.lines.append(f'<path d="{data}" stroke-dasharray="5 4" marker-end="url(#tip)"/>')

    def svg(self) -> str:
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" '
                'font-family="system-ui, sans-serif" font-size="14">',
                f"<title>{escape(self.title)}</title>",
                '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
                f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{GREY}"/></marker>',
                '<rect width="100%" height="100%" rx="10" fill="#f6f8fa"/>',
                f'<g stroke="{GREY}" stroke-width="1.6" fill="none">',
                *self.lines,
                "</g>",
                *self.shapes,
                "</svg>\n",
            ]
        )


def _way_out(half_width: float, dx: float, dy: float) -> float:
    """Return how far the edge of a box is from its middle in a direction."""
    return min(half_width / abs(dx) if dx else math.inf, _HALF_HEIGHT / abs(dy) if dy else math.inf)


def node(picture: Picture, number: int, role: str, x: float, y: float) -> str:
    picture.box(str(number), x, y, f"node {number}", role, color=COLORS.get(role, GREY))
    return str(number)


def pipeline() -> str:
    picture = Picture(640, 150, "ctx passes through collect, add_to and train, step after step")
    stages = ["ctx", "collect", "add_to", "train"]
    for place, stage in enumerate(stages):
        picture.box(stage, 80 + 160 * place, 55, stage, color=BLUE if place else GREY)
    picture.chain(*stages)
    picture.path("M560 78V115H80V84")
    picture.words(320, 134, "next step")
    return picture.svg()


def two_nodes() -> str:
    picture = Picture(680, 230, "Node 0 learns, node 1 evaluates the weights that node 0 publishes")
    ours = {"collect": 140, "add_to": 270, "train": 400, "publish_weights": 565}
    theirs = {"fetch_weights": 565, "evaluate": 400}
    for name, stages, color, y in (("node 0", ours, BLUE, 55), ("node 1", theirs, ORANGE, 175)):
        picture.words(50, y + 5, name, color)
        for stage, x in stages.items():
            picture.box(stage, x, y, stage, color=color)
        picture.chain(*stages)
    picture.line("publish_weights", "fetch_weights")
    picture.words(530, 120, "weights")
    return picture.svg()


def collectors() -> str:
    picture = Picture(560, 230, "Collectors send transitions to a learner and get its weights")
    node(picture, 0, "learner", 280, 45)
    for number, x in ((1, 110), (2, 450)):
        node(picture, number, "collector", x, 185)
        picture.line("0", str(number), shift=-8 if number == 1 else 8)
        picture.line(str(number), "0", shift=-8 if number == 1 else 8)
    picture.words(110, 105, "transitions")
    picture.words(450, 105, "transitions")
    picture.words(280, 140, "weights")
    return picture.svg()


def star() -> str:
    picture = Picture(420, 250, "A star: nodes 1 to 4 are connected to node 0")
    node(picture, 0, "learner", 210, 125)
    for number, (x, y) in enumerate(((75, 45), (345, 45), (75, 205), (345, 205)), start=1):
        picture.line("0", node(picture, number, "collector", x, y), arrow=False)
    return picture.svg()


def mesh() -> str:
    picture = Picture(420, 290, "A mesh: each of five nodes is connected to all others")
    for number in range(5):
        angle = 2 * math.pi * number / 5 - math.pi / 2
        x, y = 210 + 140 * math.cos(angle), 155 + 115 * math.sin(angle)
        node(picture, number, "agent", round(x), round(y))
        for other in range(number):
            picture.line(str(other), str(number), arrow=False)
    return picture.svg()


def tree() -> str:
    picture = Picture(560, 260, "A tree: node 0 has two hubs, and each of them two collectors")
    node(picture, 0, "learner", 280, 40)
    places = {1: (150, 130), 2: (410, 130), 3: (65, 220), 4: (205, 220), 5: (355, 220)}
    for number, (x, y) in {**places, 6: (495, 220)}.items():
        node(picture, number, "hub" if number < 3 else "collector", x, y)
        picture.line(str((number - 1) // 2), str(number), arrow=False)
    return picture.svg()


DRAWN: Mapping[str, Callable[[], str]] = {
    "pipeline.svg": pipeline,
    "two-nodes.svg": two_nodes,
    "collectors.svg": collectors,
    "nodes-star.svg": star,
    "nodes-mesh.svg": mesh,
    "nodes-tree.svg": tree,
}

if __name__ == "__main__":
    for name, draw in DRAWN.items():
        (IMAGES / name).write_text(draw())

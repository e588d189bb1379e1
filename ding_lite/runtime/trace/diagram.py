"""A pipeline as text and as a Mermaid diagram."""

from __future__ import annotations

from collections.abc import Sequence, Set as AbstractSet
from dataclasses import dataclass
from html import escape

from ding_lite.runtime.composition import Use, distinct
from ding_lite.runtime.middleware import Middleware, MiddlewareShape, name_of, parts_of, shape_of


@dataclass(frozen=True)
class Diagram:
    """A picture of a pipeline; printing it shows the text."""

    text: str
    """One line per middleware, in order, with its place and whether this node runs it."""
    mermaid: str
    """A flow chart for any Mermaid viewer."""

    def __str__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Show the flow chart in a notebook that draws Mermaid, such as JupyterLab 4.1 and newer.

        Other notebooks show the text, from `_repr_html_`.
        """
        return {"text/vnd.mermaid": self.mermaid}

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text)}</pre>"


def draw(uses: Sequence[Use], *, labels: AbstractSet[str], concurrent: bool) -> Diagram:
    """Draw the middleware of a task, as a node with these labels runs them."""
    names = distinct([name_of(use.fn) for use in uses])
    return Diagram(_text(uses, names, labels, concurrent), _mermaid(uses, names, labels))


def _text(
    uses: Sequence[Use], names: Sequence[str], labels: AbstractSet[str], concurrent: bool
) -> str:
    order = "all at once" if concurrent else "in order"
    lines = [f"task on {', '.join(sorted(labels))}: {len(uses)} middleware, {order}"]
    width = max((len(name) for name in names), default=0)

    for number, (use, name) in enumerate(zip(uses, names, strict=True), start=1):
        marks = [f"on {_where(use)}"]
        marks += ["before and after the rest"] if _is_onion(use.fn) else []
        marks += ["async"] if shape_of(use.fn).is_async else []
        marks += ["locked"] if use.lock else []
        marks += [] if use.is_for(labels) else ["not on this node"]
        lines.append(f"{number:3d}  {name:{width}}  {', '.join(marks)}")

    return "\n".join(lines)


def _is_onion(fn: Middleware) -> bool:
    if parts := parts_of(fn):
        return any(_is_onion(part) for part in parts)
    return shape_of(fn) in (MiddlewareShape.GENERATOR, MiddlewareShape.ASYNC_GENERATOR)


def _mermaid(uses: Sequence[Use], names: Sequence[str], labels: AbstractSet[str]) -> str:
    lines = ["flowchart LR", '    start(["ctx"])']
    for number, (use, name) in enumerate(zip(uses, names, strict=True), start=1):
        name = name.replace('"', "#quot;")
        lines.append(f'    m{number}["{name}<br/><small>{_where(use)}</small>"]')
        if not use.is_for(labels):
            lines.append(f"    style m{number} stroke-dasharray: 4 4")

    stations = ["start", *(f"m{number}" for number in range(1, len(uses) + 1))]
    lines.append("    " + " --> ".join(stations))
    if len(stations) > 1:
        lines.append(f"    {stations[-1]} -. next step .-> start")
    return "\n".join(lines)


def _where(use: Use) -> str:
    return "every node" if use.patterns is None else " or ".join(use.patterns)

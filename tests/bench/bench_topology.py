"""The cost of a step for the nodes of a star, a mesh and a tree, by their number.

The routers are the real ones, 4 to 512 of them in one process over `inproc`, and every message is
counted. A step has two parts, which are measured apart: node 0 publishes weights, and all
publish what a task puts on its ctx; then every other node sends node 0 an item of a stream. Time
is the CPU time of a node's own threads. The machines and the links between them are not there.

`python -m tests.bench.bench_topology FILE.png` also draws the picture of docs/guide/scaling.md
and prints its tables.
"""

from __future__ import annotations

import copy
import gc
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from ding_lite.middleware.report.style import (
    COLORS,
    INK,
    add_legend,
    add_titles,
    save_picture,
    style_axes,
)
from ding_lite.parallel.network.topology import edges
from tests.bench.counted import CountedCluster, Traffic
from tests.bench.harness import Row, row_from_samples

NODES = {
    "star": (4, 8, 16, 32, 64, 128, 256, 512),
    "mesh": (4, 8, 16, 32, 64),
    "tree": (4, 8, 16, 32, 64, 128, 256, 512),
}
"""A mesh of 512 nodes has 130,816 links, and so many messages a step."""
REPEATS = 5
WEIGHTS = np.zeros(16_384, np.float32)
ITEM = np.zeros(256, np.float32)
POLICY_BYTES = 10e6
LINK_BYTES_PER_S = 10e9 / 8
TIME_POWERS = {
    ("star", "state"): 1.1,
    ("star", "items"): 1.1,
    ("tree", "state"): 0.25,
    ("tree", "items"): 1.2,  # those that a hub has passed on cost more, and their share grows
}
"""With which powers of the nodes the time of node 0 may grow."""
FROM = 16
"""Slopes are fitted from this many nodes on: below, a tree is a star."""


@dataclass(frozen=True)
class Cost:
    """The cost of one part of a step: the medians of some steps."""

    messages: float
    """Messages of the root, both ways."""
    nbytes: float
    """Bytes of the root, both ways."""
    seconds: list[float]
    """CPU time of the root, in each of the steps."""
    copies: int
    """The largest number of times that one node has sent the weights."""
    all_messages: float
    """Messages of all nodes, each counted once."""
    most_waiting: int
    """How many items have waited at the root at a time."""


@dataclass(frozen=True)
class Step:
    state: Cost
    items: Cost


def measure(topology: str, num_nodes: int) -> Step:
    state: list[list[Traffic]] = []
    items: list[list[Traffic]] = []
    most_waiting = 0
    with CountedCluster(num_nodes, topology) as cluster, all_set_aside():
        for repeat in range(-1, REPEATS):  # in the first one connections and threads begin
            with cluster.counting():
                cluster.publish(WEIGHTS)
            if repeat >= 0:
                state.append(copy.deepcopy(cluster.traffic))
            with cluster.counting():
                most_waiting = max(most_waiting, cluster.collect(ITEM))
            if repeat >= 0:
                items.append(copy.deepcopy(cluster.traffic))
    return Step(_cost(state, 0), _cost(items, most_waiting))


@contextmanager
def all_set_aside() -> Iterator[None]:
    """Let the collector of garbage pass over the other nodes, which would be elsewhere."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _cost(steps: list[list[Traffic]], most_waiting: int) -> Cost:
    return Cost(
        messages=median(root.messages for root, *_ in steps),
        nbytes=median(root.nbytes for root, *_ in steps),
        seconds=[root.seconds for root, *_ in steps],
        copies=max(node.large_sent for step in steps for node in step),
        all_messages=median(sum(node.messages for node in step) / 2 for step in steps),
        most_waiting=most_waiting,
    )


def slope(costs: Mapping[int, float]) -> float:
    """Fit the power of the number of nodes with which a cost grows: 1 is linear, 0 constant.

    Times are fitted to the steps that were disturbed least.
    """
    nodes = [count for count in costs if count >= FROM]
    return float(np.polyfit(np.log(nodes), np.log([costs[count] for count in nodes]), 1)[0])


def link_s(cost: Cost) -> float:
    return cost.copies * POLICY_BYTES / LINK_BYTES_PER_S


def saturated_at(steps: Mapping[int, Step], per_second: float) -> float:
    """Return at how many nodes the busiest link is full of policies, by a straight line.

    It is infinite where the line does not rise.
    """
    nodes = [count for count in steps if count >= FROM]
    rise, start = np.polyfit(nodes, [steps[count].state.copies for count in nodes], 1)
    room = LINK_BYTES_PER_S / POLICY_BYTES / per_second
    return float((room - start) / rise) if rise > 1e-6 else math.inf


def measure_all() -> dict[str, dict[int, Step]]:
    return {name: {n: measure(name, n) for n in sizes} for name, sizes in NODES.items()}


def run() -> list[Row]:
    found = measure_all()
    return [row for name in found for row in _rows(name, found[name])]


def _rows(name: str, steps: Mapping[int, Step]) -> Iterator[Row]:
    largest = max(steps)
    for part, what in (("state", "weights to all"), ("items", "an item from each")):
        costs: dict[int, Cost] = {n: getattr(step, part) for n, step in steps.items()}
        for n in (8, 64, 512):
            if n in costs:
                title = f"{what}, {name} of {n}: CPU time of node 0"
                yield row_from_samples(title, costs[n].seconds, unit="ms", tracked=n == largest)
        if name == "mesh":
            continue
        is_flat = (name, part) == ("tree", "state")
        growth = f"{what}, {name} of {FROM} to {largest}: power of the nodes that node 0's"
        power = slope({n: cost.nbytes for n, cost in costs.items()})
        yield fitted(f"{growth} bytes are", power, target=0.05 if is_flat else 1.05)
        power = slope({n: min(cost.seconds) for n, cost in costs.items()})
        yield fitted(f"{growth} CPU time is", power, target=TIME_POWERS[name, part])
    title = f"policy of 10 MB to all, {name} of {largest}: busiest link, at 10 Gbit/s"
    busy_s = link_s(steps[largest].state)
    yield row_from_samples(title, [busy_s] * REPEATS, unit="s")


def fitted(name: str, power: float, *, target: float) -> Row:
    return Row(name=name, unit="exponent", median=power, spread=0.0, n=1, target=target)


# -- the page about scaling --------------------------------------------------------------------


def tables(found: Mapping[str, Mapping[int, Step]]) -> str:
    lines = [
        "| nodes | topology | links | messages | MB of node 0 | ms of node 0 | copies sent by the "
        "busiest node | ms for the items | items waiting at node 0 |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for n in (8, 64, 512):
        for name, steps in found.items():
            if n in steps:
                state, items = steps[n].state, steps[n].items
                lines.append(
                    f"| {n} | {name} | {len(edges(name, n)):,} | {state.all_messages:,.0f} "
                    f"| {state.nbytes / 1e6:.2f} | {median(state.seconds) * 1e3:.1f} "
                    f"| {state.copies} | {median(items.seconds) * 1e3:.1f} "
                    f"| {items.most_waiting} |"
                )
    for name, steps in found.items():
        fits = []
        for part in ("state", "items"):
            costs: dict[int, Cost] = {n: getattr(step, part) for n, step in steps.items()}
            fits.append(f"{part} bytes {slope({n: c.nbytes for n, c in costs.items()}):.2f}")
            fits.append(f"time {slope({n: min(c.seconds) for n, c in costs.items()}):.2f}")
        full = [f"{saturated_at(steps, rate):.0f} at {rate} a second" for rate in (1, 10)]
        lines.append(f"{name}: {', '.join(fits)}; link full with {', '.join(full)}")
    return "\n".join(lines)


def draw(found: Mapping[str, Mapping[int, Step]], path: Path) -> None:
    """Draw the milliseconds of the busiest link and of node 0, by topology and number of nodes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.9), dpi=160, facecolor="white")
    figure.subplots_adjust(left=0.07, right=0.98, top=0.72, bottom=0.135, wspace=0.16)
    drawn: dict[str, Callable[[Step], float]] = {
        "10 MB to all: ms of the busiest link": lambda step: link_s(step.state) * 1e3,
        "64 KB to all: ms of node 0's processor": lambda step: median(step.state.seconds) * 1e3,
    }
    for place, (title, cost_of) in enumerate(drawn.items(), start=1):
        curves = {name: {n: cost_of(step) for n, step in at.items()} for name, at in found.items()}
        axes = figure.add_subplot(1, 2, place)
        for (name, points), color in zip(curves.items(), COLORS, strict=False):
            label = name if place == 1 else None
            style = (0, (4, 2)) if name == "mesh" else "-"  # it lies on the star
            axes.plot(
                list(points), list(points.values()),
                color=color, linestyle=style, linewidth=2.0, marker="o", markersize=4, label=label,
            )  # fmt: skip
        style_axes(axes, y_label="")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        values = [value for points in curves.values() for value in points.values()]
        axes.set_ylim(0.7 * min(values), 1.5 * max(values))
        axes.set_xlim(3.5, 600)
        axes.set_xticks([4, 8, 16, 32, 64, 128, 256, 512], minor=False)
        axes.minorticks_off()
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("nodes", fontsize=11, color=INK, labelpad=6)
        axes.set_title(title, fontsize=10.5, color=INK, loc="left", pad=8)
        if place == 1:
            add_legend(axes)
    add_titles(figure, "Star, mesh and tree", "a step of node 0, by the number of nodes")
    save_picture(figure, path)


if __name__ == "__main__":
    measured = measure_all()
    print(tables(measured))
    draw(measured, Path(sys.argv[1]))

"""Drawings of a pipeline, as text and as Mermaid."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator

from ding_lite.runtime import Context, Task, use_router
from ding_lite.testing import Cluster


def collect(ctx: Context) -> None: ...


def profile(ctx: Context) -> Iterator[None]:
    yield


async def fetch(ctx: Context) -> None: ...


async def watch(ctx: Context) -> AsyncIterator[None]:
    yield


def pipeline() -> Task:
    with Cluster(2, roles=["learner", "collector"]) as cluster, use_router(cluster.routers[0]):
        task = Task()
    task.use(profile).use(collect, filter_labels=["collector", "standalone"])
    task.use(fetch, filter_labels="learner").use(watch, lock=True).use(collect)
    return task


def test_the_text_has_a_line_a_middleware_with_its_place_and_what_is_special() -> None:
    assert pipeline().draw().text == (
        "task on distributed, learner, learner.0, node.0: 5 middleware, in order\n"
        "  1  profile    on every node, before and after the rest\n"
        "  2  collect    on collector or standalone, not on this node\n"
        "  3  fetch      on learner, async\n"
        "  4  watch      on every node, before and after the rest, async, locked\n"
        "  5  collect#2  on every node"
    )


def test_a_task_in_async_mode_or_without_middleware_can_be_drawn() -> None:
    head = Task(async_mode=True).use(collect).draw().text.splitlines()[0]
    assert head == "task on async, node.0, standalone: 1 middleware, all at once"
    drawing = Task().draw()
    assert drawing.text == "task on node.0, standalone: 0 middleware, in order"
    assert drawing.mermaid == 'flowchart LR\n    start(["ctx"])\n    start'


def test_the_chart_has_a_box_a_middleware_goes_round_and_dashes_what_is_left_out() -> None:
    chart = pipeline().draw().mermaid
    lines = chart.splitlines()
    assert lines[0] == "flowchart LR"
    assert '    m2["collect<br/><small>collector or standalone</small>"]' in lines
    assert '    m5["collect#2<br/><small>every node</small>"]' in lines
    assert lines[-2:] == [
        "    start --> m1 --> m2 --> m3 --> m4 --> m5",
        "    m5 -. next step .-> start",
    ]
    boxes = re.findall(r"^    (\w+)[(\[]", chart, flags=re.MULTILINE)
    assert boxes == ["start", "m1", "m2", "m3", "m4", "m5"]
    assert re.findall(r"style (\w+) stroke-dasharray", chart) == ["m2"]


def test_a_composition_is_drawn_as_what_its_parts_are() -> None:
    task = Task()
    task.use(task.serial(collect, task.parallel(collect, fetch)))
    task.use(task.serial(collect, task.parallel(collect, watch)))
    _, plain, onion = task.draw().text.splitlines()
    assert plain.endswith("  on every node")
    assert onion.endswith("  on every node, before and after the rest")


def test_a_quote_in_a_name_does_not_end_the_box() -> None:
    def said(ctx: Context) -> None: ...

    said.__name__ = 'a "b"'
    task = Task().use(said)
    assert '    m1["a #quot;b#quot;<br/>' in task.draw().mermaid
    assert '  1  a "b"  on every node' in task.draw().text


def test_a_notebook_shows_the_flow_chart_or_else_the_text() -> None:
    drawn = Task().use(lambda ctx: None).draw()
    assert drawn._repr_mimebundle_(include=None) == {"text/vnd.mermaid": drawn.mermaid}
    assert drawn._repr_html_().startswith("<pre>task on ")
    assert "lambda" in drawn._repr_html_()

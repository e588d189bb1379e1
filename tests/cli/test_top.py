"""`ding-lite top`: the table, as wide as there is room, and what it says of each node."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ding_lite.cli.top import COLUMNS, NOBODY, cells_of, plain_table, title
from ding_lite.parallel.observe.job_discovery import Node, RunningJob
from ding_lite.parallel.observe.metrics import Counts, NodeMetrics, PeerMetrics

LEARNER = NodeMetrics(
    node_id=0,
    num_nodes=3,
    labels=("distributed", "learner", "learner.0", "node.0"),
    pid=4711,
    program="train.py",
    restarts=2,
    began=0.0,
    at=10.0,
    state="running",
    where="train.py:14 " + "a_rather_long_name_of_a_function",
    total=Counts(total_step=1234, env_step=9872),
    per_second=Counts(total_step=97.3, env_step=778.4, events_out=0.25, ctx_in=12_345),
    inbox=1,
    items=12,
    peers=(PeerMetrics(node_id=1, unacknowledged=3, ctx_s=0.4),),
)


def node(metrics: NodeMetrics | None = LEARNER, **more: Any) -> Node:
    usual: dict[str, Any] = {"node_id": 0, "labels": LEARNER.labels, "state": "running"}
    usual |= {"beat_s": 0.51, "rss_bytes": 150 * 2**20}
    return Node(metrics=metrics, **{**usual, **more})


FAR = node(None, node_id=2, labels=("collector", "node.2"), state="lost", beat_s=75, rss_bytes=None)


def test_a_wide_table_has_all_that_is_known() -> None:
    heading, first, far = plain_table([node(), FAR], width=200)
    assert re.split(r"\s{2,}", heading) == [column.heading for column in COLUMNS]
    assert re.split(r"\s{2,}", first.strip()) == [
        *("0", "learner", "4711", "running", "1234", "97", "778", "0.2/0", "0/12.3k"),
        *("3/1/12", "0.4s", "0.5s", "150M", "2", LEARNER.where),
    ]
    assert re.split(r"\s{2,}", far.strip())[:4] == ["2", "collector", "-", "lost"]
    assert "75s" in far


def test_a_table_is_never_wider_than_there_is_room() -> None:
    for width in range(10, 200, 7):
        assert max(map(len, plain_table([node(), FAR], width=width))) <= width


def test_a_narrow_table_leaves_out_the_least_important_columns() -> None:
    shown = {width: plain_table([node()], width=width)[0].split() for width in (120, 90, 80, 40)}
    assert "restarts" not in shown[120]
    assert shown[120][-1] == "where"
    assert "where" not in shown[90]
    assert {"state", "step/s", "lag", "beat", "queues"} <= set(shown[80])
    assert shown[40] == ["node", "role", "state", "step", "step/s"]


def test_the_place_in_the_program_is_cut_before_it_is_left_out() -> None:
    widest = len(plain_table([node()], width=1000)[1])
    [heading, line] = plain_table([node()], width=widest - 5)
    assert (heading.split()[-1], len(line)) == ("where", widest - 5)
    assert line.endswith("…")


def test_env_steps_have_a_column_only_where_a_node_counts_them() -> None:
    bare = node(replace(LEARNER, per_second=Counts(total_step=1.0)))
    assert "env/s" not in [column.heading for column in cells_of([bare, FAR], 200)]
    assert "env/s" in [column.heading for column in cells_of([bare, node()], 200)]


def test_the_title_tells_how_many_nodes_are_here() -> None:
    job = RunningJob(name="abc", program="train.py", num_nodes=3, age_s=127.0, nodes=(node(), FAR))
    line = title(job)
    assert re.fullmatch(r"[\d:]{8}  job abc  train\.py  3 nodes, 1 of them here, for 127s", line)
    assert title(replace(job, num_nodes=1, age_s=5.0)).endswith("1 node, for 5.0s")
    assert r"  \x1b]0;x\x07\n.py  " in title(replace(job, program="\x1b]0;x\x07\n.py"))


# -- where nothing runs --------------------------------------------------------------------


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for jobs in which there are none, so that others' are not in the way."""
    monkeypatch.setattr("ding_lite.parallel.network.address._usual_folders", lambda: (tmp_path,))
    return tmp_path


def test_without_a_running_job_it_reports_that(nowhere, capsys) -> None:
    from ding_lite.cli.main import main

    assert main(["top", "--once"]) == 1
    assert capsys.readouterr() == ("", f"ding-lite top: {NOBODY}\n")
    assert main(["top"]) == 1  # nor does it wait without a terminal
    assert capsys.readouterr() == ("", f"ding-lite top: {NOBODY}\n")
    assert main(["top", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"jobs": []}

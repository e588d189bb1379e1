"""One time line for all nodes of a job, with their messages as arrows."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.procs.conftest import RunForked


def read(folder: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads((folder / "trace.json").read_text())
    return records


def arrows(records: list[dict[str, Any]]) -> dict[str, list[list[tuple[str, str, str]]]]:
    """Return each arrow by its kind: what it does in which slice of which node, in its order."""
    nodes = {r["pid"]: r["args"]["name"] for r in records if r["name"] == "process_name"}
    slices = [record for record in records if record["ph"] == "X"]
    found: dict[tuple[str, str], list[tuple[float, str, str, str]]] = defaultdict(list)
    for record in records:
        if record["ph"] not in "stf":
            continue
        around = [
            (slice_["dur"], slice_["name"])
            for slice_ in slices
            if (slice_["pid"], slice_["tid"]) == (record["pid"], record["tid"])
            and slice_["ts"] < record["ts"] < slice_["ts"] + slice_["dur"]
        ]
        assert around, record  # else the viewers leave it out
        end = record["ts"], record["ph"], min(around)[1], nodes[record["pid"]]
        found[record["name"], record["id"]].append(end)
    by_kind = defaultdict(list)
    for (kind, _), ends in found.items():
        by_kind[kind].append([end[1:] for end in sorted(ends)])
    return by_kind


def test_two_nodes_write_one_time_line_with_all_their_messages(
    run_forked: RunForked, folder: Path
) -> None:
    for _ in range(2):  # the second job replaces the trace of the first one
        assert run_forked("traced") == ""
    records = read(folder)
    learner, collector = "node 0 learner", "node 1 collector"
    names = {r["args"]["name"] for r in records if r["name"] == "process_name"}
    assert names == {learner, collector}
    assert [r["name"] for r in records if r["ph"] == "X"].count("learn") == 3

    found = arrows(records)
    event = [
        ("s", "emit collected", collector),
        ("t", "collected from node 1", learner),
        ("f", "on collected", learner),
    ]
    assert found["event"].count(event) == 3
    waited_for = [
        ("s", "emit tick", learner),
        ("t", "tick from node 0", collector),
        ("f", "tick", collector),
    ]
    assert found["event"].count(waited_for) == 3
    item = [
        ("s", "send episodes", collector),
        ("t", "item of episodes from node 1", learner),
        ("f", "take episodes", learner),
    ]
    assert found["item"].count(item) == 3
    assert found["call"] == [[("s", "call double", collector), ("f", "answer double", learner)]] * 3
    assert (
        found["answer"]
        == [[("s", "answer double", learner), ("f", "answer from node 0", collector)]] * 3
    )
    ctx = [("s", "publish ctx", collector), ("f", "ctx from node 1", learner)]
    assert ctx in found["ctx"]


def test_a_killed_node_leaves_its_part_of_the_trace_and_its_restart_continues_it(
    fork, folder
) -> None:
    with fork("waiting", nodes=2, log=False, traced=True) as program:
        first = program.pids(2)
        os.kill(first[1], signal.SIGKILL)
        again = program.pids(1)
        program.process.send_signal(signal.SIGINT)
        assert program.end()[0] == -2
    records = read(folder)
    names = {r["pid"]: r["args"]["name"] for r in records if r["name"] == "process_name"}
    assert names == {first[0]: "node 0", first[1]: "node 1", again[1]: "node 1"}
    ended = {record["pid"] for record in records if record["name"] == "step"}
    assert ended == {first[0], again[1]}  # the killed one was in the middle of it
    assert first[1] in {record["pid"] for record in records if record["name"] == "lambda"}

"""Files that this package reads, each with a way to break one and to read it."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ding_lite import Task, middleware as mw
from ding_lite.cli.plot import plot_runs
from ding_lite.cli.report.page import page
from ding_lite.cli.top import plain_table, title
from ding_lite.cli.watch import describe_policy
from ding_lite.parallel.memory.segments import DIRECTORY, Segment, SegmentReader, slot_bytes_of
from ding_lite.parallel.network.address import PrivateDirectory
from ding_lite.parallel.network.security import load_key, make_key
from ding_lite.parallel.observe.job_discovery import running_jobs
from ding_lite.parallel.observe.metrics import PREFIX, read_metrics
from ding_lite.parallel.wire.codec import decode, encode
from ding_lite.recipes import load_policy
from ding_lite.recipes.options import parse_options
from ding_lite.recipes.runs.results import find_results, group_results, spread_of, title_of
from ding_lite.rl import (
    DQN,
    DQNConfig,
    PrioritizedReplay,
    load_checkpoint,
    make_envs,
    save_checkpoint,
)
from ding_lite.rl.checkpoint.save_load import MANIFEST
from ding_lite.runtime.trace.file import TraceFile
from ding_lite.testing import run_step
from tests.fuzz.mutation import as_json, broken_bytes, broken_json, changed
from tests.parallel.observe.test_metrics import RECORD, written

Attempt = Callable[[random.Random], object]
"""Breaks something by a seed and reads it; what it raises must be an error of this package."""


def body_of(folder: Path) -> Any:
    return json.loads((folder / MANIFEST).read_bytes())["body"]


def put_manifest(folder: Path, body: bytes) -> None:
    whole = b'{"format_version":2,"body_crc32":%d,"body":%s}' % (zlib.crc32(body), body)
    (folder / MANIFEST).write_bytes(whole)


def breaker(folder: Path) -> Callable[[random.Random], None]:
    """Return what breaks the values in a checkpoint, small and large, and mends its checksums."""
    body = body_of(folder)
    file = folder / body["tensors_file"]
    whole = file.read_bytes()
    begin = 8 + struct.unpack_from("<Q", whole)[0]

    def break_one(rng: random.Random) -> None:
        broken, content = body, whole
        if rng.random() < 0.3:
            at = rng.randrange(begin, len(whole))
            piece = rng.choice([b"\xff", b"\0", rng.randbytes(1)]) * rng.choice([1, 4, 8, 64])
            content = (whole[:at] + piece + whole[at + len(piece) :])[: len(whole)]
        else:
            part = rng.choice(["state", "state", "meta"])
            broken = body | {part: changed(rng, body[part])}
        file.write_bytes(content)
        tree = broken | {"tensors_crc32": zlib.crc32(content)}
        put_manifest(folder, as_json(tree))

    return break_one


def mixed_state() -> dict[str, Any]:
    return {
        "a": torch.arange(6.0),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "b": [np.arange(3), (True, "x", None), np.float32(0.5)],
        "large": np.arange(140_000),
        "flags": np.zeros(1 << 20, bool),
    }


def manifests(folder: Path) -> Iterator[Attempt]:
    save_checkpoint(folder, mixed_state(), meta={"env_step": 5})
    body = body_of(folder)

    def attempt(rng: random.Random) -> object:
        put_manifest(folder, broken_json(rng, body))
        return load_checkpoint(folder)

    yield attempt


def outer_manifests(folder: Path) -> Iterator[Attempt]:
    """Break the outer layer of a manifest, so that its checksum is wrong."""
    save_checkpoint(folder, {"a": torch.ones(2)})
    whole = json.loads((folder / MANIFEST).read_bytes())

    def attempt(rng: random.Random) -> object:
        (folder / MANIFEST).write_bytes(broken_json(rng, whole))
        return load_checkpoint(folder)

    yield attempt


def tensor_files(folder: Path) -> Iterator[Attempt]:
    save_checkpoint(folder, {**mixed_state(), "large": 0, "flags": torch.ones(3) > 0})
    body = body_of(folder)
    file = folder / body["tensors_file"]
    whole = file.read_bytes()
    size = struct.unpack_from("<Q", whole)[0]
    header, rest = json.loads(whole[8 : 8 + size]), whole[8 + size :]

    def attempt(rng: random.Random) -> object:
        content = broken_bytes(rng, whole)
        if rng.random() < 0.7:
            head = broken_json(rng, header)
            content = struct.pack("<Q", len(head)) + head + rest
        file.write_bytes(content)
        put_manifest(folder, json.dumps(body | {"tensors_crc32": zlib.crc32(content)}).encode())
        return load_checkpoint(folder)

    yield attempt


def row_files(folder: Path) -> Iterator[Attempt]:
    """Break the files of large arrays, which are named by what they hold."""
    save_checkpoint(folder, mixed_state())
    files = {file: file.read_bytes() for file in sorted(folder.glob("rows-*"))}

    def attempt(rng: random.Random) -> object:
        file = rng.choice([*files])
        try:
            file.write_bytes(broken_bytes(rng, files[file]))
            return load_checkpoint(folder)
        finally:
            file.write_bytes(files[file])

    yield attempt


def runs(folder: Path) -> Iterator[Attempt]:
    """Break what a run goes on from: its policy, replay, envs and task."""
    with make_envs("CartPole-v1", 2, seed=0) as envs:
        policy = DQN(envs.spec, DQNConfig(hidden=(4,), batch_size=4))
        replay = PrioritizedReplay(envs.spec, capacity=16)
        task = Task()
        parts = {"policy": policy, "replay": replay, "envs": envs, "task": task}
        with task:
            task.use(mw.collect(policy, envs, steps=4))
            task.use(mw.add_to(replay))
            task.use(mw.jsonl(folder / "metrics.jsonl", every=1))
            task.use(mw.checkpoint(parts, folder / "saved", every=3))
            task.run(max_step=3)
        break_one = breaker(folder / "saved")

        def attempt(rng: random.Random) -> None:
            break_one(rng)
            mw.resume(parts, folder / "saved")
            with suppress(Exception):  # numbers that mean nothing may be errors, but no crash
                drawn = replay.sample(4)
                replay.update_priorities(drawn, np.ones(4, np.float32))
                policy.learn(drawn)
                envs.step(policy.act(envs.obs))

        yield attempt


def policies(folder: Path) -> Iterator[Attempt]:
    with make_envs("CartPole-v1", 1) as envs:
        policy = DQN(envs.spec, DQNConfig(hidden=(4,)))
        run_step(mw.checkpoint(policy, folder, every=1), env_step=5, eval_value=2.5)
    break_one = breaker(folder)

    def attempt(rng: random.Random) -> object:
        break_one(rng)
        return describe_policy(load_policy(folder), str(folder), last=False)

    yield attempt


def leave_run(folder: Path) -> tuple[Any, list[Any]]:
    """Leave what a run leaves beside its checkpoint; return the contents of its two files."""
    options = {"env": "CartPole-v1", "seed": 3, "max_env_steps": 500, "target": 475.0}
    described = {"example": "dqn", "options": options, "config": {"lr": 0.5}, "versions": {}}
    rows = [
        {"step": k, "env_step": 100 * k, "eval_return": 10.0 * k, "eval_env_step": 100, "wall_s": k}
        for k in range(1, 5)
    ]
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return described, rows


def compare(folder: Path, rng: random.Random) -> object:
    """Make the page of a report, and do what `ding-lite plot` does; it seldom draws."""
    if rng.random() < 0.05:
        picture = str(folder / "curves.svg")
        with redirect_stdout(io.StringIO()):
            plot_runs(Namespace(runs=[str(folder)], metric=None, out=picture))
    results = find_results([str(folder)])
    groups = group_results(results)
    assert page(results, {}).startswith(b"<!doctype html>")
    return [spread_of(group.runs, "eval_return") for group in groups], title_of(groups)


def configs(folder: Path) -> Iterator[Attempt]:
    described, _ = leave_run(folder)
    arguments = ["--resume", "--out", str(folder)]

    def attempt(rng: random.Random) -> object:
        (folder / "config.json").write_bytes(broken_json(rng, described))
        parse_options(None, env="CartPole-v1", target=475.0, max_env_steps=10, arguments=arguments)
        return compare(folder, rng)

    yield attempt


def metric_rows(folder: Path) -> Iterator[Attempt]:
    _, rows = leave_run(folder)
    life = {"generation": 1, "place": 0, "id": 3, "parent": 1, "mutation": "copy", "fitness": 2.5}
    node = {"node": 0, "labels": ["learner"], "state": "running", "total_step": 5, "ctx_out": 7}
    records: dict[str, list[Any]] = {
        "lineage.jsonl": [{**life, "hyperparameters": {"lr": 0.5}}, {**life, "id": 1}],
        "nodes.jsonl": [{"wall_s": k, "nodes": [node]} for k in (1, 2)],
        "result.json": [{"seconds": {"train": 3.5}, "eval_return": 4.0, "solved": False}],
    }

    def attempt(rng: random.Random) -> object:
        lines = [json.dumps(row).encode() for row in rows]
        at = rng.randrange(len(lines))
        lines[at] = broken_json(rng, rows[at])
        (folder / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        if rng.random() < 0.5:
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for name, trees in records.items():
            content = b"\n".join(broken_json(rng, tree) for tree in trees)
            (folder / name).write_bytes(content)
        (folder / "pipeline.txt").write_bytes(broken_bytes(rng, b"task\n  1  a  on b, c\n"))
        return compare(folder, rng)

    yield attempt


def node_records(folder: Path) -> Iterator[Attempt]:
    """Break what a node tells of itself, and show it as `ding-lite top` does."""
    with ExitStack() as stack:
        job = PrivateDirectory(folder)
        stack.callback(job.remove)
        written(job.path, RECORD)
        path = job.path / f"{PREFIX}1"
        record = json.loads(path.read_bytes()[8:])

        def attempt(rng: random.Random) -> object:
            body = broken_json(rng, record)
            path.write_bytes(struct.pack("<II", len(body), zlib.crc32(body)) + body)
            if read_metrics(path) is None:
                raise UnreadError
            jobs = running_jobs([folder])
            return [(title(job), plain_table(job.nodes, width=80)) for job in jobs]

        yield attempt


class UnreadError(Exception):
    """A reader has said that there is nothing to read, as it does instead of an error."""


def keys(folder: Path) -> Iterator[Attempt]:
    path = make_key(folder / "key")
    whole = path.read_bytes()

    def attempt(rng: random.Random) -> object:
        path.write_bytes(broken_bytes(rng, whole))
        return load_key(path)

    yield attempt


def traces(folder: Path) -> Iterator[Attempt]:
    """Break the beginning of a trace that another node may have begun."""
    path = folder / "trace.json"
    TraceFile(path, 0).close()
    whole = path.read_bytes()
    head = json.loads(whole)[0]

    def attempt(rng: random.Random) -> object:
        broken = broken_json(rng, head)
        path.write_bytes(b"[\n" + broken + b"\n]\n")
        trace = TraceFile(path, 0)
        trace.write({"name": "x"})
        trace.close()
        if not path.read_bytes().startswith(b"[\n" + broken):  # it was begun anew
            raise UnreadError
        return None

    yield attempt


def segments(_folder: Path) -> Iterator[Attempt]:
    value = encode({"a": np.arange(600.0), "b": np.zeros(5_000, bool), "c": "x"}, borrow=True)
    with closing(Segment(slot_bytes=slot_bytes_of(value))) as segment:
        segment.write(value)
        path = DIRECTORY / segment.name
        whole = path.read_bytes()
        fd = os.open(path, os.O_RDWR)
        begin = len(whole) - 3 * segment.slot_bytes

        def attempt(rng: random.Random) -> object:
            places = [0, 8, 16, 64, begin, begin + 4, begin + 8, begin + 12, begin + 20]
            at = rng.choice([*places, rng.randrange(4096 + 600)])
            number = rng.choice([0, 1, 2, 3, 2**31, 2**32 - 1, 2**63, rng.getrandbits(64)])
            piece = struct.pack("<Q", number)[: rng.choice([1, 4, 8])]
            os.pwrite(fd, piece, at)
            if rng.random() < 0.7:  # a checksum that is right lets the fault in further
                head = os.pread(fd, 1 << 16, begin)
                meta, buffers, _ = struct.unpack_from("<III", head)
                body = head[12 : 12 + 8 * buffers + meta]
                os.pwrite(fd, struct.pack("<I", zlib.crc32(body)), begin + 8)
            try:
                with closing(SegmentReader(segment.name)) as reader:
                    return decode(*reader.read(lambda size: memoryview(bytearray(size)), 1))
            finally:
                os.pwrite(fd, whole[: begin + (1 << 16)], 0)

        yield attempt
        os.close(fd)

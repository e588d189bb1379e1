"""Hostile values are refused at the sender, and all other values still arrive."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from ding_lite.errors import CodecError, RemoteError
from ding_lite.parallel.wire.codec import MAX_META_BYTES, decode, encode
from ding_lite.records import register
from tests.parallel.router.test_node_router import Start, raise_
from tests.parallel.tcp import Recorder, wait_until
from tests.parallel.wire.test_codec import (
    UNSENDABLE as ROWS,
    Episode,
    Frozen,
    MyStr,
    Rude,
    same,
    scalars,
    travel,
    trees_of,
)


@register(name="test_hostile_values.Exits")
@dataclasses.dataclass
class Exits:
    """Raises SystemExit when a receiver constructs it."""

    number: int

    def __post_init__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise SystemExit(self.number)


UNSENDABLE = {name: value for name, (value, _, _) in ROWS.items()}


def test_bools_made_of_other_bytes_arrive_as_bools() -> None:
    sent = torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool)
    assert travel(sent).tolist() == [False, True, True, True]
    assert travel(sent.numpy()[::-1]).tolist() == [True, True, True, False]


class Named(str):
    """A placeholder for a value that hypothesis cannot print."""


def put_in(tree: Any) -> Any:
    if type(tree) is Named:
        return UNSENDABLE[tree]
    if type(tree) in (list, tuple):
        return type(tree)(map(put_in, tree))
    if type(tree) is dict:
        return {key: put_in(value) for key, value in tree.items()}
    if type(tree) in (Episode, Frozen):
        fields = {f.name: put_in(getattr(tree, f.name)) for f in dataclasses.fields(tree)}
        return type(tree)(**fields)
    return tree


hostile = st.one_of(
    *(scalars, st.integers(-(2**70), 2**70), st.text(st.characters(), max_size=5)),
    st.sampled_from([*UNSENDABLE][:36]).map(Named),
    st.tuples(scalars, st.integers(1, 20)).map(lambda pair: within(*pair)),
)
hostile_keys = st.one_of(
    st.text(st.characters(), max_size=3), st.integers(-(2**70), 2**70), st.builds(MyStr)
)


def within(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(trees_of(hostile, hostile_keys))
def test_any_value_arrives_unchanged_or_raises_at_the_sender(tree: Any) -> None:
    tree = put_in(tree)
    try:
        encoded = encode(tree)
    except CodecError:
        return
    assert same(decode(encoded.meta, encoded.buffers), tree)


def test_a_concurrently_changed_value_arrives_as_one_of_its_states() -> None:
    tree: dict[str, Any] = {"list": [0] * 50, "dict": {k: k for k in range(50)}, "set": {0}}
    is_over = threading.Event()

    def change() -> None:
        while not is_over.is_set():
            for k in range(50, 80):
                tree["dict"][k] = k
                tree["list"].append([9, "x"])
                tree["set"].add(k)
            for k in range(50, 80):
                del tree["dict"][k]
                tree["list"].pop()
                tree["set"].discard(k)

    def check() -> None:
        for _ in range(1_000):
            with suppress(CodecError):  # it has seen that the value changes
                encoded = encode(tree)
                found = decode(encoded.meta, encoded.buffers)
                assert all(key == value for key, value in found["dict"].items())
                assert all(item in (0, [9, "x"]) for item in found["list"])

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        try:
            check()
        finally:
            is_over.set()
        changing.result()


def test_a_ctx_value_that_cannot_be_encoded_is_left_out_with_one_warning(start, caplog) -> None:
    routers = start(2)
    recorder = Recorder(routers[1])
    values: dict[Any, Any] = {f"bad {k}": value for k, value in enumerate(UNSENDABLE.values())}
    values |= {"\ud800": 1, 5: 1, MyStr("subclass"): 1, "k" * 2_000: 1, None: 1, Rude(): 1}
    with caplog.at_level(logging.WARNING, logger="ding_lite"):
        for step in range(3):
            routers[0].publish_ctx({**values, "step": step})
            recorder.wait(lambda step=step: recorder.ctx.get(0, {}).get("step") == step)  # type: ignore[misc]
    assert set(recorder.ctx[0]) == {"step"}
    assert routers[1].links.dropped.count == 0
    stays = [r for r in caplog.records if "stays on node 0: " in r.getMessage()]
    assert len(stays) == len(values)
    assert any("`task.share" in record.getMessage() for record in stays)


def test_a_name_or_an_argument_that_cannot_be_encoded_raises_at_the_caller(start: Start) -> None:
    routers = start(2)
    recorder = Recorder(routers[1])
    routers[1].register("take", lambda *args, **kwargs: None)
    gives: list[Callable[[Any], object]] = [
        lambda value: routers[0].emit("message", value),
        lambda value: routers[0].emit("message", named=value),
        lambda value: routers[0].call(1, "take", value),
        lambda value: routers[0].send("items", value, to="node.1"),
        lambda value: routers[0].publish("topic", value),
    ]
    for value in UNSENDABLE.values():
        for give in gives:
            with pytest.raises(CodecError):
                give(value)
    names: list[Any] = ["", "\ud800", 5, None, MyStr("message")]
    for name in names:
        with pytest.raises(CodecError):
            routers[0].emit(name)
        with pytest.raises(CodecError):
            routers[0].call(1, name)
    routers[0].emit("message", 1)
    recorder.wait(lambda: bool(recorder.events))
    assert recorder.events == [(0, "message", (1,))]
    assert not routers[1].subscribe("topic").newest
    assert routers[1].links.dropped.count == 0


@pytest.mark.parametrize("size", [200_000, MAX_META_BYTES - 1_100])
def test_many_large_text_events_arrive(start: Start, size: int) -> None:
    routers = start(2)
    recorder = Recorder(routers[1])
    for number in range(20):
        routers[0].emit("message", number, "x" * size)
    recorder.wait(lambda: len(recorder.events) == 20)
    assert [args[0] for _, _, args in recorder.events] == [*range(20)]
    assert routers[1].links.dropped.count == 0


class RudeError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_every_result_and_error_of_a_handler_is_answered(start: Start) -> None:
    routers = start(2)
    cancelled: Future[None] = Future()
    cancelled.cancel()
    errors: dict[str, BaseException] = {
        "surrogates": ValueError("\ud800" * 10),
        "long": ValueError("x" * 5_000_000),
        "rude": RudeError(),
        "exit": SystemExit(3),
        "cancelled": asyncio.CancelledError(),
        "generator": GeneratorExit(),
        "stop": StopIteration(),
    }
    errors["noted"] = noted = ValueError("noted")
    noted.add_note("\udfff")
    for k, quick in enumerate((False, True)):
        routers[1].register(f"fail {k}", lambda name: raise_(errors[name]), quick=quick)
        routers[1].register(f"give {k}", UNSENDABLE.__getitem__, quick=quick)
        routers[1].register(f"put off {k}", lambda: cancelled, quick=quick)
        for name in errors:
            with pytest.raises(RemoteError, match=type(errors[name]).__name__):
                routers[0].call(1, f"fail {k}", name, timeout=10.0)
        for name in UNSENDABLE:
            with pytest.raises(RemoteError, match="CodecError"):
                routers[0].call(1, f"give {k}", name, timeout=10.0)
        with pytest.raises(RemoteError, match="CancelledError"):
            routers[0].call(1, f"put off {k}", timeout=10.0)
    assert routers[0].links.dropped.count == routers[1].links.dropped.count == 0


@pytest.mark.parametrize("error", [ValueError(), SystemExit(1), asyncio.CancelledError()])
def test_an_error_of_a_listener_affects_only_its_call(start, error: BaseException, caplog) -> None:
    routers = start(2)
    routers[1].on("message", partial(raise_, error))
    recorder = Recorder(routers[1])
    for number in range(10):
        routers[0].emit("message", number)
    recorder.wait(lambda: len(recorder.events) == 10)
    assert "in raise_" in caplog.text
    routers[1].register("double", lambda number: 2 * number)
    assert routers[0].call(1, "double", 4, timeout=10.0) == 8


def test_an_event_with_a_failing_constructor_affects_no_other_event(start: Start) -> None:
    routers = start(2)
    recorder = Recorder(routers[1])
    for number in range(100):
        routers[0].emit("message", number if number % 10 else Exits(number))
    recorder.wait(lambda: len(recorder.events) == 90)
    assert [args[0] for _, _, args in recorder.events] == [n for n in range(100) if n % 10]
    wait_until(lambda: routers[1].links.dropped.count == 10)


def test_a_call_or_item_with_a_failing_constructor_is_an_error_at_its_sender(start, caplog) -> None:
    routers = start(2)
    routers[1].register("echo", lambda value: value)
    with pytest.raises(RemoteError, match=r"`test_hostile_values\.Exits` cannot be built"):
        routers[0].call(1, "echo", Exits(1), timeout=10.0)
    for _ in range(4):
        assert routers[0].send("work", Exits(1), to="node.1", timeout=10.0)
    assert routers[0].send("work", 2, to="node.1", timeout=10.0)
    item: Any = routers[1].receive("work", timeout=10.0)
    assert item.value == 2
    assert "node 1 took no item of `work`: CodecError on node 1" in caplog.text


def test_a_ctx_value_with_a_failing_constructor_is_dropped(start: Start) -> None:
    routers = start(2)
    recorder = Recorder(routers[1])
    routers[0].publish_ctx({"exits": Exits(1), "beside": 1})
    recorder.wait(lambda: "beside" in recorder.ctx.get(0, {}))
    assert "exits" not in recorder.ctx[0]
    routers[0].publish_ctx({"exits": None, "large": np.ones(200_000)})
    recorder.wait(lambda: "large" in recorder.ctx.get(0, {}))
    routers[0].publish_ctx({"large": [Exits(1), np.ones(200_000)]})
    routers[0].publish_ctx({"large": np.zeros(200_000), "step": 2})
    recorder.wait(lambda: recorder.ctx[0].get("step") == 2 and not recorder.ctx[0]["large"].any())

"""Large ctx values between nodes of one machine: through segments, whole, and without a leak."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite.parallel.link import drain
from ding_lite.parallel.memory import segments as memory
from ding_lite.parallel.memory.segments import Announcement, Published, Segment
from ding_lite.parallel.memory.shared_values import MIN_SHARED_BYTES, SharedReceiver, SharedSender
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.wire.codec import Encoded, decode, encode
from tests.parallel.memory.processes import full, hang, line_of, process, publish, segments
from tests.parallel.router.test_node_router import raise_
from tests.parallel.tcp import Recorder, ipc_specs, wait_until

pytestmark = pytest.mark.skipif(not memory.domain(), reason="no memory to share on this platform")

LARGE = 2 * MIN_SHARED_BYTES // 8
Start = Callable[..., list[NodeRouter]]


@pytest.fixture(autouse=True)
def _does_not_wait_for_lost_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "FAREWELL_TIMEOUT_S", 0.0)


class TestRouters:
    def test_a_state_of_10_mb_arrives_as_a_snapshot_in_tensors_that_may_be_changed(self, start):
        routers = start(2)
        recorder = Recorder(routers[1])
        state = {f"layer {k}": torch.full((125_000,), float(k)) for k in range(20)}
        routers[0].publish_ctx({"train_iter": 3, "state_dict": state})
        for tensor in state.values():
            tensor.zero_()
        recorder.wait(lambda: "state_dict" in recorder.ctx.get(0, {}))
        assert recorder.ctx[0]["train_iter"] == 3
        arrived = recorder.ctx[0]["state_dict"]
        assert list(arrived) == list(state)
        for k, tensor in enumerate(arrived.values()):
            assert torch.equal(tensor, torch.full((125_000,), float(k)))
            tensor += 1
        assert len(segments(os.getpid())) == 1
        routers[0].publish_ctx({"small": np.zeros(1_000)})
        recorder.wait(lambda: "small" in recorder.ctx[0])
        assert len(segments(os.getpid())) == 1

    def test_a_state_that_grows_moves_to_a_larger_segment_and_the_old_one_goes(self, start) -> None:
        routers = start(2)
        recorder = Recorder(routers[1])
        for number in range(1, 12):
            size = LARGE * number
            routers[0].publish_ctx({"w": full(number, size)})
            recorder.wait(lambda size=size: len(recorder.ctx.get(0, {"w": []})["w"]) == size)  # type: ignore[misc]
        routers[0].publish_ctx({"w": full(0)})
        recorder.wait(lambda: len(recorder.ctx[0]["w"]) == LARGE)
        routers[0].publish_ctx({"w": full(0)})
        assert len(segments(os.getpid())) <= 2

    def test_a_late_or_restarted_node_gets_the_newest_value(self, start, tmp_path) -> None:
        with closing(NodeRouter(ipc_specs(tmp_path, 2, "star")[0])) as first:
            for number in range(5):
                first.publish_ctx({"w": full(number)})
            for incarnation in (1, 2):
                again = NodeRouter(ipc_specs(tmp_path, 2, "star", incarnation=incarnation)[1])
                recorder = Recorder(again)
                recorder.wait(lambda recorder=recorder: 0 in recorder.ctx)  # type: ignore[misc]
                assert (recorder.ctx[0]["w"] == 4).all()
                again._transport.close()
                again.close(good_bye=False)

    def test_the_last_values_arrive_although_their_sender_ends_at_once(self, start: Start) -> None:
        routers = start(2)
        recorder = Recorder(routers[1])
        routers[0].publish_ctx({"w": full(7)})
        routers[0].close()
        recorder.wait(lambda: 0 in recorder.ctx)
        assert (recorder.ctx[0]["w"] == 7).all()
        assert not segments(os.getpid())

    def test_without_common_memory_the_bytes_travel(self, start, monkeypatch) -> None:
        """As with a container that has a /dev/shm of its own."""
        domains = iter(["here", "there"])
        monkeypatch.setattr("ding_lite.parallel.router.node_router.domain", lambda: next(domains))
        routers = start(2)
        recorder = Recorder(routers[1])
        for number in range(50):
            routers[0].publish_ctx({"w": full(number), "n": number})
        recorder.wait(lambda: recorder.ctx.get(0, {}).get("n") == 49)
        assert (recorder.ctx[0]["w"] == 49).all()
        assert routers[1]._topics._shared_receiver._thread is None

    @pytest.mark.parametrize(
        ("code", "advice"),
        [
            (errno.ENOSPC, "Give it more room; in a container, with `--shm-size`."),
            (errno.EMFILE, "`ulimit -n 4096` raises the limit."),
        ],
    )
    def test_without_room_the_bytes_travel_with_one_warning(
        self, start, monkeypatch, caplog, code, advice
    ):
        error = OSError(code, os.strerror(code))
        monkeypatch.setattr(os, "posix_fallocate", partial(raise_, error))
        routers = start(2)
        recorder = Recorder(routers[1])
        for number in range(3):
            routers[0].publish_ctx({"w": full(number)})
        recorder.wait(lambda: 0 in recorder.ctx and recorder.ctx[0]["w"][0] == 2)
        [warning] = [r.message for r in caplog.records if "/dev/shm" in r.message]
        assert warning.endswith(advice)
        assert not segments(os.getpid())


class TestForgedAnnouncements:
    @pytest.mark.parametrize(
        ("name", "version"),
        [
            *(("../../etc/passwd", 1), ("ding_lite-nowhere", 1), ("ding_lite-nowhere", {})),
            *((["list"], {}), ("real", 0), ("real", 2), ("real", "1"), ("real", {})),
        ],
    )
    def test_are_dropped_and_the_next_ctx_arrives(self, start: Start, name: Any, version: Any):
        routers = start(2)
        recorder = Recorder(routers[1])
        with closing(Segment(slot_bytes=1_000)) as real:
            real.write(encode("secret"))
            forged = Announcement(real.name if name == "real" else name, version)
            routers[0].publish_ctx({"w": forged, "n": 1})
            recorder.wait(lambda: recorder.ctx.get(0, {}).get("n") == 1)
            assert "w" not in recorder.ctx[0]
            routers[0].publish_ctx({"n": 2})
            recorder.wait(lambda: recorder.ctx[0]["n"] == 2)

    def test_are_not_followed_for_a_peer_that_shares_no_memory(self, start, monkeypatch) -> None:
        domains = iter(["here", "there"])
        monkeypatch.setattr("ding_lite.parallel.router.node_router.domain", lambda: next(domains))
        routers = start(2)
        recorder = Recorder(routers[1])
        with closing(Segment(slot_bytes=1_000)) as real:
            published = real.write(encode("secret"))
            assert published is not None
            routers[0].publish_ctx({"w": published.announcement})
            wait_until(lambda: routers[1].links.dropped.count == 1)
            routers[0].publish_ctx({"n": 2, "w": 3})
            recorder.wait(lambda: bool(recorder.ctx))
        assert recorder.ctx[0] == {"n": 2, "w": 3}
        assert routers[1].links.dropped.count == 1


class TestProcesses:
    def test_a_hung_reader_pins_one_slot_and_a_killed_one_none(self, tmp_path: Path) -> None:
        with closing(NodeRouter(ipc_specs(tmp_path, 2, "star")[0])) as router:
            with process(hang, router.address) as stuck:
                router.wait_ready(10.0)
                recorder = Recorder(router)
                router.publish_ctx({"w": full(0)})
                assert line_of(stuck) == "stuck"
                for number in range(200):
                    router.publish_ctx({"w": full(number)})
                (segment,) = router._shared_sender._segments.values()
                assert len(segments(os.getpid())) == 1
                assert segment.num_used_slots <= 4
            recorder.wait(lambda: bool(recorder.events))
            for number in range(200):
                router.publish_ctx({"w": full(number)})
            assert segment.num_used_slots <= 4
            held = [lease for lease in segment._leases if lease() is not None]
            assert len(held) == 1

    def test_surviving_nodes_remove_the_segments_of_a_killed_one(self, tmp_path: Path) -> None:
        with closing(NodeRouter(ipc_specs(tmp_path, 2, "star")[0])) as router:
            with process(publish, router.address) as peer:
                recorder = Recorder(router)
                recorder.wait(lambda: 1 in recorder.ctx)
                assert len(segments(peer.pid)) == 1
            recorder.wait(lambda: bool(recorder.events))
        assert (recorder.ctx[1]["w"] == 1).all()
        assert not segments(peer.pid)


class TestSender:
    def test_after_the_end_values_are_kept_as_bytes(self) -> None:
        sender = SharedSender(1)
        published = sender.keep("w", encode(full(1), borrow=True))
        assert isinstance(published, Published)
        sender.close()
        assert isinstance(sender.keep("w", encode(full(1), borrow=True)), Encoded)
        assert not segments(os.getpid())

    def test_without_local_peers_a_value_is_kept_as_bytes(self) -> None:
        """Of arrays of any size, and of an empty one."""
        sender = SharedSender(0)
        tree = {"large": full(1), "few": np.arange(2_100.0), "none": np.zeros((0, 3))}
        kept = sender.keep("w", encode(tree, borrow=True))
        assert isinstance(kept, Encoded)
        for array in tree.values():
            array[:] = 7
        arrived = decode(kept.meta, kept.buffers)
        np.testing.assert_array_equal(arrived["large"], full(1))
        np.testing.assert_array_equal(arrived["few"], np.arange(2_100.0))
        assert arrived["none"].shape == (0, 3)
        with pytest.raises(ValueError, match="read-only"):
            arrived["large"][0] = 3

    def test_the_memory_of_a_snapshot_is_used_again_once_it_is_gone(self) -> None:
        sender = SharedSender(0)

        def address(kept: Any) -> int:
            return np.frombuffer(kept.buffers[0], np.uint8).ctypes.data

        first = sender.keep("w", encode(full(1), borrow=True))
        second: Any = sender.keep("w", encode(full(2), borrow=True))
        place = address(first)
        assert address(second) != place
        del first
        assert address(sender.keep("w", encode(full(3), borrow=True))) == place
        assert (decode(second.meta, second.buffers) == 2).all()


def test_nothing_is_delivered_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small message that follows a large one of the same peer waits for it."""
    got: list[Any] = []
    may_read = threading.Event()
    receiver = SharedReceiver(lambda peer, values, number: got.append(values["w"]), got.append)
    sender = SharedSender(1)
    published = sender.keep("w", encode(full(1), borrow=True))
    assert isinstance(published, Published)

    def wait_and_make(name: str) -> memory.SegmentReader:
        may_read.wait()
        return memory.SegmentReader(name)

    monkeypatch.setattr("ding_lite.parallel.memory.shared_values.SegmentReader", wait_and_make)
    busy = [receiver.is_busy]
    receiver.put(1, {"w": published.announcement}, 1)
    busy.append(receiver.is_busy)
    receiver.put(1, {"w": 2}, 0)
    may_read.set()
    receiver.close()
    sender.close()
    assert busy == [False, True]
    assert [type(value) for value in got] == [np.ndarray, int]


def test_a_raising_receiver_does_not_stop_later_deliveries(caplog) -> None:
    got: list[int] = []

    def deliver(peer: int, values: dict[str, Any], number: int) -> None:
        got.append(number)
        if number == 1:
            raise RuntimeError("the listener's own fault")

    receiver = SharedReceiver(deliver, lambda reason: None)
    for number in (1, 2):
        receiver.put(0, {}, number)
    receiver.close()
    assert got == [1, 2]
    assert "could not be delivered" in caplog.text
    assert "the listener's own fault" in caplog.text

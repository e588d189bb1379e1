"""Share large values between the nodes of one machine, topic by topic.

`SharedSender` writes a node's values into segments, one segment per topic. `SharedReceiver` turns
the announcements of peers back into values, on its own thread, so that heartbeats and events do not
wait while a hundred megabytes are copied.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from queue import Queue
from typing import Any

from ding_lite.errors import CodecError
from ding_lite.io.files import limit_of
from ding_lite.log import Throttle
from ding_lite.parallel.memory.copying import copy_all
from ding_lite.parallel.memory.pool import Pool, parts, places
from ding_lite.parallel.memory.segments import (
    Announcement,
    Overtaken,
    Published,
    Segment,
    SegmentReader,
    remove_left_over,
    slot_bytes_of,
)
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.wire.arrays import MAX_PAYLOAD_BYTES
from ding_lite.parallel.wire.codec import Encoded, decode

logger = logging.getLogger(__name__)

MIN_SHARED_BYTES = 256 * 1024
"""Values with fewer bytes of arrays are sent by socket, which is as fast."""
CLOSE_TIMEOUT_S = 5.0
"""Seconds for which `close` waits for a slow receiver."""
_ROOM_TO_GROW = 1.125


def local_peers(spec: NodeSpec) -> frozenset[int]:
    """Return the peers that are connected to a node through socket files."""
    addresses = {peer: spec.dials.get(peer, spec.listen or "") for peer in spec.peers}
    return frozenset(peer for peer, at in addresses.items() if at.startswith("ipc://"))


class SharedSender:
    """Keeps a node's values for its peers: the large ones in segments, the others as bytes.

    At most `num_receivers` peers read the segments; with 0 no segments are made.
    """

    def __init__(self, num_receivers: int) -> None:
        self._num_receivers = num_receivers
        self._segments: dict[str, Segment] = {}
        self._retired: list[Segment] = []
        self._pools: dict[str, Pool] = {}
        self._throttle = Throttle(logger)
        self._lock = threading.Lock()
        self._is_closed = False
        if num_receivers:
            remove_left_over()

    def keep(self, key: str, borrowed: Encoded) -> Published | Encoded:
        """Copy a value that was encoded with `borrow=True`, so that the original may change."""
        payload = sum(buffer.nbytes for buffer in borrowed.buffers)
        if self._num_receivers and MIN_SHARED_BYTES <= payload <= MAX_PAYLOAD_BYTES:
            published = self._publish(key, borrowed)
            if published is not None:
                return published
        return _snapshot(borrowed, self._pools.setdefault(key, Pool()))

    def _publish(self, key: str, borrowed: Encoded) -> Published | None:
        with self._lock:
            if self._is_closed:
                return None
            try:
                return self._segment_for(key, slot_bytes_of(borrowed)).write(borrowed)
            except OSError as error:
                advice = limit_of(error)
                if error.errno == errno.ENOSPC:
                    advice = "Give it more room; in a container, with `--shm-size`."
                text = "`%s` is sent by socket, which is slower: /dev/shm did not take it (%s). "
                self._throttle.once(logging.WARNING, "no room", text + advice, key, error)
                return None

    def _segment_for(self, key: str, slot_bytes: int) -> Segment:
        for old in [each for each in self._retired if each.is_idle]:
            self._retired.remove(old)
            old.close()
        segment = self._segments.get(key)
        if segment is not None and segment.slot_bytes >= slot_bytes:
            return segment
        if segment is not None:
            self._retired.append(self._segments.pop(key))
        # Each peer may have one version waiting and one under way; one is the newest, and one
        # is being written.
        self._segments[key] = Segment(
            slot_bytes=int(_ROOM_TO_GROW * slot_bytes),
            num_slots=2 * self._num_receivers + 2,
        )
        return self._segments[key]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for segment in (*self._segments.values(), *self._retired):
                segment.close()
            self._segments.clear()
            self._retired.clear()


def _snapshot(borrowed: Encoded, pool: Pool) -> Encoded:
    sizes = [buffer.nbytes for buffer in borrowed.buffers]
    starts, nbytes = places(sizes)
    views = [*parts(pool.allocate(nbytes), starts, sizes)]
    copy_all(zip(views, borrowed.buffers, strict=True))
    return Encoded(borrowed.meta, [view.toreadonly() for view in views], borrowed.num_arrays)


class SharedReceiver:
    """Reads announced values on its own thread, started by the first announcement.

    On that thread it calls `deliver` with a peer, its values and the number of their message, or
    `reject` with the reason why a value was dropped.
    """

    def __init__(
        self, deliver: Callable[[int, dict[str, Any], int], None], reject: Callable[[str], None]
    ) -> None:
        self._deliver = deliver
        self._reject = reject
        self._readers: dict[tuple[int, str], SegmentReader] = {}
        self._pools: dict[tuple[int, str], Pool] = {}
        self._jobs: Queue[Callable[[], None] | None] = Queue()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self._jobs.unfinished_tasks > 0

    def put(self, peer: int, values: Mapping[str, Any], number: int) -> None:
        """Queue a peer's values; announced ones are read, and all are delivered in order."""
        self._jobs.put(partial(self._receive, peer, values, number))
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="ding_lite-shared-state", daemon=True
            )
            self._thread.start()

    def forget(self, peer: int) -> None:
        """Close a peer's segments; remove them if it was killed."""
        if self._thread is not None:
            self._jobs.put(partial(self._forget, peer))

    def close(self) -> None:
        """Deliver the queued values, and end the thread; one that hangs is left alone."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(CLOSE_TIMEOUT_S)

    # -- on the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException:  # a record's class may raise anything, a SystemExit too
                logger.exception("a value that a peer has published could not be delivered")
            finally:
                self._jobs.task_done()
        for reader in self._readers.values():
            reader.close()

    def _receive(self, peer: int, values: Mapping[str, Any], number: int) -> None:
        found = {}
        for key, value in values.items():
            if not isinstance(value, Announcement):
                found[key] = value
                continue
            try:
                found[key] = self._read(peer, key, value)
            except Overtaken:
                continue  # a newer value is on its way, unless the peer has just ended
            except (CodecError, MemoryError) as error:
                self._reject(f"What node {peer} announced as `{key}`: {error}")
        self._deliver(peer, found, number)

    def _read(self, peer: int, key: str, announcement: Announcement) -> Any:
        if type(announcement.version) is not int or announcement.version < 1:
            raise CodecError("the number of a version is none")
        place = peer, key
        reader = self._readers.get(place)
        if reader is None or reader.name != announcement.segment:
            if reader is not None:
                self._readers.pop(place).close()
            reader = self._readers[place] = SegmentReader(announcement.segment)
        pool = self._pools.setdefault(place, Pool())
        return decode(*reader.read(pool.allocate, announcement.version))

    def _forget(self, peer: int) -> None:
        names = []
        for place in [place for place in self._readers if place[0] == peer]:
            reader = self._readers.pop(place)
            self._pools.pop(place, None)
            names.append(reader.name)
            reader.close()
        remove_left_over(names)

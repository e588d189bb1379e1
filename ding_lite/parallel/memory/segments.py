"""Shared-memory segments for large values: one node writes, the others copy.

A segment is a file in /dev/shm, of mode 0600, with several slots. Its writer fills a slot that is
not needed any more, and then announces the version in it; readers copy the slot. The writer never
waits for readers, and writes a value once for all of them. Each slot has a sequence number, which
is odd while the slot is being filled. A reader compares it before and after its copy, and drops the
copy if it has changed. So no reader ever sees parts of two versions, whichever process was killed.

The writer holds a lock on the file for as long as it runs. A segment with a free lock was left
behind by a crash, and other nodes remove it (`remove_left_over`).

What is ugly here and why: `multiprocessing.shared_memory` is not used: its resource tracker deletes
a segment when any process that has attached to it ends. An anonymous file (memfd) could only be
opened through /proc/<pid>/fd, which hardened systems and containers refuse.

Python has no memory fences. Releasing and acquiring a lock of the process serves as one. On x86-64
both are locked instructions, which no load or store passes, not even the streaming stores of a
large copy. On 64-bit ARM they are a store-release and a load-acquire, which are not reordered with
each other. On other machines `domain` returns "", and values are sent by socket.

A reader checks the file's owner and mode, and uses a size only after checking its own copy of it. A
writer that shortens its file would kill the reader (SIGBUS), but the writer is a process of the
same user, which could also use `kill`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import re
import secrets
import stat
import sys
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import numpy as np
import numpy.typing as npt

from ding_lite.errors import CodecError, TransportError
from ding_lite.parallel.memory.copying import copy_all
from ding_lite.parallel.memory.pool import parts, places
from ding_lite.parallel.wire.arrays import MAX_BUFFERS, MAX_PAYLOAD_BYTES
from ding_lite.parallel.wire.codec import MAX_META_BYTES, Encoded
from ding_lite.records import register

Bytes = npt.NDArray[np.uint8]

DIRECTORY = Path("/dev/shm")
PREFIX = "ding_lite-"
MIN_SLOTS = 3
"""Least slots: a reader has the time of two more writes for its copy, even of an unpinned slot."""

_MACHINES = {"x86_64", "aarch64"}
_NAME = re.compile(rf"{PREFIX}[0-9A-Za-z_-]{{1,100}}")
_MAGIC = int.from_bytes(b"DINGSHM1", "little")
_PAGE = mmap.PAGESIZE
_LINE = 64
_WORDS_IN_LINE = 8
_MAGIC_WORD, _SLOT_BYTES_WORD, _NUM_SLOTS_WORD = range(3)
_FIRST_WORDS = Struct("=QQQ")
_HEAD = Struct("<III")
_MAX_SLOTS = 4096


@register(name="ding_lite.Announcement")
@dataclass(frozen=True, slots=True)
class Announcement:
    """The place of a value in shared memory, sent instead of the value."""

    segment: str
    version: int  # from 1


@dataclass(frozen=True, slots=True)
class Published:
    """A value in a slot, which is not written again while this object is referenced."""

    announcement: Announcement
    encoded: Encoded
    """The value itself, for a peer that cannot read the slot; its buffers are views of the slot."""


class Overtaken(TransportError):
    """The announced value is gone: its writer has ended, or is faster than this reader."""


def domain() -> str:
    """Return a name that is equal in processes that can share memory; "" if this one cannot."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        status = DIRECTORY.stat()
    except OSError:
        return ""
    if not os.access(DIRECTORY, os.R_OK | os.W_OK | os.X_OK):
        return ""
    return f"{boot}:{status.st_dev}:{status.st_ino}:{os.getuid()}"


def remove_left_over(names: Sequence[str] | None = None) -> None:
    """Remove this user's segments without a running writer: all, or those of these names."""
    paths = DIRECTORY.glob(f"{PREFIX}*") if names is None else map(DIRECTORY.joinpath, names)
    for path in [*paths]:
        with suppress(OSError):  # another node may do the same at the same time
            fd = _open(path, os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)


def remove_own() -> None:
    for path in DIRECTORY.glob(f"{PREFIX}segment-{os.getpid()}-*"):
        path.unlink(missing_ok=True)


class _Fence:
    """A memory fence for one thread, which no load or store of that thread passes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        self._lock.release()
        self._lock.acquire()


class Segment:
    """The writer's side of a segment, for values of at most `slot_bytes` (see `slot_bytes_of`).

    A slot takes memory from its first use on, and a fourth slot is used only while the others are
    still needed.
    """

    def __init__(self, *, slot_bytes: int, num_slots: int = MIN_SLOTS) -> None:
        self.slot_bytes = _round_up(slot_bytes, _PAGE)
        self._begin = _header_bytes(num_slots)
        self.name, self._fd = _create()
        try:
            os.ftruncate(self._fd, self._begin + num_slots * self.slot_bytes)
            os.posix_fallocate(self._fd, 0, self._begin)
            self._map = mmap.mmap(self._fd, 0)
        except BaseException:
            self._remove_file()
            raise
        self._bytes: Bytes = np.frombuffer(self._map, np.uint8)
        self._words = memoryview(self._map)[: self._begin].cast("Q")
        self._words[_SLOT_BYTES_WORD] = self.slot_bytes
        self._words[_NUM_SLOTS_WORD] = num_slots
        self._fence = _Fence()
        self._fence()
        self._words[_MAGIC_WORD] = _MAGIC

        self._version = 0
        self._versions = [0] * num_slots
        self._leases: list[Callable[[], Bytes | None]] = [_no_lease] * num_slots

    @property
    def num_used_slots(self) -> int:
        return sum(version > 0 for version in self._versions)

    @property
    def is_idle(self) -> bool:
        """Whether no published value of this segment is referenced any more."""
        return all(lease() is None for lease in self._leases)

    def write(self, encoded: Encoded) -> Published | None:
        """Copy a value into a free slot; return None without one. OSError: no memory for it."""
        slot = self._free_slot()
        if slot is None:
            return None
        begin = self._begin + slot * self.slot_bytes
        if not self._versions[slot]:
            # Missing memory raises an error here; at the first store it would be a SIGBUS.
            os.posix_fallocate(self._fd, begin, self.slot_bytes)
        lease = self._bytes[begin : begin + self.slot_bytes]
        sequence = _sequence_word(slot)

        self._version += 1
        self._versions[slot] = self._version
        self._words[sequence] = 2 * self._version - 1
        self._fence()
        views = _fill(lease.data, encoded)
        self._fence()
        self._words[sequence] = 2 * self._version

        self._leases[slot] = weakref.ref(lease)
        return Published(
            Announcement(self.name, self._version),
            Encoded(encoded.meta, views, encoded.num_arrays),
        )

    def _free_slot(self) -> int | None:
        """Return the free slot with the oldest value, never the newest; None if there is none."""
        free = [slot for slot, lease in enumerate(self._leases) if lease() is None]
        used = [slot for slot in free if 0 < self._versions[slot] < self._version]
        if used and self.num_used_slots >= MIN_SLOTS:
            return min(used, key=self._versions.__getitem__)
        return next((slot for slot in free if not self._versions[slot]), None)

    def close(self) -> None:
        """Remove the file. The memory is freed with the last reference to it."""
        if self._fd < 0:
            return
        self._remove_file()
        self._words.release()
        del self._bytes
        with suppress(BufferError):
            self._map.close()

    def _remove_file(self) -> None:
        (DIRECTORY / self.name).unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1


def _no_lease() -> None:
    return None


def slot_bytes_of(encoded: Encoded) -> int:
    sizes = [buffer.nbytes for buffer in encoded.buffers]
    return places([_HEAD.size + 8 * len(sizes) + len(encoded.meta), *sizes])[1]


def _fill(slot: memoryview, encoded: Encoded) -> list[memoryview]:
    """Write sizes, meta, a checksum of both, and buffers; return views of the buffers."""
    sizes = [buffer.nbytes for buffer in encoded.buffers]
    body = np.array(sizes, "<u8").tobytes() + encoded.meta
    head = _HEAD.pack(len(encoded.meta), len(sizes), zlib.crc32(body)) + body
    slot[: len(head)] = head
    views = [*parts(slot, places([len(head), *sizes])[0][1:], sizes)]
    copy_all(zip(views, encoded.buffers, strict=True))
    return [view.toreadonly() for view in views]


def _create() -> tuple[str, int]:
    while True:
        name = f"{PREFIX}segment-{os.getpid()}-{secrets.token_hex(4)}"
        fd = os.open(DIRECTORY / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.fchmod(fd, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return name, fd
        os.close(fd)  # a concurrent `remove_left_over` has removed the file


class SegmentReader:
    """The reader's side of a segment, for one thread. The announced name may be untrusted."""

    def __init__(self, name: str) -> None:
        if type(name) is not str or not _NAME.fullmatch(name):
            raise CodecError(f"A segment has the impossible name {name!r:.80}.")
        self.name = name
        try:
            fd = _open(DIRECTORY / name, os.O_RDONLY)
        except FileNotFoundError as error:
            raise Overtaken(f"The segment {name} is gone.") from error
        except OSError as error:
            raise CodecError(f"The segment {name} cannot be read: {error}.") from error
        try:
            size = os.fstat(fd).st_size
            if size < _PAGE:
                raise CodecError(f"The segment {name} has only {size} bytes.")
            self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise CodecError(f"The segment {name} cannot be mapped: {error}.") from error
        finally:
            os.close(fd)
        magic, self._slot_bytes, self._num_slots = _FIRST_WORDS.unpack_from(self._map)
        self._begin = _header_bytes(self._num_slots)
        expected = self._begin + self._num_slots * self._slot_bytes
        if magic != _MAGIC or not 0 < self._num_slots <= _MAX_SLOTS or size != expected:
            self._map.close()
            raise CodecError(f"The file {name} of {size} bytes is no segment.")
        self._bytes: Bytes = np.frombuffer(self._map, np.uint8)
        # 8-byte loads are atomic: a reader never sees half of a store.
        self._words = memoryview(self._map)[: self._begin].cast("Q")
        self._fence = _Fence()

    def read(
        self, allocate: Callable[[int], memoryview], version: int
    ) -> tuple[bytes, list[memoryview]]:
        """Copy a version, as `decode` takes it; raise Overtaken if it was overwritten."""
        wanted, sequences = 2 * version, self._sequences()
        if wanted in sequences:
            slot = sequences.index(wanted)
            self._fence()
            try:
                copy = self._copy(slot, allocate)
            except CodecError:
                if self._sequence_is(slot, wanted):
                    raise
            else:
                if self._sequence_is(slot, wanted):
                    return copy
        raise Overtaken(f"The segment {self.name} does not hold version {version} any more.")

    def _sequences(self) -> list[int]:
        first = _sequence_word(0)
        return self._words[first::_WORDS_IN_LINE].tolist()[: self._num_slots]

    def _sequence_is(self, slot: int, expected: int) -> bool:
        self._fence()
        return self._words[_sequence_word(slot)] == expected

    def _copy(
        self, slot: int, allocate: Callable[[int], memoryview]
    ) -> tuple[bytes, list[memoryview]]:
        begin = self._begin + slot * self._slot_bytes
        source = self._bytes[begin : begin + self._slot_bytes]
        fixed = source[: _HEAD.size].tobytes()
        meta_bytes, num_buffers, checksum = _HEAD.unpack(fixed)
        head_bytes = _HEAD.size + 8 * num_buffers + meta_bytes
        if num_buffers > MAX_BUFFERS or meta_bytes > MAX_META_BYTES:
            raise CodecError(f"A slot has {num_buffers} buffers and {meta_bytes} bytes of meta.")
        if head_bytes > self._slot_bytes:
            raise CodecError(f"A slot of {self._slot_bytes} bytes begins with {head_bytes} bytes.")
        body = source[_HEAD.size : head_bytes].tobytes()
        if zlib.crc32(body) != checksum:
            raise CodecError(f"The checksum of what a slot of {self.name} begins with is wrong.")

        sizes = np.frombuffer(body[: 8 * num_buffers], "<u8").tolist()
        (_, *begins), end = places([head_bytes, *sizes])
        if end > self._slot_bytes or sum(sizes) > MAX_PAYLOAD_BYTES:
            raise CodecError(f"A slot of {self._slot_bytes} bytes holds {sum(sizes)} bytes.")
        first = begins[0] if begins else end
        target = memoryview(b"")
        if end > first:
            target = allocate(end - first)
            copy_all([(target, source[first:end].data)])
        buffers = [*parts(target, [begin - first for begin in begins], sizes)]
        return body[8 * num_buffers :], buffers

    def close(self) -> None:
        """Release the memory. It is freed with the last reference to it, such as a traceback."""
        self._words.release()
        del self._bytes
        with suppress(BufferError):
            self._map.close()


def _open(path: Path, flags: int) -> int:
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(fd)
    private = stat.S_IMODE(status.st_mode) == 0o600 and status.st_uid == os.getuid()
    if stat.S_ISREG(status.st_mode) and private:
        return fd
    os.close(fd)
    raise PermissionError(f"{path} is not a private file of this user")


def _header_bytes(num_slots: int) -> int:
    return _round_up(_LINE * (1 + num_slots), _PAGE)


def _sequence_word(slot: int) -> int:
    """Return the index of a slot's sequence number, each in a cache line of its own."""
    return _WORDS_IN_LINE * (1 + slot)


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step

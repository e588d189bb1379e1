"""Split large messages into chunks, and assemble them again.

A message above `CHUNK_ABOVE` bytes is announced by the sizes of its frames and follows in
pieces of at most `CHUNK_BYTES`, in order, each with its offset. The receiver lays the frames
into one block of memory and copies each piece to its place. So no single frame is large: sizes
are checked before memory is allocated, memory is touched once, and sending, receiving and
encrypting overlap. `docs/protocol.md` is the authority on the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np

from ding_lite.errors import CodecError
from ding_lite.parallel.memory.pool import Pool, keep_freed_memory, parts, places
from ding_lite.parallel.transport.base import Frame, Lane, Link

CHUNK_ABOVE = 8 * 2**20
"""The most bytes of a message that is sent whole."""
CHUNK_BYTES = 2**20
MAX_FRAME_BYTES = 16 * 2**20
"""Limit of the bytes of a frame; a connection that sends a larger one is closed."""
MAX_MESSAGE_BYTES = 2 * 2**30 + MAX_FRAME_BYTES
MAX_FRAMES = 1024
MAX_PIECES = 64
"""Limit of the pieces of different frames in one chunk."""

_MAGIC = b"DCHK"
_VERSION = 1
_BEGIN, _MORE = 1, 2
_HEAD = Struct("<4sBBHIQQ")  # magic, version, kind, no flags, frames, stream, bytes or offset
HEAD_BYTES = _HEAD.size
_SIZE = np.dtype("<u8")


def split(frames: Sequence[Frame], stream: int) -> Iterator[list[Frame]]:
    """Make the chunks of a message without a copy; a sender uses each `stream` number once."""
    sizes = np.array([memoryview(frame).nbytes for frame in frames], _SIZE)
    total = int(sizes.sum())
    yield [_head(_BEGIN, len(frames), stream, total), sizes.tobytes()]

    offset, room = 0, CHUNK_BYTES
    pieces: list[Frame] = []
    for frame in frames:
        view = memoryview(frame).cast("B")
        while view.nbytes:
            piece, view = view[:room], view[room:]
            pieces.append(piece)
            room -= piece.nbytes
            if room == 0 or len(pieces) == MAX_PIECES:
                yield [_head(_MORE, len(pieces), stream, offset), *pieces]
                offset += CHUNK_BYTES - room
                pieces, room = [], CHUNK_BYTES
    if pieces:
        yield [_head(_MORE, len(pieces), stream, offset), *pieces]


def is_chunk(frames: Sequence[Frame]) -> bool:
    return len(frames) > 0 and len(frames[0]) == HEAD_BYTES and frames[0][:4] == _MAGIC


class Assembler:
    """Assembles messages from their chunks, one at a time for each lane of each link.

    A node that is proved to own a link has at most one incomplete message per lane over all its
    links, so that it cannot displace the messages of others. Beyond `max_under_way` the oldest
    incomplete message is dropped.
    """

    def __init__(self, *, max_under_way: int, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_under_way = max_under_way
        self._max_bytes = max_bytes
        self.num_given_up = 0
        self._partial: dict[tuple[Link, Lane], _Partial] = {}
        self._pool = Pool()
        keep_freed_memory()

    def __len__(self) -> int:
        return len(self._partial)

    def make_room(self, num_more: int) -> None:
        self._max_under_way += num_more

    def take(
        self, link: Link, lane: Lane, chunk: Sequence[Frame], *, owner: int | None = None
    ) -> list[Frame] | None:
        """Take a chunk; return the message that it completes. A CodecError drops its message."""
        place = link, lane
        partial = self._partial.pop(place, None)
        magic, version, kind, flags, num_frames, stream, number = _HEAD.unpack(chunk[0])
        if magic != _MAGIC or version != _VERSION or flags or kind not in (_BEGIN, _MORE):
            raise CodecError(f"A chunk is of version {version}, kind {kind}, flags {flags}.")
        if kind == _BEGIN:  # messages are sent in sequence, so an incomplete one was aborted
            self.num_given_up += partial is not None
            partial = self._begin(chunk, num_frames, stream, number)
            partial.owner = owner
            self._make_room(owner)
        elif partial is None or partial.stream != stream or len(chunk) != 1 + num_frames:
            raise CodecError("A chunk is of no message that was announced.")
        else:
            partial.add(number, chunk[1:])
        if partial.is_complete:
            return partial.frames()
        self._partial[place] = partial  # as the newest
        return None

    def _make_room(self, owner: int | None) -> None:
        if owner is not None:
            of_owner = [place for place, each in self._partial.items() if each.owner == owner]
            for place in of_owner[: -(len(Lane) - 1)]:  # with the new one, one a lane is left
                del self._partial[place]
                self.num_given_up += 1
        while len(self._partial) >= self._max_under_way:
            del self._partial[next(iter(self._partial))]
            self.num_given_up += 1

    def forget(self, link: Link) -> None:
        for lane in Lane:
            self._partial.pop((link, lane), None)

    def _begin(self, chunk: Sequence[Frame], num_frames: int, stream: int, total: int) -> _Partial:
        if len(chunk) != 2 or not 1 <= num_frames <= MAX_FRAMES or total > self._max_bytes:
            raise CodecError(
                f"A message of {num_frames} frames and {total} bytes is announced; the limits are "
                f"{MAX_FRAMES} and {self._max_bytes}."
            )
        if memoryview(chunk[1]).nbytes != num_frames * _SIZE.itemsize:
            raise CodecError("The list of frame sizes of a message has the wrong length.")
        sizes = [int(size) for size in np.frombuffer(chunk[1], _SIZE)]
        if sum(sizes) != total:
            raise CodecError(f"The frames of a message have {sum(sizes)} bytes, not {total}.")
        starts, block_bytes = places(sizes)
        try:
            block = self._pool.allocate(block_bytes)  # pages are allocated as they are filled
        except MemoryError as error:
            raise CodecError(f"There is no memory for a message of {total} bytes.") from error
        return _Partial(stream, sizes, starts, block)


@dataclass
class _Partial:
    stream: int
    sizes: list[int]
    starts: list[int]  # of the frames in the block
    block: memoryview
    received: int = 0
    frame: int = 0
    """The index of the frame of the next byte."""
    inside: int = 0
    """The bytes of that frame received so far."""
    owner: int | None = None

    def __post_init__(self) -> None:
        self._skip_full()

    @property
    def is_complete(self) -> bool:
        return self.frame == len(self.sizes)

    def add(self, offset: int, pieces: Sequence[Frame]) -> None:
        if offset != self.received:
            raise CodecError(f"A chunk has offset {offset}; {self.received} was to come next.")
        for piece in pieces:
            size = memoryview(piece).nbytes
            if self.is_complete or not 0 < size <= self.sizes[self.frame] - self.inside:
                raise CodecError(f"A piece of {size} bytes does not fit into its frame.")
            start = self.starts[self.frame] + self.inside
            place = self.block[start : start + size]
            # Large copies by numpy let other threads run meanwhile.
            np.copyto(np.frombuffer(place, np.uint8), np.frombuffer(piece, np.uint8))
            self.received += size
            self.inside += size
            self._skip_full()

    def frames(self) -> list[Frame]:
        return [*parts(self.block, self.starts, self.sizes)]

    def _skip_full(self) -> None:
        while not self.is_complete and self.inside == self.sizes[self.frame]:
            self.frame, self.inside = self.frame + 1, 0


def _head(kind: int, num_frames: int, stream: int, number: int) -> bytes:
    return _HEAD.pack(_MAGIC, _VERSION, kind, 0, num_frames, stream, number)

"""Collective operations of processes that Hugging Face Accelerate has connected.

Each collective operation begins with a hash of its name, which all processes compare. So a process
in another operation is detected, and a missing one times out. Broadcasts are encoded like messages
between nodes: a short header that is checked, and raw numbers. Nothing is pickled or written to
disk.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from ding_lite.distributed.accelerate.accelerator import find_accelerator
from ding_lite.distributed.accelerate.prepared_replay import PreparedReplay, SavedReplay
from ding_lite.errors import CodecError, MiddlewareError, PeerLost, kind_of
from ding_lite.nest import leaves, map_leaves
from ding_lite.parallel.router.group import COLLECTIVE_TIMEOUT_S, leave_groups_at_exit
from ding_lite.parallel.wire.codec import Encoded, decode, encode
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.seeding import spawn_seeds
from ding_lite.settings.rules import check_all, positive

MAX_BROADCAST_BYTES = 1 << 30
"""The most bytes of a broadcast; a larger size in a header is refused."""
_INLINE = 12
"""Numbers that are sent with the hash itself."""
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[memoryview])


class Processes:
    """The processes of a program, seen from one of them.

    They are started by `torchrun --nproc-per-node 2 program.py`, or by `accelerate launch`;
    without either there is only one. Collective operations raise MiddlewareError if another process
    is in another operation, and PeerLost if one has died, has left, or is too late.

    Args:
        accelerator: Accelerate's `Accelerator`; by default one for this machine's GPUs, or its
            processors.
        timeout: Maximum seconds that a process waits for the others, at the start and in a
            collective operation. It must allow for the slowest evaluation.

    Raises:
        ConfigError: Several processes were asked for, and this one is alone; or it has no rank
            among them.
        MissingExtraError: Accelerate is not installed.
        PeerLost: The other processes have not come within `timeout`.

    Example:
        >>> processes = Processes()
        >>> processes.rank, processes.size, processes.gather("counts", [3.0]).tolist()
        (0, 1, [[3.0]])
    """

    def __init__(
        self,
        accelerator: Any = None,  # noqa: ANN401 - Accelerate comes without types
        *,
        timeout: float = COLLECTIVE_TIMEOUT_S,
    ) -> None:
        check_all(
            positive(timeout=timeout),
            []
            if accelerator is None or hasattr(accelerator, "num_processes")
            else [
                f"`accelerator` is {kind_of(accelerator)}; Accelerate's `Accelerator()` was "
                f"expected, or none"
            ],
        )
        self.accelerator = find_accelerator(accelerator, timeout)
        """Accelerate's `Accelerator`."""
        self.size = int(self.accelerator.num_processes)
        """The number of processes."""
        self.rank = int(self.accelerator.process_index)
        """The rank of this process, from 0."""
        self._timeout = timeout
        self._num_operations = 0
        self._device, self._group = torch.device("cpu"), None
        if self.size > 1:
            if torch.distributed.get_backend() == "nccl":
                self._device = self.accelerator.device
            # A separate group with its own timeout: that of an accelerator that was given waits
            # half an hour, and a process that has given up could not exit during its operations.
            self._group = torch.distributed.new_group(timeout=timedelta(seconds=timeout))
            leave_groups_at_exit(self._let_go)

    @property
    def is_main(self) -> bool:
        """Whether this is the process that evolves, reports and saves."""
        return self.rank == 0

    def seed(self, seed: int) -> int:
        """Return a seed that differs between processes."""
        return spawn_seeds(seed, "processes", count=self.size)[self.rank]

    def prepare(self, replay: SavedReplay) -> PreparedReplay:
        """Return a replay that samples through a data loader that Accelerate has prepared."""
        return PreparedReplay(self.accelerator, replay)

    # -- collective operations -------------------------------------------------------------------

    def gather(self, name: str, values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Gather a few numbers of all processes, a row for each.

        Args:
            name: The name of the operation, the same on every process.
            values: Equally many on every process.
        """
        mine = np.asarray(values, dtype=np.float64)
        if self.size == 1:
            return mine[None]
        if len(mine) <= _INLINE:
            return self._exchange(name, len(mine), mine)[:, : len(mine)]
        self._exchange(name, len(mine))
        return self._all_gather(torch.from_numpy(mine)).numpy()

    def mean(self, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the means of tensors over all processes, the same to the last bit on each."""
        if self.size == 1 or not tensors:
            return [tensor.clone() for tensor in tensors]
        flat = torch.cat([tensor.detach().reshape(-1).float().cpu() for tensor in tensors])
        self._exchange(name, len(flat))
        mean = self._all_gather(flat).mean(dim=0)
        parts = torch.split(mean, [tensor.numel() for tensor in tensors])
        pairs = zip(parts, tensors, strict=True)
        return [part.view_as(tensor).to(tensor.device, tensor.dtype) for part, tensor in pairs]

    def broadcast(self, name: str, tree: Any) -> Any:  # noqa: ANN401 - any tree of values
        """Return the main process's tree of values on every process.

        Args:
            name: The name of the operation, the same on every process.
            tree: Values that can be sent between nodes; only those of the main process are used.

        Raises:
            CodecError: The tree cannot be sent, or the received bytes are no message.
        """
        if self.size == 1:
            return tree
        packed = _pack(encode(tree, name=name)) if self.is_main else torch.empty(0)
        nbytes = int(self._exchange(name, 0, [packed.nbytes])[0, 0])
        if not 0 <= nbytes <= MAX_BROADCAST_BYTES:
            raise CodecError(
                f"The main process announces {nbytes:,} bytes; the limit is "
                f"{MAX_BROADCAST_BYTES:,}. Broadcast less at a time."
            )
        buffer = packed if self.is_main else torch.empty(nbytes, dtype=torch.uint8)
        buffer = buffer.to(self._device)
        self._wait(torch.distributed.broadcast(buffer, src=0, group=self._group, async_op=True))
        return tree if self.is_main else _unpack(buffer.cpu())

    def check_same(self, what: str, tree: Any, *, generation: int) -> None:  # noqa: ANN401
        """Raise unless all processes have the same tree of values.

        Raises:
            MiddlewareError: A process has another tree than the main process.
        """
        digest = digest_of(tree)
        words = [float(word) for word in np.frombuffer(digest, dtype=">u4")]
        rows = self.gather(f"check {what}", words)
        others = [rank for rank, row in enumerate(rows) if (row != rows[0]).any()]
        if others:
            raise MiddlewareError(
                f"In generation {generation} the {what} of rank {', '.join(map(str, others))} "
                f"differs from that of the main process, rank 0 (this is rank {self.rank}). Make "
                f"it from the same seed and settings on all of them; later on whatever changes "
                f"it has to come before `share_generation`."
            )

    def _let_go(self) -> None:
        self._group = None

    def _exchange(
        self, name: str, size: int, inline: Sequence[float] | NumpyArray = ()
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Check that all processes are in the same operation; return the numbers sent with it."""
        self._num_operations += 1
        word = np.zeros(3 + _INLINE)
        word[:3] = zlib.crc32(name.encode()), self._num_operations, size
        word[3 : 3 + len(inline)] = inline
        rows = self._all_gather(torch.from_numpy(word)).numpy()
        others = [rank for rank, row in enumerate(rows) if (row[:3] != word[:3]).any()]
        if others:
            raise MiddlewareError(
                f"Rank {self.rank} has come to `{name}`, its operation {self._num_operations} of "
                f"all processes together, with {size} numbers; rank {', '.join(map(str, others))} "
                f"is at another one: operation {[int(rows[rank, 1]) for rank in others]}, with "
                f"{[int(rows[rank, 2]) for rank in others]} numbers. Every process has to call the "
                f"same ones, in the same order: no call may be behind `if processes.is_main`."
            )
        return rows[:, 3:]

    def _all_gather(self, mine: Tensor) -> Tensor:
        mine = mine.to(self._device)
        rows = mine.new_empty((self.size, *mine.shape))
        self._wait(
            torch.distributed.all_gather([*rows.unbind()], mine, group=self._group, async_op=True)
        )
        return rows.cpu()

    def _wait(self, work: Any) -> None:  # noqa: ANN401 - torch's stubs leave it out
        try:
            work.wait(timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise PeerLost(
                f"Rank {self.rank} of {self.size} has waited for the other processes in vain: one "
                f"has died, has left, has not come within {self._timeout:g} s, or has called "
                f"fewer operations of all together ({error}). Look for the first error of the "
                f"others, and start all of them again."
            ) from error


def digest_of(tree: Any) -> bytes:  # noqa: ANN401 - any tree of values
    """Return a digest of a tree of values, 16 bytes."""
    digest = blake2b(digest_size=16)
    for path, leaf in leaves(tree):
        digest.update(repr(path).encode())
        array = leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf
        if isinstance(array, np.ndarray):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        else:
            digest.update(repr(array).encode())
    return digest.digest()


def mean_of_states(
    processes: Processes, name: str, states: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Average the floating point tensors of states over all processes; the rest stays as it is."""
    trees = [dict(state) for state in states]
    tensors = [leaf for _, leaf in leaves(trees) if _is_averaged(leaf)]
    means = iter(processes.mean(name, tensors))
    averaged: list[dict[str, Any]] = map_leaves(
        lambda leaf: next(means) if _is_averaged(leaf) else leaf, trees
    )
    return averaged


def _is_averaged(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _pack(encoded: Encoded) -> Tensor:
    packed = bytearray()
    _ENCODER.encode_into([encoded.meta, *(buffer.cast("B") for buffer in encoded.buffers)], packed)
    return torch.frombuffer(packed, dtype=torch.uint8)


def _unpack(packed: Tensor) -> Any:  # noqa: ANN401 - any tree of values
    """Unpack a message of `_pack`, which may be malformed; arrays stay in its memory."""
    try:
        meta, *buffers = _DECODER.decode(packed.numpy().data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CodecError(f"A broadcast of {len(packed)} bytes is no message: {error}.") from error
    return decode(meta, buffers)

"""What a node offers on its ctx: each value in the form in which it may wait for its turn."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ding_lite.clock import Clock
from ding_lite.errors import CodecError
from ding_lite.log import Throttle
from ding_lite.parallel.memory.segments import Published
from ding_lite.parallel.memory.shared_values import SharedSender
from ding_lite.parallel.wire.arrays import shorten
from ding_lite.parallel.wire.codec import Encoded, decode, encode

logger = logging.getLogger(__name__)

_UNCHANGING = (type(None), bool, float)
_LONG_TEXT = 4096
_LONGEST_KEY = 1024
_KEY_ROOM = 8192


class CtxOutbox:
    """Turns ctx values into what sessions keep until it is sent, and knows the newest of each key.

    Args:
        node_id: This node.
        sender: Keeps the bytes of what could change meanwhile.
        clock: What the pauses between warnings are measured by.
    """

    def __init__(self, node_id: int, sender: SharedSender, clock: Clock) -> None:
        self._node_id = node_id
        self._sender = sender
        self._newest: dict[str, Any] = {}
        self._throttle = Throttle(logger, clock)

    def fill(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what stands for these values: themselves if they never change, or their bytes.

        What cannot be encoded is left out, with one warning a key.
        """
        slots: dict[str, Any] = {}
        for key, value in values.items():
            try:
                _check_key(key)
                if _may_wait(value):
                    slots[key] = value
                else:
                    slots[key] = self._sender.keep(key, _encode(key, value))
            except (CodecError, MemoryError) as error:
                name = key if type(key) is str and key.isascii() else shorten(key)
                self._throttle.once(
                    logging.WARNING,
                    f"stays home {name}",
                    "`ctx.%s` stays on node %d: %s `task.share` chooses what travels.",
                    name[:_LONGEST_KEY],
                    self._node_id,
                    error,
                )
        self._newest |= slots
        return slots

    def newest(self, key: str) -> Any:
        """Return what was filled in last under a key, or None.

        Tensors are copies. Arrays may only be read, and stay as they are.
        """
        slot = self._newest.get(key)
        value = slot.encoded if isinstance(slot, Published) else slot
        return decode(value.meta, value.buffers) if isinstance(value, Encoded) else value


def _check_key(key: object) -> None:
    """Refuse a key that cannot stand in a message: the transport's thread would find out."""
    if type(key) is not str or len(key) > _LONGEST_KEY:
        raise CodecError(
            f"a key of ctx that travels is a str of at most {_LONGEST_KEY} characters, "
            f"not {shorten(key)}."
        )
    if not key.isascii():
        encode(key, name="key")


def _may_wait(value: Any) -> bool:
    """Tell whether a value can wait as it is: it never changes, and msgpack can hold it."""
    kind = type(value)
    if kind is int:
        return bool(-(2**63) <= value < 2**64)
    if kind is str:
        return len(value) < _LONG_TEXT and bool(value.isascii())
    if kind is bytes:
        return len(value) < _LONG_TEXT
    return kind in _UNCHANGING


def _encode(key: str, value: Any) -> Encoded:
    """Encode a value that will stand in a message beside others."""
    return encode(value, borrow=True, name=f"ctx[{key!r}]", room=_KEY_ROOM)

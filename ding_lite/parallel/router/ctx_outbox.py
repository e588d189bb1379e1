"""Encode ctx values for sending, and keep the newest value of each key."""

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
    """Turn ctx values into slots that sessions keep until they are sent.

    Args:
        node_id: This node.
        sender: Keeps the bytes of mutable values.
        clock: Measures the pauses between warnings.
    """

    def __init__(self, node_id: int, sender: SharedSender, clock: Clock) -> None:
        self._node_id = node_id
        self._sender = sender
        self._newest: dict[str, Any] = {}
        self._throttle = Throttle(logger, clock)

    def fill(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return slots for these values: immutable ones as they are, others encoded.

        A value that cannot be encoded is left out, with one warning for each key.
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
                    "`ctx.%s` stays on node %d: %s `task.share` chooses the keys to send.",
                    name[:_LONGEST_KEY],
                    self._node_id,
                    error,
                )
        self._newest |= slots
        return slots

    def newest(self, key: str) -> Any:
        """Return the last value under a key, or None.

        Tensors are copies. Arrays are read-only and do not change.
        """
        slot = self._newest.get(key)
        value = slot.encoded if isinstance(slot, Published) else slot
        return decode(value.meta, value.buffers) if isinstance(value, Encoded) else value


def _check_key(key: object) -> None:
    """Refuse a key that cannot be sent here, rather than on the transport's thread."""
    if type(key) is not str or len(key) > _LONGEST_KEY:
        raise CodecError(
            f"a key of ctx that is sent is a str of at most {_LONGEST_KEY} characters, "
            f"not {shorten(key)}."
        )
    if not key.isascii():
        encode(key, name="key")


def _may_wait(value: Any) -> bool:
    """Tell whether a value can be queued unencoded: it is immutable, and msgpack can hold it."""
    kind = type(value)
    if kind is int:
        return bool(-(2**63) <= value < 2**64)
    if kind is str:
        return len(value) < _LONG_TEXT and bool(value.isascii())
    if kind is bytes:
        return len(value) < _LONG_TEXT
    return kind in _UNCHANGING


def _encode(key: str, value: Any) -> Encoded:
    """Encode a value for a message with several values."""
    return encode(value, borrow=True, name=f"ctx[{key!r}]", room=_KEY_ROOM)

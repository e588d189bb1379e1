"""Encode values of topics for sending, and keep the newest value of each topic."""

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
from ding_lite.runtime.messaging.subscription import CTX, LONGEST_TOPIC

logger = logging.getLogger(__name__)

_UNCHANGING = (type(None), bool, float)
_LONG_TEXT = 4096
_KEY_ROOM = 8192


class StateOutbox:
    """Turn values of topics into slots that sessions keep until they are sent.

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

        A value that cannot be encoded is left out, with one warning for each topic.
        """
        slots: dict[str, Any] = {}
        for topic, value in values.items():
            try:
                slots[topic] = self._slot(topic, value)
            except (CodecError, MemoryError) as error:
                name = name_of(topic)
                self._throttle.once(
                    logging.WARNING,
                    f"stays home {name}",
                    "%s stays on node %d: %s `task.share` chooses the keys to send.",
                    name,
                    self._node_id,
                    error,
                )
        self._newest |= slots
        return slots

    def encode(self, topic: str, value: Any) -> dict[str, Any]:
        """Return the slot of one topic.

        Raises:
            CodecError: The value cannot be encoded.
        """
        slots = {topic: self._slot(topic, value)}
        self._newest |= slots
        return slots

    def _slot(self, topic: str, value: Any) -> Any:
        _check_topic(topic)
        if _may_wait(value):
            return value
        return self._sender.keep(topic, _encode(topic, value))

    def newest(self, topic: str) -> Any:
        """Return the last value under a topic, or None.

        Tensors are copies. Arrays are read-only and do not change.
        """
        slot = self._newest.get(topic)
        value = slot.encoded if isinstance(slot, Published) else slot
        return decode(value.meta, value.buffers) if isinstance(value, Encoded) else value


def name_of(topic: object) -> str:
    """Return a topic as a message to the user names it: `ctx.KEY` if it is that of a ctx key."""
    if type(topic) is not str or not topic.isascii():
        return f"`{shorten(topic)}`"
    name = topic[: LONGEST_TOPIC + len(CTX)]
    return f"`ctx.{name[len(CTX) :]}`" if name.startswith(CTX) else f"Topic `{name}`"


def _check_topic(topic: object) -> None:
    """Refuse a topic that cannot be sent here, rather than on the transport's thread."""
    if type(topic) is not str or len(topic) > LONGEST_TOPIC:
        raise CodecError(
            f"a topic, or a key of ctx that is sent, is a str of at most {LONGEST_TOPIC} "
            f"characters, not {shorten(topic)}."
        )
    if not topic.isascii():
        encode(topic, name="topic")


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


def _encode(topic: str, value: Any) -> Encoded:
    """Encode a value for a message with several values."""
    name = f"ctx[{topic[len(CTX) :]!r}]" if topic.startswith(CTX) else topic
    return encode(value, borrow=True, name=name, room=_KEY_ROOM)

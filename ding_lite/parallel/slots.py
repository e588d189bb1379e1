"""What a node offers on its ctx: each value in the form in which it may wait for its turn."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ding_lite.clock import Clock
from ding_lite.errors import CodecError
from ding_lite.log import Throttle
from ding_lite.parallel.codec import MAX_META_BYTES, Encoded, decode, encode
from ding_lite.parallel.shared_memory import Published
from ding_lite.parallel.shared_state import SharedSender

logger = logging.getLogger(__name__)

_UNCHANGING = (type(None), bool, int, float, str, bytes)
_TEXTS = (str, bytes)
_LONG_TEXT = 4096
_KEY_ROOM = 8192


class Slots:
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
            if type(value) in _UNCHANGING and not _is_long_text(value):
                slots[key] = value
                continue
            try:
                slots[key] = self._sender.keep(key, _encode(key, value))
            except CodecError as error:
                self._throttle.once(
                    logging.WARNING,
                    f"stays home {key}",
                    "`ctx.%s` stays on node %d: %s `task.share` chooses what travels.",
                    key,
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


def _is_long_text(value: object) -> bool:
    return isinstance(value, _TEXTS) and len(value) >= _LONG_TEXT


def _encode(key: str, value: Any) -> Encoded:
    """Encode a value that will stand in a message beside others."""
    encoded = encode(value, borrow=True, name=f"ctx[{key!r}]")
    if len(encoded.meta) > MAX_META_BYTES - _KEY_ROOM:
        raise CodecError(
            f"its structure takes {len(encoded.meta)} bytes, and a message has room for "
            f"{MAX_META_BYTES}. Put numbers into arrays."
        )
    return encoded

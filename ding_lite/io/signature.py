"""Signatures by which a user's programs recognise what they have written on this machine.

A run may name code of its user, which is imported to load it. Names in a run from elsewhere could
lead to any code, so names are imported only if a program of this user has signed them, or if the
user allows it. The key never leaves `state_home()`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ding_lite.errors import ConfigError
from ding_lite.io.files import write_private
from ding_lite.io.reading import open_file
from ding_lite.settings.environment import state_home

_KEY_BYTES = 32


def sign(named: Mapping[str, Any]) -> str | None:
    """Return the signature of plain values; None if this user's key cannot be stored."""
    key = _key()
    if key is None:
        return None
    text = json.dumps(named, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def is_signed(named: Mapping[str, Any], signature: object) -> bool:
    """Return whether a program of this user has signed these values on this machine."""
    try:
        expected = sign(named)
    except (TypeError, ValueError):  # what JSON cannot hold was never signed
        return False
    if expected is None or not isinstance(signature, str):
        return False
    return hmac.compare_digest(expected.encode(), signature.encode())


def _key() -> bytes | None:
    try:
        path = state_home() / "ding_lite" / "runs.key"
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):  # another process was faster
                write_private(path, secrets.token_bytes(_KEY_BYTES))
        with open(open_file(path), "rb") as file:
            key, status = file.read(_KEY_BYTES + 1), os.fstat(file.fileno())
    except (OSError, ConfigError):
        return None
    is_private = status.st_uid == os.getuid() and not status.st_mode & 0o077
    return key if is_private and len(key) == _KEY_BYTES else None

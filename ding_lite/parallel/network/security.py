"""Keys of jobs: their files, the CURVE keys of nodes, and where a node may listen.

All nodes of a job share one secret. From it each node's two CURVE keys are derived, one for
listening and one for dialling, bound to its node id: a process that proves to hold the key of
node 3 is taken for node 3 and for no other. The secret lies in a file that only its
owner can read. Only its path is passed on; the derived keys never leave the process.

On the loopback interface the user's own key is used, which is made on first use. It keeps other
users of the machine out, and lets two programs of one user connect.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
from dataclasses import replace
from pathlib import Path

from ding_lite.errors import ConfigError, printable
from ding_lite.io.files import write_private
from ding_lite.io.reading import open_file
from ding_lite.parallel.network.address import (
    Address,
    check_listening,
    is_loopback,
    main_address,
)
from ding_lite.settings.environment import state_home

SECRET_BYTES = 32
_COMMENT = "# A key of ding_lite, version 1. All that can read this file can join your jobs.\n"
_KEY = re.compile(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}")
_MOST_BYTES = 4096
_SERVER = b"ding_lite server"
_CLIENT = b"ding_lite client"


class Key:
    """The secret that the nodes of a job share."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise ConfigError(f"A key has {len(secret)} bytes; {SECRET_BYTES} were expected.")
        self._secret = secret

    @property
    def secret(self) -> bytes:
        """The secret itself; pass it on only over secret channels."""
        return self._secret

    def __repr__(self) -> str:
        return "Key(...)"  # a secret must not end in a log

    def of_listener(self, node_id: int) -> bytes:
        return self._derive(_SERVER, node_id)

    def of_dialler(self, node_id: int) -> bytes:
        return self._derive(_CLIENT, node_id)

    def _derive(self, purpose: bytes, node_id: int) -> bytes:
        name = node_id.to_bytes(8, "little")
        return hashlib.blake2b(
            name, key=self._secret, person=purpose, digest_size=SECRET_BYTES
        ).digest()


# -- key files -----------------------------------------------------------------------------


def make_key(path: str | Path) -> Path:
    """Write a new key, atomically, to a file that only its owner can read."""
    return save_key(path, secrets.token_bytes(SECRET_BYTES))


def save_key(path: str | Path, secret: bytes) -> Path:
    """Write a given secret to a key file, as `make_key` does."""
    path = Path(path)
    if not path.name or path.is_dir():
        raise ConfigError(f"{path} is a directory; the path of the key file was expected.")
    try:
        write_private(path, f"{_COMMENT}{secret.hex()}\n".encode())
    except FileExistsError as error:
        raise ConfigError(
            f"{path} exists already. Name another file, or delete this one if no job uses it."
        ) from error
    except OSError as error:
        raise ConfigError(f"The key file {path} cannot be written: {error.strerror}.") from error
    return path


def load_key(path: str | Path) -> Key:
    try:
        with open(open_file(path), "rb") as file:
            _check_owner_only(path, os.fstat(file.fileno()), "chmod 600")
            text = file.read(_MOST_BYTES).decode("ascii", errors="replace")
    except OSError as error:
        hint = " Make one with `ding-lite keygen FILE`." if error.errno == errno.ENOENT else ""
        raise ConfigError(
            f"The key file {printable(str(path))} cannot be read: {error.strerror}.{hint}"
        ) from error
    lines = [line.strip() for line in text.splitlines() if not line.startswith("#")]
    found = [line for line in lines if line]
    if len(found) != 1 or not _KEY.fullmatch(found[0]):
        raise ConfigError(
            f"{path} holds no key: expected is one line of {2 * SECRET_BYTES} hex digits, as "
            f"`ding-lite keygen FILE` writes it."
        )
    return Key(bytes.fromhex(found[0]))


def user_key() -> Key:
    """Return the key of this user on this machine; it is made on first use."""
    path = state_home() / "ding_lite" / "loopback.key"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The directory {path.parent} for this user's key cannot be made: {error.strerror}. "
            f"Set XDG_STATE_HOME to a directory of yours, or give a `key_file`."
        ) from error
    check_private(path.parent)
    try:
        if not path.exists():
            make_key(path)
    except ConfigError:
        if not path.exists():  # else another process was faster
            raise
    return load_key(path)


def check_private(directory: str | Path) -> None:
    """Refuse a directory that other users can enter."""
    try:
        status = os.stat(directory)
    except OSError as error:
        raise ConfigError(f"The directory {directory} is not usable: {error.strerror}.") from error
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{directory} is not a directory.")
    _check_owner_only(directory, status, "chmod 700")


def _check_owner_only(path: str | Path, status: os.stat_result, remedy: str) -> None:
    if status.st_uid not in (os.getuid(), 0):  # root can read everything anyway
        raise ConfigError(
            f"{path} belongs to user {status.st_uid}; it must belong to you (user {os.getuid()})."
        )
    if status.st_mode & 0o077:
        raise ConfigError(
            f"Other users have access to {path}: its mode is {status.st_mode & 0o7777:04o}. "
            f"Take it from them: {remedy} {path}"
        )


# -- where a node may listen and dial ------------------------------------------------------


def place_to_listen(address: Address, *, key_file: str | None) -> Address:
    """Return the address to bind with its host looked up, so that the checked host is bound."""
    if address.scheme == "ipc":
        check_private(Path(address.place).absolute().parent)
    if address.scheme != "tcp":
        return address
    host = "0.0.0.0"
    if address.place not in ("", "*"):
        host = main_address(address.place)
    place = replace(address, place=host)
    check_listening(place, key_file=key_file)
    return place


def check_dialling(address: Address, *, key_file: str | None) -> None:
    """Refuse to dial another machine with the key that only this machine has."""
    if address.scheme == "tcp" and key_file is None and not is_loopback(address.place):
        raise ConfigError(
            f"{address} is on another machine, or its name cannot be looked up. Another machine "
            f"must have the same key as this one: make one with `ding-lite keygen FILE`, copy it "
            f"to both, and give it as `key_file=...` or DING_LITE_KEY_FILE."
        )

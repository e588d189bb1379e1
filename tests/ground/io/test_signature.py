"""Signatures of what this user's programs have named."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ding_lite.io.signature import is_signed, sign

NAMED = {"given": {"network": "nets:Mine"}, "env": ["Corridor", {"env_args": {"length": 8}}]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def test_what_was_signed_here_is_known_again(home: Path) -> None:
    signature = sign(NAMED)
    assert is_signed(NAMED, signature)
    assert is_signed({**NAMED, "env": tuple(NAMED["env"])}, signature)  # as JSON brings it back
    assert not is_signed({**NAMED, "given": {"network": "os:system"}}, signature)
    for other in (None, "", 7, signature[:-1] if signature else ""):
        assert not is_signed(NAMED, other)


def test_the_key_is_this_users_alone_and_the_same_for_all_processes(home: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: sign(NAMED), range(16)))) == 1
    [key] = (home / "ding_lite").iterdir()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_a_key_that_others_can_read_or_write_signs_nothing(home: Path) -> None:
    signature = sign(NAMED)
    [key] = (home / "ding_lite").iterdir()
    for mode in (0o644, 0o620, 0o602):
        key.chmod(mode)
        assert sign(NAMED) is None
        assert not is_signed(NAMED, signature)
    key.chmod(0o600)
    assert is_signed(NAMED, signature)


def test_another_user_or_machine_has_another_key(home, monkeypatch) -> None:
    signature = sign(NAMED)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "other"))
    assert not is_signed(NAMED, signature)


def test_without_a_place_for_a_key_nothing_is_signed(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert sign(NAMED) is None
    assert not is_signed(NAMED, None)
    for variable in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(variable)
    monkeypatch.setattr(os, "getuid", lambda: 987_654)  # has no home directory either
    assert sign(NAMED) is None

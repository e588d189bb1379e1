"""Fixtures of the command line's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.calls import PROGRAM, Typed
from tests.fonts import open_fonts
from tests.recipes.conftest import leave_pictures_empty
from tests.warm import COMMANDS, Warm, warm


@pytest.fixture(scope="session", autouse=True)
def _fonts() -> None:
    open_fonts()


@pytest.fixture(scope="session")
def process() -> Iterator[Warm]:
    """Return a process that calls `ding-lite` quickly."""
    with warm(COMMANDS) as process:
        yield process


@pytest.fixture
def typed(process: Warm) -> Typed:
    """Return a function that calls `ding-lite` in a folder, as `calls.call` does, but quickly."""

    def call(folder: Path, *words: str, **variables: str) -> tuple[int | None, str, str]:
        return process.call(words, folder, variables=variables)[:3]

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    leave_pictures_empty(monkeypatch)


@pytest.fixture(autouse=True)
def _quiet_afterwards() -> Iterator[None]:
    """Take back what a command has set up for log lines, also within a fixture before this one."""
    yield
    logger = logging.getLogger("ding_lite")
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)

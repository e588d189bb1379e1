"""Fixtures of the recipes' tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fonts import open_fonts


@pytest.fixture(scope="session", autouse=True)
def _fonts() -> None:
    open_fonts()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `runs` in a temporary directory; only this test finds the modules there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

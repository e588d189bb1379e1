"""Fixtures of the recipes' tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ding_lite.middleware.report import curve, evolution
from tests.fonts import open_fonts


@pytest.fixture(scope="session", autouse=True)
def _fonts() -> None:
    open_fonts()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `runs` in a temporary directory; only this test finds the modules there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_pictures_empty(monkeypatch)


def leave_pictures_empty(patch: pytest.MonkeyPatch) -> None:
    """Make empty files in place of pictures of runs, which take longer than small runs."""
    patch.setattr(curve, "_draw_curve", lambda path, *_, **__: path.touch())
    for picture in ("fitness", "family", "hyperparameters"):
        patch.setattr(evolution, f"_draw_{picture}", lambda _, path, **__: path.touch())

"""The tests of this folder keep the directories of their runs, with plots."""

from __future__ import annotations

import pytest

from tests.fonts import open_fonts


@pytest.fixture(scope="session", autouse=True)
def _fonts() -> None:
    open_fonts()

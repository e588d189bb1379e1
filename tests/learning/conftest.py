"""The tests of this folder leave whole runs behind, with the pictures of them."""

from __future__ import annotations

import pytest

from tests.fonts import open_fonts


@pytest.fixture(scope="session", autouse=True)
def _fonts() -> None:
    open_fonts()

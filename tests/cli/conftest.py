"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calls import PROGRAM


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a user's folder, with a program in it."""
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path

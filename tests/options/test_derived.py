"""Sentences below fields are read from the source, if there is one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import make_dataclass
from pathlib import Path
from zipfile import PyZipFile, ZipFile

from ding_lite.cli.parsing.parsers import make_parsers
from ding_lite.options.derived import sentences_of
from ding_lite.options.run_options import RunOptions
from tests.cli.calls import ROOT, environment

CALL = '''
from ding_lite.options.derived import documented

@documented("train")
def train(seed=0, **more):
    """Train.

    Args:
        **more: Settings.
    """

print(train.__doc__)
'''


def test_a_class_that_no_source_defines_has_no_sentences_of_its_own() -> None:
    made = make_dataclass("Made", [("lr", float)], bases=(RunOptions,), kw_only=True, frozen=True)
    assert sentences_of(made) == sentences_of(RunOptions)
    assert sentences_of(made)["out"] == "The directory of the run."


def printed(archive: Path, *words: str) -> str:
    """Return what Python prints with the package in an archive."""
    env = environment(PYTHONPATH=str(archive), COLUMNS="80")
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd="/", env=env, capture_output=True, text=True, check=True
    ).stdout


def test_the_command_line_has_its_help_in_a_zip_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with ZipFile(tmp_path / "sources.zip", "w") as archive:
        for file in (ROOT / "ding_lite").rglob("*.py"):
            archive.write(file, file.relative_to(ROOT))
    shown = printed(tmp_path / "sources.zip", "-m", "ding_lite", "--help")
    assert shown == make_parsers()[0].format_help()


def test_a_call_without_sources_is_documented_without_its_options(tmp_path: Path) -> None:
    with PyZipFile(str(tmp_path / "compiled.zip"), "w") as archive:
        parts = {"ding_lite", "options", "io"}
        archive.writepy(
            str(ROOT / "ding_lite"),
            filterfunc=lambda path: Path(path).name in parts or Path(path).parent.name in parts,
        )
    shown = printed(tmp_path / "compiled.zip", "-c", CALL)
    assert shown == "Train.\n\nArgs:\n    **more: Settings.\n"
    assert "seed: The seed" in printed(ROOT, "-c", CALL)

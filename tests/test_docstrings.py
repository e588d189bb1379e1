"""The examples in docstrings run and print the expected output."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from types import ModuleType

import pytest

import ding_lite
from tests.fonts import open_fonts

ROOT = Path(ding_lite.__file__).parent
MODULES = [
    ".".join(["ding_lite", *file.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
    for file in sorted(ROOT.rglob("*.py"))
    if ">>> " in file.read_text()
]
assert MODULES


@pytest.fixture(scope="module", autouse=True)
def fonts() -> None:
    """One example draws a curve."""
    open_fonts()


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_do_what_they_say(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    failures, report = run_examples(importlib.import_module(name))
    assert not failures, report


@pytest.mark.parametrize(
    ("example", "failures"), [(">>> 1 + 1\n2", 0), (">>> 1 + 1\n3", 1), (">>> 1 / 0", 1)]
)
def test_a_wrong_example_is_caught(example: str, failures: int) -> None:
    module = ModuleType("made_up", example)
    assert run_examples(module)[0] == failures


def run_examples(module: ModuleType) -> tuple[int, str]:
    """Run a module's examples; return how many fail, and the report about them."""
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.REPORT_NDIFF)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__):
        runner.run(test, out=report.append)
    return runner.failures, "".join(report)

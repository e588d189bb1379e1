"""`ding-lite`: what may be typed, what is said of a slip, and that help comes at once."""

from __future__ import annotations

import argparse
import subprocess
import sys
from configparser import ConfigParser
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ding_lite.cli.main import main
from ding_lite.cli.parsing.commands import COMMANDS
from ding_lite.cli.parsing.parsers import Parser, make_parsers, parse
from tests.cli.calls import ROOT, call, environment

PAGE = ROOT / "docs" / "reference" / "command-line.md"
ARGUMENTS = ("FILE", "JOB", "PROGRAM", "POLICY", "ENV", "RUN", "FOLDER")
SLOW = ["torch", "numpy", "zmq", "msgspec", "rich", "easydict", "gymnasium"]


def parsers() -> list[Parser]:
    whole, of_command = make_parsers()
    return [whole, *of_command.values()]


def options_of(parser: Parser) -> list[argparse.Action]:
    hidden = (argparse._HelpAction, argparse._SubParsersAction)
    return [action for action in parser._actions if not isinstance(action, hidden)]


def test_every_command_and_option_has_a_help_text() -> None:
    whole, of_command = make_parsers()
    assert tuple(of_command) == tuple(COMMANDS)
    for parser in parsers():
        assert parser.description
        for action in options_of(parser):
            assert action.help, action.option_strings
    for command in COMMANDS:
        assert f"\n    {command} " in whole.format_help()


@pytest.mark.parametrize("parser", parsers(), ids=lambda parser: parser.prog)
def test_the_example_of_a_parser_can_be_typed(parser: Parser) -> None:
    words = parser._example.split()
    assert words[0] == "ding-lite"
    assert parse(words[1:]).command in COMMANDS


def test_the_page_has_all_options_with_their_help() -> None:
    lines = PAGE.read_text().splitlines()
    shown = [
        line for line in lines if line.startswith(("| `--", *(f"| `{name}" for name in ARGUMENTS)))
    ]
    expected = []
    for parser in parsers():
        for action in options_of(parser):
            names = [*action.option_strings, action.metavar if action.nargs != 0 else None]
            text = (action.help or "").replace("|", "\\|")  # else it would end a cell of the table
            expected.append(f"| `{' '.join(str(n) for n in names if n)}` | {text} |")
    assert shown == expected
    for parser in parsers()[1:]:
        assert f"\n## {parser.prog}\n\n{parser.description}\n" in "\n".join(lines)
        assert f"\n{parser.usage}\n" in "\n".join(lines)


def test_help_names_all_that_can_be_trained() -> None:
    from ding_lite.recipes.table import RECIPES

    [train] = [parser for parser in parsers() if parser.prog == "ding-lite train"]
    [policy] = [action for action in train._actions if action.dest == "policy"]
    assert policy.help == f"the policy to train: {', '.join(RECIPES)}"


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["run", "--node"], ["--version"]])
def test_help_and_slips_wait_for_no_import(words: list[str]) -> None:
    code = f"""
import sys
from ding_lite.cli.main import main
try:
    code = main({words!r})
except SystemExit as end:
    code = end.code
print("loaded", [name for name in {SLOW!r} if name in sys.modules], code)
"""
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=15
    ).stdout
    assert out.splitlines()[-1] == f"loaded [] {2 if '--node' in words else 0}"


def test_ctrl_c_waits_for_the_import_of_a_command(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "slow_command.py").write_text(
        "import signal\nsignal.raise_signal(signal.SIGINT)\ndef run(options): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(COMMANDS["env"], "function", ("slow_command", "run"))
    assert main(["env"]) == 130
    assert capsys.readouterr().err == "ding-lite env: interrupted\n"
    assert sys.modules.pop("slow_command").run


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    import ding_lite

    assert call(tmp_path, "--version") == (0, f"ding-lite {ding_lite.__version__}\n", "")


def test_the_console_script_and_the_module_are_the_same(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    [script] = config["options.entry_points"]["console_scripts"].strip().splitlines()
    name, _, value = script.partition(" = ")
    assert name == "ding-lite"
    assert EntryPoint(name, value, "console_scripts").load() is main
    assert call(tmp_path, "--help") == (0, make_parsers()[0].format_help(), "")


def test_below_the_explanation_of_a_slip_is_an_example(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["rnu", "x"])
    _, example, help_of_it = capsys.readouterr().err.splitlines()
    assert example.startswith("For example: ding-lite ")
    assert help_of_it.endswith(" --help")

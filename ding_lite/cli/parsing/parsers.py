"""Parse the command line; a mistake ends the program with an example of what is right."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from ding_lite.cli.parsing.commands import COMMANDS
from ding_lite.errors import did_you_mean
from ding_lite.exit_codes import WRONG_USAGE
from ding_lite.options.derived import sentences_of
from ding_lite.options.run_options import HOW_GIVEN
from ding_lite.options.words import OPTIONS_ELSEWHERE, show
from ding_lite.version import __version__

_SURE = 0.81
"""The similarity of a name to an option that makes it a slip: `target_kl`, a setting, has 0.8."""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; print an error and exit on a mistake."""
    parser, of_command = make_parsers()
    words = list(words)
    split = words.index("--") if "--" in words else len(words)
    words, args = words[:split], words[split + 1 :]

    if not words:
        parser.error(f"no command was given. Expected is one of: {', '.join(COMMANDS)}.")
    command = words[0]
    if not command.startswith("-") and command not in COMMANDS:
        parser.error(
            f"there is no command {show(command)}.{did_you_mean(command, COMMANDS)} "
            f"Expected is one of: {', '.join(COMMANDS)}."
        )
    options, unknown = parser.parse_known_args(words)
    speaker = of_command.get(options.command or "", parser)
    if unknown:
        speaker.refuse(unknown[0])
    if options.command is None:
        parser.error(f"no command was given. Expected is one of: {', '.join(COMMANDS)}.")
    if args and options.command != "run":
        speaker.error(f"found {args[0]!r} after `--`, but only `ding-lite run` passes words on.")
    options.args = args
    return options


class Parser(argparse.ArgumentParser):
    """An argument parser that shows an example in its errors."""

    def __init__(self, prog: str, *, example: str, description: str, usage: str) -> None:
        super().__init__(prog, description=description, usage=usage, allow_abbrev=False)
        self._example = example

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith((".", "?")) else "."
        self.exit(
            WRONG_USAGE,
            f"{self.prog}: {message}{end}\n"
            f"For example: {self._example}\nAll that is possible: {self.prog} --help\n",
        )

    def refuse(self, word: str) -> NoReturn:
        known = re.findall(r"--([a-z-]+)", self.format_help())
        if not word.startswith("-"):
            passes = self.prog == "ding-lite run"
            hint = " What is meant for the program comes after `--`." if passes else ""
            if "=" in word and "set" in known:
                hint = f" Each setting has a `--set` of its own: `--set {word}`."
            self.error(f"found {show(word)}, where nothing more was expected.{hint}")
        name = word.partition("=")[0]
        bare = name.lstrip("-")
        here = OPTIONS_ELSEWHERE.get(bare.replace("-", "_"), bare).replace("_", "-")
        hint = did_you_mean(here, known).replace('"', '"--', 1)
        if "set" in known and not get_close_matches(here, known, 1, _SURE):
            option = get_close_matches(here.replace("-", "_"), HOW_GIVEN, 1, _SURE)
            hint += f" Settings of the policy are given by `--set {bare.replace('-', '_')}=VALUE`."
            if option:
                hint = f" `{option[0]}` is given otherwise: {HOW_GIVEN[option[0]]}."
        self.error(f"there is no option {show(name)}.{hint}")


def make_parsers() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(
        "ding-lite",
        usage="ding-lite COMMAND ...",
        description="Train policies, run programs on several nodes, and look at what they do.",
        example="ding-lite train dqn CartPole-v1",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"ding-lite {__version__}",
        help="print the version and exit",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    of_command = {}
    for name, command in COMMANDS.items():
        prog, does = f"ding-lite {name}", sentences_of(command)["__doc__"]
        of_command[name] = commands.add_parser(
            name,
            help=f"{does[0].lower()}{does[1:]}".removesuffix("."),
            description=does,
            usage=f"{prog} {command.takes}".rstrip(),
            prog=prog,
            example=f"{prog} {command.example}".rstrip(),
        )
        command.add_to(of_command[name])
    return parser, of_command

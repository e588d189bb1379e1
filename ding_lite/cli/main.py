"""`ding-lite`: parse the command line, run the command, and return its exit code.

The modules of a command are imported only when it runs, so that `--help` and errors on the command
line are fast.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from ding_lite.cli.options.commands import COMMANDS
from ding_lite.errors import DingLiteError, EnvError, did_you_mean, printable
from ding_lite.exit_codes import FAILED, INTERRUPTED, WRONG_USAGE, exit_code_of
from ding_lite.io.files import naming, why
from ding_lite.options import elsewhere
from ding_lite.options.words import show
from ding_lite.version import __version__


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    All errors are handled here: errors that a user can fix become one-line messages.
    """
    _open_streams()
    name = "ding-lite"
    try:
        try:
            options = parse(sys.argv[1:] if words is None else words)
            name = f"ding-lite {options.command}"
            return COMMANDS[options.command].carry_out(options)
        finally:
            sys.stdout.flush()
    except MemoryError as error:
        detail = f": {error}" if str(error) else ""
        print(
            f"{name}: There is too little memory{detail}. Take fewer or smaller.", file=sys.stderr
        )
    except DingLiteError as error:
        if isinstance(error, EnvError):
            _show_cause(error)
        print(f"{name}: {printable(str(error))}", file=sys.stderr)
        return exit_code_of(error)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        pass
    except OSError as error:
        if error.filename is None:  # an error without a file is a bug of this package
            raise
        print(f"{name}: {printable(why(error))}.", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    _forget_output()
    return FAILED


def _show_cause(error: EnvError) -> None:
    """Print the traceback of an environment's error, raised here or in a subprocess."""
    if error.__cause__ is not None:
        traceback.print_exception(error.__cause__)
    for note in getattr(error, "__notes__", ()):
        print(note, file=sys.stderr)


def _open_streams() -> None:
    """Replace closed streams by the null device, and escape characters that cannot be encoded.

    Errors of standard output then name it, wherever it is written to or flushed: without a buffer,
    as PYTHONUNBUFFERED asks for, every `print` may raise. Messages that standard error has no room
    for are lost, and do not end a run.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as it runs
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if "write" not in vars(stream):
                handled = naming("standard output") if name == "stdout" else _losing()
                vars(stream).update(write=handled(stream.write), flush=handled(stream.flush))


@contextmanager
def _losing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        raise
    except OSError:
        pass


def _forget_output() -> None:
    """Discard output that cannot be written, so that Python prints no error when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


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
        here = elsewhere.OPTIONS.get(bare.replace("-", "_"), bare).replace("_", "-")
        hint = did_you_mean(here, known).replace('"', '"--', 1)
        if "set" in known:
            hint += f" Settings of the policy are given by `--set {bare.replace('-', '_')}=VALUE`."
        self.error(f"there is no option {show(name)}.{hint}")


def make_parsers() -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of the whole command line, and that of each command by its name."""
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
        help="show which version this is",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    of_command = {}
    for name, command in COMMANDS.items():
        prog, does = f"ding-lite {name}", command.does()
        of_command[name] = commands.add_parser(
            name,
            help=f"{does[0].lower()}{does[1:]}",
            description=f"{does}.",
            usage=f"{prog} {command.takes}".rstrip(),
            prog=prog,
            example=f"{prog} {command.example}".rstrip(),
        )
        command.add_to(of_command[name])
    return parser, of_command

"""`ding-lite`: run the command of the command line, and return its exit code.

The modules of a command are imported only when it runs, so that `--help` and errors on the command
line are fast.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from ding_lite.cli.parsing.commands import COMMANDS
from ding_lite.cli.parsing.parsers import parse
from ding_lite.errors import DingLiteError, EnvError, printable
from ding_lite.exit_codes import DONE, FAILED, INTERRUPTED, exit_code_of
from ding_lite.interruption import postponed
from ding_lite.io.files import naming, why


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
            module, function = COMMANDS[options.command].function
            with postponed():  # Ctrl-C in the import of PyTorch may abort the process
                command = getattr(import_module(module), function)
            code: int | None = command(options)
            return code or DONE
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

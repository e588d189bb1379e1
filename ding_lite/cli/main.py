"""`ding-lite`: parse the command line, run the command, and return its exit code.

Nothing but argparse is imported until it is known what to do, so that `--help` and a slip are
answered at once.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from ding_lite.cli.exit_codes import FAILED, INTERRUPTED, WRONG_USAGE
from ding_lite.cli.options import arguments, learning
from ding_lite.errors import (
    CheckpointError,
    ConfigError,
    DingLiteError,
    EnvError,
    MissingExtraError,
    SaveError,
    did_you_mean,
)
from ding_lite.io.files import naming, why
from ding_lite.version import __version__

COMMANDS = ("train", "evolve", "plot", "watch", "export", "run", "top", "env", "doctor", "keygen")


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit code.

    This is the one door for what goes wrong: what a user can mend ends in a sentence.

    Args:
        words: What was typed after `ding-lite`; that of this process by default.
    """
    _open_streams()
    name = "ding-lite"
    try:
        try:
            options = parse(sys.argv[1:] if words is None else words)
            name = f"ding-lite {options.command}"
            return _do(options)
        finally:
            with naming("standard output"):
                sys.stdout.flush()
    except MemoryError as error:
        said = f": {error}" if str(error) else ""
        print(f"{name}: There is too little memory{said}. Take fewer or smaller.", file=sys.stderr)
    except DingLiteError as error:
        if isinstance(error, EnvError):
            _show_cause(error)
        print(f"{name}: {error}", file=sys.stderr)
        return WRONG_USAGE if _is_slip(error) else FAILED
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        pass
    except OSError as error:
        if error.filename is None:  # it is about no file: a fault of ours
            raise
        print(f"{name}: {why(error)}.", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    _forget_output()
    return FAILED


def _show_cause(error: EnvError) -> None:
    """Print the traceback of what an environment has raised, here or in a process of its own."""
    if error.__cause__ is not None:
        traceback.print_exception(error.__cause__)
    for note in getattr(error, "__notes__", ()):
        print(note, file=sys.stderr)


def _is_slip(error: DingLiteError) -> bool:
    """Return whether nothing was begun, because of what was typed."""
    if isinstance(error, CheckpointError):
        return not isinstance(error, SaveError)
    return isinstance(error, ConfigError | MissingExtraError)


def _open_streams() -> None:
    """Let output go nowhere where it was closed, and spell what its encoding has no sign for."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as it runs
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _forget_output() -> None:
    """Keep Python from complaining at its end of output that cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _do(options: argparse.Namespace) -> int:
    match options.command:
        case "train":
            from ding_lite.cli.train import train_policy

            return train_policy(options)
        case "evolve":
            from ding_lite.cli.evolve import evolve_policies

            return evolve_policies(options)
        case "plot":
            from ding_lite.cli.plot import plot_runs

            return plot_runs(options.runs, out=options.out, metric=options.metric)
        case "watch":
            from ding_lite.cli.watch import watch_run

            return watch_run(options)
        case "export":
            from ding_lite.cli.export import export_run

            return export_run(options)
        case "doctor":
            from ding_lite.cli.doctor.doctor import examine

            return examine()
        case "run":
            from ding_lite.cli.run import run_program

            return run_program(options)
        case "top":
            from ding_lite.cli.top import show_top

            return show_top(
                options.job, once=options.once, as_json=options.json, every=options.every
            )
        case "env":
            from ding_lite.cli.env import show_environment

            return show_environment(as_json=options.json)
        case _:
            from ding_lite.cli.keygen import write_key

            return write_key(options.file)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line; a slip is told on standard error and ends the program.

    Args:
        words: What was typed after `ding-lite`.

    Returns:
        The options by name; `command` is one of COMMANDS, `args` what came after `--`.
    """
    parser, of_command = make_parsers()
    words = list(words)
    split = words.index("--") if "--" in words else len(words)
    words, args = words[:split], words[split + 1 :]

    if not words:
        parser.error(f"no command was given. Expected is one of: {', '.join(COMMANDS)}.")
    command = words[0]
    if not command.startswith("-") and command not in COMMANDS:
        parser.error(
            f"there is no command {arguments.show(command)}.{did_you_mean(command, COMMANDS)} "
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
    """One that says what to do about a slip.

    Args:
        prog: What the user types to get here.
        example: A whole command line that works.
    """

    def __init__(self, prog: str, *, example: str, description: str, usage: str) -> None:
        super().__init__(prog, description=description, usage=usage, allow_abbrev=False)
        self._example = example

    def error(self, message: str) -> NoReturn:
        """Print the error, and exit with the code for wrong usage."""
        end = "" if message.endswith((".", "?")) else "."
        self.exit(
            WRONG_USAGE,
            f"{self.prog}: {message}{end}\n"
            f"For example: {self._example}\nAll that is possible: {self.prog} --help\n",
        )

    def refuse(self, word: str) -> NoReturn:
        """Report an unknown word."""
        if not word.startswith("-"):
            hint = " What is meant for the program comes after `--`." if "run" in self.prog else ""
            self.error(f"found {arguments.show(word)}, where nothing more was expected.{hint}")
        known = re.findall(r"--[a-z-]+", self.format_help())
        name = word.partition("=")[0]
        self.error(f"there is no option {arguments.show(name)}.{did_you_mean(name, known)}")


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
    of_command = {
        "train": commands.add_parser(
            "train",
            help="train a policy until it solves an environment",
            description="Train a policy until it solves an environment.",
            usage="ding-lite train [options] POLICY ENV",
            prog="ding-lite train",
            example="ding-lite train dqn CartPole-v1 --set lr=1e-3 --seed 1",
        ),
        "evolve": commands.add_parser(
            "evolve",
            help="evolve a population of policies that tune themselves",
            description="Evolve a population of policies that tune themselves.",
            usage="ding-lite evolve [options] POLICY ENV",
            prog="ding-lite evolve",
            example="ding-lite evolve dqn CartPole-v1 --population 6 --search lr=1e-4:1e-2:log",
        ),
        "plot": commands.add_parser(
            "plot",
            help="draw the learning curves of runs, and print what they reached",
            description="Draw the learning curves of runs, and print what they reached.",
            usage="ding-lite plot [options] RUN ...",
            prog="ding-lite plot",
            example="ding-lite plot runs/dqn/CartPole-v1/1 --out curves.png",
        ),
        "watch": commands.add_parser(
            "watch",
            help="play with a trained policy, in a window, into a video, or for its returns",
            description="Play with a trained policy, in a window, into a video, or for its "
            "returns.",
            usage="ding-lite watch [options] RUN",
            prog="ding-lite watch",
            example="ding-lite watch runs/dqn/CartPole-v1/1 --record videos",
        ),
        "export": commands.add_parser(
            "export",
            help="write the network of a trained policy as ONNX or torch.export",
            description="Write the network of a trained policy for programs without this package.",
            usage="ding-lite export [options] RUN",
            prog="ding-lite export",
            example="ding-lite export runs/dqn/CartPole-v1/1 --out policy.onnx",
        ),
        "run": commands.add_parser(
            "run",
            help="run a function of a module or a file on several nodes",
            description="Run a function of a module or a file on several nodes.",
            usage="ding-lite run [options] PROGRAM [-- ARGS ...]",
            prog="ding-lite run",
            example="ding-lite run train.py:main --roles learner,collector*3 -- --seed 1",
        ),
        "top": commands.add_parser(
            "top",
            help="show what the nodes of your running jobs do, and renew it every second",
            description="Show what the nodes of your running jobs do, and renew it every second.",
            usage="ding-lite top [options] [JOB]",
            prog="ding-lite top",
            example="ding-lite top --once",
        ),
        "env": commands.add_parser(
            "env",
            help="show every DING_LITE_* variable, its value, and where that comes from",
            description="Show every DING_LITE_* variable, its value, and where that comes from.",
            usage="ding-lite env [--json]",
            prog="ding-lite env",
            example="ding-lite env --json",
        ),
        "doctor": commands.add_parser(
            "doctor",
            help="check that this machine has what ding_lite needs",
            description="Check that this machine has what ding_lite needs.",
            usage="ding-lite doctor",
            prog="ding-lite doctor",
            example="ding-lite doctor",
        ),
        "keygen": commands.add_parser(
            "keygen",
            help="write a new key, which lets nodes of several machines trust each other",
            description="Write a new key, which lets nodes of several machines trust each other.",
            usage="ding-lite keygen FILE",
            prog="ding-lite keygen",
            example="ding-lite keygen job.key",
        ),
    }
    learning.add_train(of_command["train"])
    learning.add_evolve(of_command["evolve"])
    learning.add_plot(of_command["plot"])
    learning.add_watch(of_command["watch"])
    learning.add_export(of_command["export"])
    _add_run(of_command["run"])
    _add_top(of_command["top"])
    of_command["env"].add_argument(
        "--json", action="store_true", help="as JSON, a list with one object a variable"
    )
    of_command["keygen"].add_argument(
        "file",
        type=arguments.path,
        metavar="FILE",
        help="the file to write; it must not exist yet",
    )
    return parser, of_command


def _add_run(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "program",
        metavar="PROGRAM",
        help="package.module:main, or path/to/file.py:main; what comes after `--` stands in "
        "sys.argv, and is passed to a main that takes positional arguments",
    )
    add(
        "--nodes",
        type=arguments.whole_number(1),
        metavar="N",
        help="how many nodes; 1 runs in this process (default: one for each of the roles, else 1)",
    )
    add(
        "--topology",
        type=arguments.topology,
        metavar="{" + ",".join(arguments.TOPOLOGIES) + ",0-1...}",
        help="the connections: all to node 0, each to each, each to one of few hubs, none, "
        "or pairs: 0-1,1-2 (default: DING_LITE_TOPOLOGY, else mesh)",
    )
    add(
        "--roles",
        type=arguments.roles,
        metavar="ROLES",
        help="the role of each node in turn: learner,collector*3; `+` gives one node several: "
        "learner+collector (default: DING_LITE_ROLES, else none)",
    )
    add(
        "--labels",
        type=arguments.names,
        metavar="LABELS",
        help="labels of all nodes beside those that they have anyway: gpu,fast (added to those "
        "of DING_LITE_LABELS)",
    )
    add(
        "--protocol",
        type=arguments.one_of(arguments.PROTOCOLS),
        metavar="{" + ",".join(arguments.PROTOCOLS) + "}",
        help="how nodes talk (default: DING_LITE_PROTOCOL, else ipc)",
    )
    add(
        "--address",
        metavar="HOST",
        help="with tcp, the interface to listen on (default: DING_LITE_ADDRESS, else 127.0.0.1)",
    )
    add(
        "--ports",
        type=arguments.ports,
        metavar="PORTS",
        help="with tcp, the port of node 0, from which the others count on, or that of each: "
        "7000,7001 (default: DING_LITE_PORTS, else free ones)",
    )
    add(
        "--key-file",
        type=arguments.path,
        metavar="FILE",
        help="with tcp, the key that all nodes share, from `ding-lite keygen` (default: "
        "DING_LITE_KEY_FILE, else one of this user's, for this machine only)",
    )
    add(
        "--auto-recover",
        action="store_true",
        help="start a failed node again; without it a failure ends the job",
    )
    add(
        "--max-retries",
        type=arguments.whole_number(0),
        metavar="N",
        help="with --auto-recover, how often each node is started again (default: 3)",
    )
    add(
        "--startup-timeout",
        type=arguments.seconds_or_none,
        default=60.0,
        metavar="SECONDS",
        help="within which all nodes must be connected; `none` waits for ever (default: 60)",
    )


def _add_top(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "job",
        metavar="JOB",
        nargs="?",
        help="which job: its name as the table shows it, the beginning of that, or the process id "
        "of a node (default: all)",
    )
    add("--once", action="store_true", help="show one table, and end")
    add("--json", action="store_true", help="show one JSON object with all that is known, and end")
    add(
        "--every",
        type=arguments.seconds,
        default=1.0,
        metavar="SECONDS",
        help="how long a table stands; the nodes tell something new once a second (default: 1)",
    )

"""`ding-lite run`: find a function by its name, run it on several nodes, and report the result.

An error may be a mistake on the command line, which one sentence explains, or one of the user's
program, which needs a traceback. Both may have the same class. They are distinguished by the
traceback: an error of the program contains frames of its code.
"""

from __future__ import annotations

import argparse
import inspect
import reprlib
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import ConfigError, DingLiteError, did_you_mean, kind_of
from ding_lite.exit_codes import DONE, FAILED, WRONG_USAGE
from ding_lite.io.importing import import_file, import_module, is_file, look_here
from ding_lite.log import configure
from ding_lite.options.words import show
from ding_lite.parallel import Parallel
from ding_lite.parallel.launch.environment import placement_of
from ding_lite.parallel.supervise.tracebacks import within_program
from ding_lite.settings.environment import Settings, process_environ

MOST_SHOWN = 8
"""The maximum number of shown results; those of further nodes are counted."""

Main: TypeAlias = Callable[..., object]


def run_program(options: argparse.Namespace) -> int:
    """Run a program and report how it ended; return the exit code."""
    began = SYSTEM_CLOCK.now()
    try:
        num_nodes = _count_nodes(options)
        if options.max_retries is not None and not options.auto_recover:
            raise ConfigError(
                f"--max-retries is {options.max_retries}, but no node is started again without "
                f"--auto-recover. Add that, or leave --max-retries out."
            )
        main, args = _find(options.program, options.args)
        # So that warnings about nodes that were restarted or ended late are shown.
        configure("warning")
        runner = Parallel.runner(
            num_nodes,
            topology=options.topology,
            protocol=options.protocol,
            address=options.address,
            ports=options.ports,
            labels=options.labels,
            roles=options.roles,
            key_file=options.key_file,
            auto_recover=options.auto_recover,
            max_retries=3 if options.max_retries is None else options.max_retries,
            startup_timeout=options.startup_timeout,
        )
        results = runner(main, *args)
        here = _node_here()
    except Exception as error:  # noqa: BLE001 - whatever the program raises is shown
        return _print_error(error)
    print(summary(results, seconds=SYSTEM_CLOCK.now() - began, here=here), flush=True)
    return DONE


def summary(results: Sequence[object], *, seconds: float, here: str = "") -> str:
    """Describe the result of a successful job in one line; `here` names the only node of it here.

    Example:
        >>> summary([4.0, None], seconds=2.06)
        'ding-lite: 2 nodes finished in 2.1 s; main returned 4.0 on node 0, None on node 1'
        >>> summary([4.0], seconds=3, here="node 1 of 3")
        'ding-lite: node 1 of 3 finished in 3.0 s; main returned 4.0'
        >>> summary([None], seconds=3)
        'ding-lite: 1 node finished in 3.0 s; main returned nothing'
    """
    count = here or ("1 node" if len(results) == 1 else f"{len(results)} nodes")
    start = f"ding-lite: {count} finished in {seconds:.1f} s; main returned"
    if all(result is None for result in results):
        return f"{start} nothing"
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    shown = [
        f"{' '.join(short.repr(result).split())}{'' if here else f' on node {node_id}'}"
        for node_id, result in enumerate(results[:MOST_SHOWN])
    ]
    if others := len(results[MOST_SHOWN:]):
        shown.append(f"and more on {others} other node{'s' * (others > 1)}")
    return f"{start} {', '.join(shown)}"


def _node_here() -> str:
    """Name this node, if other processes have started the others; else return ""."""
    settings = Settings.from_environ()
    place = placement_of(settings, process_environ()) or settings
    if place.node_id is not None and place.num_nodes != 1:
        return f"node {place.node_id}" + (f" of {place.num_nodes}" if place.num_nodes else "")
    return "this node" if settings.attach_to else ""


def _count_nodes(options: argparse.Namespace) -> int:
    """Return the option `--nodes`, by default the number of roles."""
    of_roles = len(options.roles or Settings.from_environ().roles)
    if options.nodes is None:
        return of_roles or 1
    if options.roles and options.nodes != of_roles:
        raise ConfigError(
            f"--nodes is {options.nodes}, and --roles has entries for {of_roles}. Each node needs "
            f"one entry (collector*3 is three); without --nodes there are as many as roles."
        )
    return int(options.nodes)


# -- the program ---------------------------------------------------------------------------


def _find(program: str, words: Sequence[str]) -> tuple[Main, Sequence[str]]:
    """Import a program; return its function and the words that are passed to it."""
    place, _, name = program.rpartition(":")
    if not place or not name.isidentifier():
        raise ConfigError(
            f"The program is {show(program)}; expected is a module or a file, a colon, and a "
            f"function of it: package.module:main, or path/to/file.py:main."
        )
    sys.argv = [place, *words]
    if is_file(place):
        module = import_file(place)
    else:
        look_here()
        module = import_module(place)
        sys.argv[0] = getattr(module, "__file__", None) or place
    main = getattr(module, name, None)
    if not callable(main):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        what = "has no" if main is None else f"has {kind_of(main)} instead of a"
        raise ConfigError(
            f"{place} {what} function `{name}`.{did_you_mean(name, functions)} "
            f"Its functions are: {', '.join(functions) or 'none'}."
        )
    return main, words if _takes_words(main) else ()


def _takes_words(main: Main) -> bool:
    try:
        parameters = inspect.signature(main).parameters.values()
    except (TypeError, ValueError):  # some functions in C have no signature
        return True
    return any(one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD) for one in parameters)


# -- errors --------------------------------------------------------------------------------


def _print_error(error: Exception) -> int:
    """Print an error, with a traceback if it is one of the program; return the exit code."""
    in_program = within_program(error.__traceback__)
    if isinstance(error, DingLiteError) and in_program is None:
        # This includes NodeFailed: its message contains the traceback from the node.
        print(f"ding-lite run: {error}", file=sys.stderr)
        return WRONG_USAGE if isinstance(error, ConfigError) else FAILED
    if in_program is None and isinstance(error, MemoryError | OSError):
        raise error  # an error of the system, which `main` handles
    if in_program is not None or isinstance(error, SyntaxError):
        error = error.with_traceback(in_program)
    traceback.print_exception(error)
    return FAILED

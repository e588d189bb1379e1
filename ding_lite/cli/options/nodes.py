"""The options of `ding-lite run`, `top`, `env` and `keygen`."""

from __future__ import annotations

import argparse

from ding_lite.cli.options import arguments


def add_run(parser: argparse.ArgumentParser) -> None:
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


def add_top(parser: argparse.ArgumentParser) -> None:
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


def add_env(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="as JSON, a list with one object a variable"
    )


def add_keygen(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=arguments.path,
        metavar="FILE",
        help="the file to write; it must not exist yet",
    )

"""`ding-lite env`: show the settings of programs that are started from this shell."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from ding_lite.cli.tables import print_table
from ding_lite.errors import ConfigError
from ding_lite.exit_codes import DONE, WRONG_USAGE
from ding_lite.options.derived import sentences_of
from ding_lite.parallel.launch.environment import Placement, placement_of
from ding_lite.parallel.network.address import LOOPBACK
from ding_lite.settings.environment import PREFIX, Settings, process_environ, variables_set

HEADINGS = ("name", "value", "source", "meaning")


@dataclasses.dataclass(frozen=True)
class Variable:
    """One environment variable, as programs that are started from this shell see it."""

    name: str
    value: object
    """The parsed value; the text if it cannot be parsed."""
    source: str
    """`environment`, the name of the launcher that has started this process, or `default`."""
    meaning: str

    @property
    def cells(self) -> tuple[str, ...]:
        value = self.value
        if isinstance(value, tuple):
            pairs = ("-".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in value)
            value = ",".join(pairs) or None
        if isinstance(value, bool):
            value = int(value)  # as one writes it
        return self.name, "none" if value is None else str(value), self.source, self.meaning


def show_environment(options: argparse.Namespace) -> int:
    """Print all variables, and an error at the end if one is wrong; return the exit code."""
    settings = place = fault = None
    try:
        settings = Settings.from_environ()
        place = placement_of(settings, process_environ())
    except ConfigError as error:
        fault = error
    variables = list_variables(settings, place)
    if options.json:
        print(json.dumps([dataclasses.asdict(variable) for variable in variables], indent=1))
    else:
        cells = [variable.cells for variable in variables]
        print_table(HEADINGS, cells, bold=[one.source != "default" for one in variables])
        if place is not None:
            print(f"\n{describe_place(place)}")
    sys.stdout.flush()
    if fault is not None:
        print(f"ding-lite env: {fault}", file=sys.stderr)
        return WRONG_USAGE
    return DONE


def describe_place(place: Placement) -> str:
    text = f"{place.launcher} has started this process as node {place.node_id} of {place.num_nodes}"
    host = LOOPBACK if place.on_one_machine else place.host
    if not host:
        return f"{text}, without the host of node 0. {place.how_to_tell}"
    return f"{text}. Node 0 is found at {host}:{place.port} by all of them."


def list_variables(settings: Settings | None, place: Placement | None = None) -> list[Variable]:
    """List each variable with its value from `settings` (None: not valid) or from a launcher."""
    typed = variables_set()
    derived: dict[str, object] = {}
    if place is not None:
        derived |= {"num_nodes": place.num_nodes, "node_id": place.node_id, "ports": (place.port,)}
    meanings = sentences_of(Settings)
    found = []
    for field in dataclasses.fields(Settings):
        name = PREFIX + field.name.upper()
        value, source = field.default, "default"
        if name in typed:
            value, source = getattr(settings, field.name, typed[name]), "environment"
        elif place is not None and field.name in derived:
            value, source = derived[field.name], place.launcher
        found.append(Variable(name, value, source, meanings[field.name]))
    return found

"""Connect two nodes: a program that `ding-lite doctor` starts to test the network.

It is a process of its own, so that it runs beside the other checks, and without the DING_LITE_*
variables, which may be meant for another program.
"""

from __future__ import annotations

import json

from ding_lite.cli.parsing.arguments import PROTOCOLS
from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.parallel.launch.launch import Parallel
from ding_lite.parallel.router.group import World

STARTUP_S = 10.0


def meet() -> None:
    World.current().group([0, 1]).barrier(timeout=STARTUP_S)


def main() -> None:
    """Connect two nodes by each protocol; print protocol, error and seconds as a line of JSON."""
    for protocol in PROTOCOLS:
        began, fault = SYSTEM_CLOCK.now(), ""
        try:
            Parallel.runner(
                2, topology="star", protocol=protocol, engine="local", startup_timeout=STARTUP_S
            )(meet)
        except Exception as error:  # noqa: BLE001 - whatever it is, a person is told
            fault = str(error) or type(error).__name__
        print(json.dumps([protocol, fault, SYSTEM_CLOCK.now() - began]), flush=True)


if __name__ == "__main__":
    main()

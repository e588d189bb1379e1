"""Connect two nodes: a program that `ding-lite doctor` starts to test the network.

It is a process of its own, so that it runs beside the other checks, and without the DING_LITE_*
variables, which may be meant for another program.
"""

from __future__ import annotations

import json
import sys

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.parallel.launch.launch import Parallel
from ding_lite.runtime.context import Context
from ding_lite.runtime.task import Task

STARTUP_S = 10.0


def meet() -> None:
    """Send a greeting to the other node, and wait for the greeting of that node."""

    def exchange(ctx: Context) -> None:
        other = 1 - task.router.node_id
        task.send("greetings", "hello", to=f"node.{other}", timeout=STARTUP_S)
        task.receive("greetings", timeout=STARTUP_S)

    with Task() as task:
        task.use(exchange)
        task.run(max_step=1)


def main() -> None:
    """Connect two nodes by each protocol, and print each result as a line of JSON."""
    for protocol in ("ipc", "tcp"):
        began = SYSTEM_CLOCK.now()
        report = {"protocol": protocol, "error": ""}
        try:
            Parallel.runner(
                2, topology="star", protocol=protocol, engine="local", startup_timeout=STARTUP_S
            )(meet)
        except Exception as error:  # noqa: BLE001 - whatever it is, a person is told
            report["error"] = str(error) or type(error).__name__
        sys.stdout.write(json.dumps({**report, "seconds": SYSTEM_CLOCK.now() - began}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Count the modules that a message enters on its way: `python -m tests.message_path`.

Two nodes, each a process with a task, are connected by a socket. A module counts if one of its
functions has the message in a variable, or as the result of a call. So other work of the node, such
as the check for silent peers, does not count.
"""

# ruff: noqa: T201
from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import closing
from functools import partial
from types import FrameType

import msgspec

from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import use_router
from ding_lite.runtime.task import Task

PACKAGE = "ding_lite."
MARK = "this is sent"
SECONDS = 30.0
PAUSE_S = 0.02


def main() -> None:
    """Print both counts, with the modules in the order in which the message enters them."""
    if len(sys.argv) > 1:
        print(*run_node(*sys.argv[1:]))
        return
    sent, received = path_of("ctx")
    for what, names in (
        ("a ctx", [*dict.fromkeys(sent + received)]),
        ("an arriving event", path_of("event")[1]),
    ):
        print(f"modules that {what} enters: {len(names)}:", *names)


def path_of(what: str) -> list[list[str]]:
    """Return the modules that a message enters at its sender, and at its receiver."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, what, f"ipc://{directory}/hub"]
        nodes = [subprocess.Popen([*command, node], stdout=subprocess.PIPE) for node in ("0", "1")]
        return [node.communicate(timeout=2 * SECONDS)[0].decode().split() for node in nodes]


def run_node(what: str, address: str, node: str) -> list[str]:
    """Send or receive one message; return the modules that it has entered here."""
    profile = Profile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    with closing(NodeRouter(spec_of(int(node), address))) as router, use_router(router):
        router.wait_ready(SECONDS)
        with Task() as task:
            receive(task) if node == "1" else send(task, what)
    return [name.removeprefix(PACKAGE) for name in profile.names]


def send(task: Task, what: str) -> None:
    """Run steps until the other node ends the job, and send a message once it listens."""
    begun: list[bool] = []

    def speak(ctx: Context) -> None:
        if begun and begun.pop():
            if what == "ctx":
                ctx.found = {"text": MARK}
            else:
                task.emit("found", MARK, only_remote=True)
        time.sleep(PAUSE_S)

    task.on("begun", lambda: begun.append(True))
    task.use(speak).run(max_step=int(SECONDS / PAUSE_S))


def receive(task: Task) -> None:
    """Run steps until the message has come."""
    received: list[str] = []

    def look(ctx: Context) -> None:
        if ctx.total_step == 0:
            task.emit("begun", only_remote=True)
        ctx.finish = ctx.finish or bool(received) or "found" in task.parallel_ctx
        time.sleep(PAUSE_S)

    task.on("found", received.append)
    task.use(look).run(max_step=int(SECONDS / PAUSE_S))


def spec_of(node: int, address: str) -> NodeSpec:
    return NodeSpec(
        node_id=node,
        num_nodes=2,
        labels=frozenset({f"node.{node}"}),
        listen=None if node else address,
        dials={0: address} if node else {},
        peers=frozenset({1 - node}),
    )


class Profile:
    """Records the modules of the package with a function that has the mark, or returns it."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, result: object) -> None:
        if event in ("call", "return") and module_of(frame).startswith(PACKAGE):
            has_it = any(map(holds, [*frame.f_locals.values()]))
            back = frame.f_back if holds(result) or (event == "call" and has_it) else None
            for each in frame if has_it else None, back:
                if each is not None and module_of(each).startswith(PACKAGE):
                    self.names[module_of(each)] = None


def module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def holds(value: object) -> bool:
    """Tell whether a value contains the mark; attributes of objects do not count."""
    match value:
        case str():
            return MARK in value
        case bytes() | bytearray() | memoryview():
            return MARK.encode() in bytes(value)
        case dict():
            return any(map(holds, [*value.values()]))
        case list() | tuple() | set() | deque():
            return any(map(holds, [*value]))
        case msgspec.Struct():
            return any(holds(getattr(value, name)) for name in value.__struct_fields__)
        case partial():
            return holds(value.args)
    return False


if __name__ == "__main__":
    main()

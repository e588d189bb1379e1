"""The process of one node: import `main`, connect, run it, and report to the launcher.

A node begins as a fork of the fork server, a process with one thread that has imported slow modules
and none of the user's. So each node imports the program itself, as after a fresh start, and shares
no random numbers, files or threads with the others.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import spawn
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import ConfigError, MiddlewareError, kind_of
from ding_lite.interruption import refuse_exit, words_of
from ding_lite.io.files import limit_of
from ding_lite.parallel.memory.segments import remove_own
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.supervise.tracebacks import format_error
from ding_lite.runtime.messaging.labels import describe_node
from ding_lite.runtime.messaging.router import use_router_in_process
from ding_lite.settings.environment import limit_torch_threads

if TYPE_CHECKING:
    from ding_lite.parallel.router.node_router import NodeRouter

SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
ORPHANED_S = 3.0
"""Seconds until a node ends after the launcher and the fork server were killed."""
SWITCH_S = 0.0005
"""The interpreter's switch interval while a node runs `main`: the time that a thread that answers
other nodes waits for a busy thread. Python's default is 5 ms."""

Stage: TypeAlias = Literal["starting", "importing `main`", "connecting", "running `main`"]
STARTING: Stage = "starting"
IMPORTING: Stage = "importing `main`"
CONNECTING: Stage = "connecting"
RUNNING: Stage = "running `main`"

Call: TypeAlias = partial[Any]
"""`main` with its arguments."""


@dataclass(frozen=True)
class Entered:
    """Report: a node has entered its next stage."""

    stage: Stage


@dataclass(frozen=True)
class Returned:
    """Report: `main` has returned."""

    result: Any


@dataclass(frozen=True)
class Failed:
    """Report: a node has raised."""

    stage: Stage
    kind: str
    message: str
    traceback: str
    error: BaseException | None = None
    """The error itself, if it can be passed on."""
    pickled: bytes | None = None
    """The pickled error, on its way to the launcher."""


@dataclass(frozen=True)
class Exited:
    """Report: the process of a node has ended."""

    how: str
    """The rest of a sentence that begins with the node, up to its stage."""
    more: str = ""
    """The end of that sentence."""
    signum: int = 0


@dataclass(frozen=True)
class Stopped:
    """Report: SIGSTOP has stopped the process of a node, or SIGCONT has continued it."""

    pid: int | None
    """The stopped process; None after SIGCONT."""


@dataclass(frozen=True)
class Finish:
    """Command: end the job on this node, since the FINISH of a peer cannot reach it."""


@dataclass(frozen=True)
class Ended:
    """Command: stop waiting for a peer, since its process has ended."""

    node_id: int
    incarnation: int


@dataclass(frozen=True)
class Moved:
    """Command: dial a peer at its new address."""

    node_id: int
    address: str


Command: TypeAlias = Finish | Ended | Moved


def execute(router: NodeRouter, command: Command) -> None:
    match command:
        case Ended(node_id, incarnation):
            router.links.note_ended(node_id, incarnation)
        case Moved(node_id, address):
            router.links.redial(node_id, address)
        case Finish():
            router.finish()


PICKLING_S = 1.0
"""Seconds that a node has to pickle the error that has ended it; it is reported without then."""


class NodeProcess(ForkProcess):
    """The process of one incarnation of a node.

    `life_fd` is a pipe that closes when the launcher ends in any way. `directory` is the job's, and
    is deleted if the launcher and the fork server are gone. `foreign_fds` are descriptors of the
    fork server, which the node closes.
    """

    def __init__(
        self,
        node_id: int,
        connection: Connection[Any, Any],
        *,
        life_fd: int,
        directory: str,
        foreign_fds: tuple[int, ...] = (),
    ) -> None:
        super().__init__(name=f"node {node_id}", daemon=False)
        self.node_id = node_id
        self.is_importing = True
        """Whether the program is still being imported and must not start nodes."""
        self._stage: Stage = STARTING
        self._has_reported = False
        self._connection = connection
        self._life_fd = life_fd
        self._directory = directory
        self._foreign_fds = foreign_fds
        self._may_go = threading.Event()

    def run(self) -> None:
        """Run the node; called in the forked process."""
        os.setpgid(0, 0)  # the launcher passes on Ctrl-C of the terminal
        for fd in self._foreign_fds:
            os.close(fd)
        _start("ding_lite-life", _outlive, self._life_fd, self._directory)
        _reseed()  # the fork server's state would be the same on all nodes

        with self._connection:
            succeeded = self._work()
        atexit._run_exitfuncs()  # a forked process runs none by itself
        raise SystemExit(0 if succeeded else 1)

    def _work(self) -> bool:
        try:
            with self._reporting():
                _take_signals()
                spec, call = self._load()
                # Not at the top: the fork server needs no transport.
                from ding_lite.parallel.launch.membership import router_of

                self.name = describe_node(self.node_id, spec.labels)
                self._enter(CONNECTING)
                with leaving(router_of(spec)) as router, self._reporting():
                    router.wait_ready(spec.startup_timeout)
                    _start("ding_lite-launcher", self._read_commands, router)
                    self._enter(RUNNING)
                    with node_of(router):
                        result = call_main(call)
                self._send_result(result)
        except BaseException:  # noqa: BLE001 - has been reported; the launcher raises it
            return False
        return True

    def _read_commands(self, router: NodeRouter) -> None:
        """Handle commands of the launcher while `main` runs, until the last one (None)."""
        try:
            while (command := self._connection.recv()) is not None:
                execute(router, command)
        except (EOFError, OSError):
            pass
        except TypeError:  # the descriptor is None: another thread has closed the connection
            if not self._connection.closed:
                raise
        finally:
            self._may_go.set()

    def _enter(self, stage: Stage) -> None:
        self._stage = stage
        self._connection.send(Entered(stage))

    def _load(self) -> tuple[NodeSpec, Call]:
        preparation = self._connection.recv()
        self._enter(IMPORTING)
        # Before the import, which may take long: the launcher waits until all is received.
        pickled_main, pickled_arguments = (self._connection.recv_bytes() for _ in range(2))
        spawn.prepare(preparation)
        try:
            spec, main = ForkingPickler.loads(pickled_main)
            args, kwargs = self._load_arguments(pickled_arguments)
        except AttributeError as error:
            raise ConfigError(
                f"Node {self.node_id} has imported the program anew and cannot find `main` in "
                f"it, or an argument of `main`: {error}. Define it at the top level of a "
                f"module, outside of `if __name__ == '__main__'`."
            ) from error
        except ImportError as error:
            raise ConfigError(
                f"Node {self.node_id} cannot import the module of `main`, or of an argument of "
                f"`main`, by the name that it has in the program: {error}. The nodes have the "
                f"same `sys.path`; add the folder of the module to it (PYTHONPATH, or "
                f"`pythonpath` in the settings of pytest)."
            ) from error
        self.is_importing = False
        return spec, partial(main, *args, **kwargs)

    def _load_arguments(self, pickled: bytes) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        try:
            args, kwargs = ForkingPickler.loads(pickled)
        except (AttributeError, ImportError):
            raise
        except Exception as error:
            raise ConfigError(
                f"An argument of `main` cannot be read again on node {self.node_id}: "
                f"{type(error).__name__}: {words_of(error)}. Pass the arguments to make it from, "
                f"and make it inside of `main`."
            ) from error
        return args, kwargs

    def _send_result(self, result: object) -> None:
        try:
            self._connection.send(Returned(result))
        except OSError:
            raise
        except Exception as error:
            raise ConfigError(
                f"`main` of node {self.node_id} returned {kind_of(result)} that cannot "
                f"be passed to another process: {words_of(error)}. Return numbers, strings, "
                f"arrays, or lists and dicts of such."
            ) from error
        self._may_go.wait()  # shared tensors are freed when this process ends

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report an error to the launcher at once; closing resources may take a while."""
        try:
            yield
        except BaseException as error:
            if not self._has_reported:
                self._has_reported = True
                self._report(error)
            raise

    def _report(self, error: BaseException) -> None:
        text = format_error(error)
        kind = type(error).__qualname__
        with suppress(OSError):  # the launcher has ended
            message, pickled = _message_of(error), _pickled(error)
            self._connection.send(Failed(self._stage, kind, message, text, pickled=pickled))


def _pickled(error: BaseException) -> bytes | None:
    """Pickle an error; None if that raises or takes long, as its `__reduce__` may do anything."""
    found: list[bytes] = []

    def pickle() -> None:
        with suppress(Exception):
            found.append(bytes(ForkingPickler.dumps(error)))

    thread = threading.Thread(target=pickle, name="ding_lite-error", daemon=True)
    thread.start()
    thread.join(PICKLING_S)
    return found[0] if found else None


def explain_unpicklable(parts: Mapping[str, object], error: Exception) -> str:
    for name, part in parts.items():
        try:
            ForkingPickler.dumps(part)
        except Exception as fault:  # noqa: BLE001 - pickling may raise anything
            shown = repr(part)
            shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
            return (
                f"{name} is {shown}, which cannot be passed to another process: {fault}. "
                f"Pass the arguments to make it from, and make it inside of `main`."
            )
    return f"`main` and its arguments cannot be passed to another process: {error}."


def unpickled(error: bytes) -> BaseException | None:
    """Return an error that a node has pickled; None if its class raises while it is read."""
    try:
        found: BaseException = ForkingPickler.loads(error)
        return found
    except Exception:  # noqa: BLE001 - of any kind
        return None


def _message_of(error: BaseException) -> str:
    lines = traceback.format_exception_only(error)
    message = lines[0].strip().partition(": ")[2] if len(lines) == 1 else words_of(error)
    limit = limit_of(error)
    return f"{message}. {limit}" if limit else message


@contextmanager
def node_of(router: NodeRouter) -> Iterator[None]:
    """Make this process a node within the block: its router, Ctrl-C and the switch interval."""
    before = sys.getswitchinterval()
    with router.deferred_sigint.installed(), use_router_in_process(router):
        sys.setswitchinterval(min(before, SWITCH_S))
        try:
            yield
        finally:
            sys.setswitchinterval(before)


def call_main(call: Call) -> Any:
    """Call `main`; `sys.exit()` within it is a return, and KeyboardInterrupt by hand an error."""
    limit_torch_threads()
    try:
        return call()
    except SystemExit as error:
        if error.code in (None, 0):
            return None
        raise
    except KeyboardInterrupt as error:
        advice = "Set `task.finish = True` to end the job, or raise an error."
        refuse_exit(error, "`main`", MiddlewareError, advice)


@contextmanager
def leaving(router: NodeRouter) -> Iterator[NodeRouter]:
    """Close a router at the end, without a good-bye if the node may be restarted."""
    good_bye = True
    try:
        yield router
    except (Exception, SystemExit):  # `sys.exit(0)` in `main` has become a return
        good_bye = False
        raise
    finally:
        router.close(good_bye=good_bye)


def _reseed() -> None:
    np.random.seed(None)
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed()


def _take_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _start(name: str, target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, name=name, daemon=True).start()


def _outlive(life_fd: int, directory: str) -> None:
    """Wait until the launcher has ended; then kill this node and all processes it started."""
    while os.read(life_fd, 1):
        pass
    SYSTEM_CLOCK.sleep(ORPHANED_S)  # the fork server ends this node earlier, in order
    shutil.rmtree(directory, ignore_errors=True)
    remove_own()
    os.killpg(0, signal.SIGKILL)

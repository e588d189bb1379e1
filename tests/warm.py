"""A process that has imported everything, and forks a child for each command line or script.

Thousands of command lines can be tried this way: a start of Python that imports PyTorch takes
seconds, a fork some milliseconds. Each child is a process of its own all the same: it has its own
working directory, standard streams, environment and limits, and leaves by an exit code.

Requests and answers are JSON objects, one in each line, on standard input and output.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import fcntl
import gc
import importlib
import io
import json
import multiprocessing
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple, NoReturn

from tests.cli.calls import ROOT, environment

MEMORY_BYTES = 8 << 30
"""Address space of a child. What slips through a check ends with MemoryError, and disturbs
nothing else on the machine."""
MOST_SAID = 100_000
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET, MS_RDONLY = 0x00020000, 0x10000000, 0x40000000, 1
"""As the headers of Linux spell them."""
STRICT = ["error", "ignore:builtin type:DeprecationWarning"]
"""Box2D warns while Python loads it, and Python crashes where that is an error."""
STAND_IN = ROOT / "tests" / "programs" / "forked_interpreter.py"
ASKED_AT = "TESTS_FORK_INTERPRETERS_AT"
COMMANDS = (
    *(
        f"ding_lite.cli.{name}"
        for name in ("env", "export", "keygen", "plot", "run", "top", "train", "watch")
    ),
    *("ding_lite.cli.report.report", "ding_lite.cli.report.runs"),
    *("ding_lite.distributed", "ding_lite.evolution", "ding_lite.middleware", "ding_lite.testing"),
    *("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
    *("rich.live", "tensorboard.summary.writer.event_file_writer"),
)
"""The modules of the command line."""
NODES = (
    *("ding_lite.distributed", "ding_lite.parallel", "ding_lite.runtime", "ding_lite.testing"),
    "ding_lite.parallel.supervise.fork_server",
)
"""The modules of programs that import no torch, which makes a fork three times as expensive."""
PROGRAMS = (
    *("ding_lite.distributed", "ding_lite.evolution", "ding_lite.middleware", "ding_lite.recipes"),
    *("ding_lite.testing", "matplotlib.backends.backend_agg", "matplotlib.figure"),
    "tensorboard.summary.writer.event_file_writer",
)
"""The modules of programs that learn."""

_stand_in = ""
_code: int | None = None
"""The exit code of a child that does not take Python apart at its end."""


class Output(NamedTuple):
    code: int | None
    """Its exit code, negative for a signal; None where it did not end in time."""
    out: str
    err: str
    seconds: float


class Child:
    """A child that runs a script concurrently with the caller.

    It is a child of the process that forked it, which is why this is no `subprocess.Popen`.
    """

    def __init__(self, parent: Warm, pid: int, stdout: IO[str]) -> None:
        self.pid = pid
        self.stdout = stdout
        self._parent = parent
        self._handle = os.pidfd_open(pid)
        self._code: int | None = None

    def wait(self) -> int:
        """Wait for the end; return the exit code, negative for a signal."""
        if self._code is None:
            select.select([self._handle], [], [])
            os.close(self._handle)
            self._code = int(self._parent.ask(wait=self.pid))
        return self._code

    def poll(self) -> int | None:
        """Return the exit code; None while the child runs."""
        if self._code is None and not select.select([self._handle], [], [], 0.0)[0]:
            return None
        return self.wait()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """The caller's side of the process."""

    def __init__(self, preload: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", *preload],
            cwd=ROOT,
            env=environment(OMP_NUM_THREADS="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(
        self,
        words: Sequence[str],
        folder: Path,
        *,
        seconds: float = 15.0,
        file_bytes: int | None = None,
        variables: Mapping[str, str] | None = None,
        closed: Sequence[int] = (),
        streams: Mapping[int, str] | None = None,
        disk: str | None = None,
    ) -> Output:
        """Run a command line in a child.

        Args:
            words: What is typed after `ding-lite`.
            folder: Where.
            seconds: After which it is killed, and counts as hanging.
            file_bytes: How large a file may become.
            variables: Environment variables.
            closed: Standard streams that the child does not have.
            streams: Files in place of standard streams; `|` is a pipe without a reader.
            disk: The options of a file system that is mounted at the folder for this child alone.
        """
        printed = self.ask(
            words=[*words],
            folder=str(folder),
            seconds=seconds,
            file_bytes=file_bytes,
            variables={**(variables or {})},
            closed=[*closed],
            streams={**(streams or {})},
            disk=disk,
        )
        return Output(*printed)

    def run(
        self,
        script: Path,
        *words: str,
        seconds: float,
        folder: Path | None = None,
        strict: bool = False,
        finalize: bool = True,
        variables: Mapping[str, str] | None = None,
    ) -> Output:
        """Run a script in a child, until the child and its exit handlers end.

        Args:
            script: The path of the script.
            words: Its arguments.
            seconds: After which it is killed, and counts as hanging.
            folder: Where it runs; by default in its own folder.
            strict: Whether a warning is an error.
            finalize: Whether Python then destroys all objects and modules, which takes longer
                than a small program.
            variables: Environment variables.
        """
        printed = self.ask(
            script=str(script),
            words=[*words],
            folder=str(folder or script.parent),
            seconds=seconds,
            strict=strict,
            finalize=finalize,
            variables={**(variables or {})},
        )
        return Output(*printed)

    def start(
        self,
        script: Path,
        *words: str,
        folder: Path,
        variables: Mapping[str, str],
        machine: int | None = None,
    ) -> Child:
        """Start a script in a child, with its errors in its output.

        Args:
            script: The path of the script.
            words: Its arguments.
            folder: Where it runs.
            variables: Environment variables.
            machine: A process; the child enters its network and user namespaces.
        """
        reading, writing = os.pipe()
        pid = self.ask(
            script=str(script),
            words=[*words],
            folder=str(folder),
            output=f"/proc/{os.getpid()}/fd/{writing}",
            variables={**variables},
            machine=machine,
        )
        os.close(writing)
        return Child(self, int(pid), open(reading))

    def ask(self, **asked: object) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(asked) + "\n")
        stdin.flush()
        return json.loads(stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def warm(preload: Sequence[str]) -> Iterator[Warm]:
    process = Warm(preload)
    try:
        yield process
    finally:
        process.close()


def serve() -> None:
    """Answer requests until standard input ends."""
    global _stand_in
    atexit.register(_leave)  # before all others, so that it comes after them
    gc.disable()
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # a collection in a child would copy the pages that it shares with this process
    gc.enable()

    # A child must not read what is meant for this process, nor write among the answers.
    asking, answering = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    folder = Path(tempfile.mkdtemp())
    _stand_in = str(folder / "python")
    Path(_stand_in).write_text(f"#!{sys.executable} -ISE\n" + STAND_IN.read_text())
    Path(_stand_in).chmod(0o700)
    for line in asking:
        answering.write(json.dumps(_answer(json.loads(line))) + "\n")
        answering.flush()
    shutil.rmtree(folder)  # by no `finally`, through which each child would come as it ends


def _answer(asked: Mapping[str, Any]) -> Output | int:
    """Start or wait for a child of `Warm.start`, or do both for one of `run` or `call`."""
    from ding_lite.clock import SYSTEM_CLOCK

    if "wait" in asked:
        _, status = os.waitpid(asked["wait"], 0)
        return os.waitstatus_to_exitcode(status)
    if "output" in asked:
        with open(asked["output"], "wb") as output:
            return _fork(asked, output, output)
    out, err = (_unnamed_file() for _ in range(2))
    began = SYSTEM_CLOCK.now()
    pid = _fork(asked, out, err)
    watched = os.pidfd_open(pid)
    ready, _, _ = select.select([watched], [], [], asked["seconds"])
    os.close(watched)
    if not ready:
        with suppress(ProcessLookupError):  # the child has made a group of its own by now, or ended
            os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status) if ready else None
    seconds = SYSTEM_CLOCK.now() - began
    return Output(code, _read(out), _read(err), seconds)


def _fork(asked: Mapping[str, Any], out: IO[bytes], err: IO[bytes]) -> int:
    """Fork a child that is the script or the command; return its process id."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.chdir(asked["folder"])
        if "script" not in asked:
            _be_the_command(asked, out, err)
        if asked.get("machine") is not None:
            _enter(asked["machine"])
        _fork_interpreters(strict=asked.get("strict", False))
        _be_the_script(asked, out, err)
    return pid


def _enter(machine: int) -> None:
    """Do what `nsenter --user --net --target MACHINE` does."""
    system, handle = ctypes.CDLL(None, use_errno=True), os.pidfd_open(machine)
    if system.setns(handle, CLONE_NEWUSER | CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(handle)


def _be_the_script(asked: Mapping[str, Any], out: IO[bytes], err: IO[bytes]) -> NoReturn:
    """Do what `python SCRIPT` does, and exit as Python does."""
    global _code
    script = Path(asked["script"])
    os.environ.update(asked["variables"], PYTHONPATH=str(ROOT), MPLBACKEND="Agg")
    tempfile.tempdir = None  # or what it was in the process that has forked this one
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    for file in {out, err}:
        file.close()  # else a pipe stays open behind `close_fds`
    if asked.get("strict"):
        _be_strict()
    sys.argv = [str(script), *asked["words"]]
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.path.insert(0, str(script.parent))
    main = ModuleType("__main__")
    main.__dict__.update(__file__=str(script), __builtins__=builtins)
    sys.modules["__main__"] = main
    try:
        exec(compile(script.read_text(), str(script), "exec"), main.__dict__)
        sys.exit()
    except (SystemExit, Exception) as end:
        if not asked.get("finalize", True):
            code = end.code if isinstance(end, SystemExit) else 1
            _code = code if isinstance(code, int) else int(code is not None)
        raise


def _leave() -> None:
    """End a child with an exit code that is known."""
    if _code is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_code)


def _be_strict() -> None:
    sys.warnoptions[:] = STRICT
    warnings._processoptions(STRICT)  # type: ignore[attr-defined]


def _fork_interpreters(*, strict: bool) -> None:
    """Make multiprocessing fork this process in its current state instead of starting interpreters.

    This affects the fork servers of nodes and of environments. They, their children and their
    messages are real; only the start of the interpreter and the imports are saved. Tests of
    `tests/procs` that do not fork start an interpreter, as users do.
    """
    address = f"ding_lite-tests-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{address}")
    listener.listen()
    os.environ[ASKED_AT] = address
    multiprocessing.set_executable(_stand_in)
    launcher = os.getpid()
    if os.fork() == 0:
        _be_the_template(listener, launcher, strict=strict)
    listener.close()


def _be_the_template(listener: socket.socket, launcher: int, *, strict: bool) -> NoReturn:
    """Fork an interpreter whenever one is asked for, until the launcher ends."""
    os.setpgid(0, 0)
    os.chdir("/")
    watched: list[Any] = [listener, os.pidfd_open(launcher)]
    while listener in select.select(watched, [], [])[0]:
        asking, _ = listener.accept()
        packet, fds, _, _ = socket.recv_fds(asking, 1 << 20, 64)
        pid = os.fork()
        if pid == 0:
            _be_the_interpreter(json.loads(packet), fds, strict=strict)
        asking.send(b"%d" % pid)
        asking.close()
        for fd in fds:
            os.close(fd)
    os._exit(0)


def _be_the_interpreter(asked: Mapping[str, Any], fds: Sequence[int], *, strict: bool) -> NoReturn:
    """Do what `python -c CODE` does, until the code ends."""
    os.setsid()
    held = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 500) for fd in fds]
    os.closerange(3, 500)
    for fd, number in zip(held, asked["fds"], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(asked["environ"])
    os.chdir(asked["cwd"])
    if strict:
        _be_strict()
    code, *words = asked["words"][asked["words"].index("-c") + 1 :]
    sys.argv = ["-c", *words]
    with suppress(SystemExit):  # nothing of it may reach what this process was before
        try:
            exec(code, {"__name__": "__main__"})
        except Exception:  # noqa: BLE001 - as Python does with what nothing catches
            traceback.print_exc()
    os._exit(0)


def _be_the_command(asked: Mapping[str, Any], out: IO[bytes], err: IO[bytes]) -> NoReturn:
    code = 99
    try:
        os.environ.update(asked["variables"])
        if asked["disk"] is not None:
            _mount(asked["folder"], asked["disk"])
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if asked["file_bytes"] is not None:
            limit = asked["file_bytes"]
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for number, usual in ((1, out), (2, err)):
            os.dup2(_output(asked["streams"].get(str(number)), usual), number)
        for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
            if number in asked["closed"]:
                os.close(number)
                setattr(sys, name, None)
            else:
                mode = "r" if number == 0 else "w"
                errors = "backslashreplace" if number == 2 else "strict"
                buffering = 1 if number == 2 else -1
                encoding = asked["variables"].get("PYTHONIOENCODING", "utf-8")
                stream: IO[str]
                if number == 1 and "PYTHONUNBUFFERED" in asked["variables"]:
                    raw = io.FileIO(1, "w", closefd=False)
                    stream = io.TextIOWrapper(raw, encoding, errors, write_through=True)
                else:
                    stream = open(number, mode, buffering, encoding, errors, closefd=False)  # noqa: SIM115
                setattr(sys, name, stream)
        code = _run(asked["words"])
    finally:
        os._exit(code)


def _mount(folder: str, options: str) -> None:
    """Do what `unshare --map-root-user --mount` and `mount -t tmpfs` do."""
    system, ids = ctypes.CDLL(None, use_errno=True), (os.getuid(), os.getgid())
    if system.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {ids[0]} 1"),
        ("gid_map", f"0 {ids[1]} 1"),
    ):
        Path("/proc/self", name).write_text(text)
    flags, data = (MS_RDONLY, "") if options == "ro" else (0, options)
    if system.mount(b"none", folder.encode(), b"tmpfs", flags, data.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    os.chdir(folder)


def _output(name: str | None, usual: IO[bytes]) -> int:
    if name == "|":
        reading, writing = os.pipe()
        os.close(reading)
        return writing
    return usual.fileno() if name is None else os.open(name, os.O_WRONLY)


def _run(words: list[str]) -> int:
    """Run a script as Python does: show an uncaught exception, and flush."""
    from ding_lite.cli.main import main

    code = 99
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - as Python does with what nothing catches
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            if sys.stderr is not None:
                sys.stderr.write(f"Exception ignored while flushing: {error}\n")
            code = 120
    return code


def _unnamed_file() -> IO[bytes]:
    return tempfile.TemporaryFile()


def _read(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read(MOST_SAID).decode(errors="replace")


if __name__ == "__main__":
    serve()

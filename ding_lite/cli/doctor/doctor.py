"""`ding-lite doctor`: check the requirements of ding_lite on this machine, with remedies."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from packaging.requirements import Requirement

from ding_lite.cli.parsing.arguments import PROTOCOLS
from ding_lite.errors import ConfigError, pip_line
from ding_lite.exit_codes import DONE, FAILED
from ding_lite.io.memory import available_bytes
from ding_lite.settings.environment import PREFIX, Settings, process_environ

Level: TypeAlias = Literal["ok", "-", "warn", "fail"]

PACKAGE = "ding_lite"
OLDEST_PYTHON = (3, 11)
LITTLE_MEMORY = 1 << 30
LITTLE_SHARED = 256 << 20
LITTLE_DISK = 1 << 30
MEETING_S = 40.0
_EXTRAS = {
    "atari": "Atari games",
    "box2d": "LunarLander, BipedalWalker and CarRacing",
    "minatar": "MinAtar's small games",
    "envpool": "EnvPool's vectors of environments in C++",
    "mujoco": "HalfCheetah, Ant and the other MuJoCo tasks",
    "video": "windows, and .mp4 files where there is no ffmpeg",
    "fast": "a faster prioritized replay",
    "ray": "nodes on a Ray cluster",
    "accelerate": "several GPUs by Hugging Face Accelerate",
    "export": "policies as ONNX files",
    "wandb": "metrics in Weights & Biases",
    "mlflow": "metrics in MLflow",
    "tune": "searches with Optuna",
}
_COLORS = {"ok": "green", "-": "", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    level: Level
    subject: str
    found: str
    advice: str = ""
    """The advice, if the level is not `ok`."""


def examine(_: object = None) -> int:
    """Run all checks, print a line about each result, and return the exit code."""
    levels = []
    meeting = _Meeting()
    for look in (
        _python,
        _environment,
        _packages,
        _processors,
        _memory,
        _shared_memory,
        _disk,
        _extras,
        _torch,
        meeting.look,
    ):
        for finding in _findings(look):
            levels.append(finding.level)
            _print(finding)
    if "fail" not in levels:
        warned = levels.count("warn")
        print(f"\n{f'{warned} to look at; ' if warned else ''}ding_lite can run on this machine.")
        return DONE
    print(f"\n{levels.count('fail')} to mend.")
    return FAILED


def _findings(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the results of one check; an exception of the check is a failed result."""
    try:
        yield from look()
    except Exception as error:  # noqa: BLE001 - whatever it is, a person is told
        subject = look.__name__.strip("_").replace("_", " ")
        yield Finding("fail", subject, f"{type(error).__name__}: {error}", "Mend that first.")


def _judged(subject: str, found: str, is_enough: bool, advice: str) -> Finding:
    return Finding("ok", subject, found) if is_enough else Finding("warn", subject, found, advice)


def _print(finding: Finding) -> None:
    from rich.console import Console
    from rich.text import Text

    level = (f"{finding.level:<4}", _COLORS[finding.level])
    line = Text.assemble(level, f"  {finding.subject:<14}  {finding.found}")
    Console().print(line, soft_wrap=True)
    if finding.advice:
        print(f"{'':<22}{finding.advice}")


def _python() -> Iterator[Finding]:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < OLDEST_PYTHON:
        yield Finding("fail", "python", found, "Install Python 3.11 or newer.")
    else:
        is_linux = sys.platform == "linux"
        yield _judged("python", found, is_linux, "ding_lite is tested on Linux only.")


def _environment() -> Iterator[Finding]:
    try:
        Settings.from_environ()
    except ConfigError as error:
        yield Finding("fail", "environment", str(error), "`ding-lite env` shows all variables.")
    else:
        yield Finding("ok", "environment", "every DING_LITE_* variable that is set makes sense")


# -- packages ----------------------------------------------------------------------------


def _packages() -> Iterator[Finding]:
    try:
        wanted = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        advice = "Run `pip install -e .` in the checkout, so that what it needs is known."
        yield Finding("warn", "packages", f"{PACKAGE} is not installed, only found", advice)
        return
    fine = []
    for one in map(Requirement, wanted):
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        found, is_enough = _installed(one)
        if is_enough:
            fine.append(found)
        else:
            yield Finding("fail", one.name, found, f'pip install "{one.name}{one.specifier}"')
    yield Finding("ok", "packages", ", ".join(fine))


def _extras() -> Iterator[Finding]:
    for extra, purpose in _EXTRAS.items():
        try:
            needed = sorted(_needed_by(PACKAGE, extra), key=lambda one: extra not in one.name)
        except importlib.metadata.PackageNotFoundError:
            return
        found = [_installed(one) for one in needed]
        if not needed:
            continue
        if _version_of(needed[0].name) is None:  # the others may be installed for another reason
            yield Finding("-", extra, f"not installed; for {purpose}: {pip_line(extra)}")
        elif faults := [text for text, is_enough in found if not is_enough]:
            yield Finding("warn", extra, f"for {purpose}: {', '.join(faults)}", pip_line(extra))
        else:
            yield Finding("ok", extra, f"{', '.join(text for text, _ in found)}, for {purpose}")


def _installed(one: Requirement) -> tuple[str, bool]:
    """Describe the installed version of a package; return whether it is enough."""
    version = _version_of(one.name)
    if version is None:
        return f"{one.name} is not installed", False
    if one.specifier.contains(version, prereleases=True):
        return f"{one.name} {version}", True
    return f"{one.name} {version} is not {one.specifier}", False


def _needed_by(package: str, extra: str) -> Iterator[Requirement]:
    """Yield the requirements of an extra, including those of extras of these packages."""
    for one in map(Requirement, importlib.metadata.requires(package) or []):
        marker = one.marker
        if (
            marker is None
            or marker.evaluate({"extra": ""})
            or not marker.evaluate({"extra": extra})
        ):
            continue
        if not one.extras:
            yield one
        elif _version_of(one.name) is not None:
            for inner in one.extras:
                yield from _needed_by(one.name, inner)


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# -- the machine -------------------------------------------------------------------------


def _processors() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    found = "1 core" if cores == 1 else f"{cores} cores"
    quota = _core_quota()
    if quota is not None and quota < cores:
        found += f", of which this container may use {quota:g}"
    is_enough = min(cores, quota or cores) >= 2
    yield _judged("processors", found, is_enough, "Nodes of one machine will take turns.")


def _core_quota() -> float | None:
    """Read the number of cores that the container may use; None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _memory() -> Iterator[Finding]:
    free = available_bytes()
    advice = "Choose small replays, and few nodes."
    yield _judged("memory", f"{_gigabytes(free)} free", free >= LITTLE_MEMORY, advice)


def _shared_memory() -> Iterator[Finding]:
    path = Path("/dev/shm")
    if not path.is_dir() or not os.access(path, os.W_OK):
        advice = "Mount a tmpfs there: environments in worker processes need it, and without it "
        advice += "weights go from node to node by socket, which is slower."
        yield Finding("fail", "shared memory", f"{path} cannot be written to", advice)
        return
    free = shutil.disk_usage(path).free
    found = f"{_gigabytes(free)} free in {path}"
    advice = "Large weights need more: docker run --shm-size=1g."
    yield _judged("shared memory", found, free >= LITTLE_SHARED, advice)


def _disk() -> Iterator[Finding]:
    runs = Path("runs")
    place = runs if runs.is_dir() else Path()
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        advice = "Change to a directory that you may write to, or give programs `--out DIR`."
        yield Finding("fail", "runs", f"{place.resolve()}: {error.strerror}", advice)
        return
    free = shutil.disk_usage(place).free
    found = f"{place.resolve()} can be written to, {_gigabytes(free)} free"
    is_enough = free >= LITTLE_DISK
    yield _judged("runs", found, is_enough, "Checkpoints with large replays need more.")


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"


# -- nodes -------------------------------------------------------------------------------


class _Meeting:
    """Two nodes that connect in the background while the other checks run."""

    def __init__(self) -> None:
        environ = process_environ()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ding_lite.cli.doctor.nodes"],
            env={name: environ[name] for name in environ if not name.startswith(PREFIX)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def look(self) -> Iterator[Finding]:
        try:
            out, error = self._process.communicate(timeout=MEETING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, error = self._process.communicate()
            error = f"not within {MEETING_S:.0f} s; {error}"
        advice = "docs/troubleshooting.md tells what may stand between two nodes."
        answers = {protocol: answer for protocol, *answer in map(json.loads, out.splitlines())}
        no_answer = (error.strip().splitlines() or ["no answer"])[-1], 0.0
        for protocol in PROTOCOLS:
            fault, seconds = answers.get(protocol, no_answer)
            subject, found = f"nodes by {protocol}", f"two nodes connected in {seconds:.1f} s"
            if fault:
                yield Finding("fail", subject, fault.splitlines()[0], advice)
            else:
                yield Finding("ok", subject, found)


# -- PyTorch -----------------------------------------------------------------------------


def _torch() -> Iterator[Finding]:
    try:
        threads = Settings.from_environ().torch_threads
    except ConfigError:  # already reported by `_environment`
        threads = Settings().torch_threads
    found = f"PyTorch uses {threads or 'as many as it likes'} in each process"
    yield Finding("ok", "threads", f"{found} (DING_LITE_TORCH_THREADS)")
    import torch  # imported late, as this is the slowest part

    if torch.cuda.is_available():
        names = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
        yield Finding("ok", "gpu", f"{torch.cuda.device_count()}: {', '.join(sorted(names))}")
    else:
        yield Finding("ok", "gpu", "none; policies train on the CPU")

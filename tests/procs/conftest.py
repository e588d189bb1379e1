"""Fixtures of the tests with processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ding_lite.parallel.network.address import LOOPBACK, free_ports
from tests.procs.programs import Forked, command_of, short_folder
from tests.procs.shells import Shells, Type
from tests.warm import NODES, PROGRAMS, Warm, warm

Fork = Callable[..., Forked]
RunForked = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.procs)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return an empty folder with a short path."""
    with short_folder() as path:
        yield path


@pytest.fixture
def port() -> int:
    """Return a free port, which stands for 50515 in the lines of a test."""
    return free_ports(LOOPBACK, 1)[0]


@pytest.fixture
def type_line(folder: Path, port: int) -> Iterator[Type]:
    """Return what types a line into a shell of its own; all of them end with the test."""
    with ExitStack() as stack:
        yield Shells(folder, stack, port).type_line


@pytest.fixture(scope="session")
def _nodes() -> Iterator[Warm]:
    with warm(NODES) as process:
        yield process


@pytest.fixture(scope="session")
def _learners() -> Iterator[Warm]:
    with warm([*PROGRAMS, "accelerate", "torch._dynamo"]) as process:
        yield process


@pytest.fixture
def fork(_nodes: Warm, folder: Path) -> Fork:
    """Return what starts a program without a start of Python, see `Forked`."""
    return partial(_fork, _nodes, folder)


@pytest.fixture
def fork_learner(_learners: Warm, folder: Path) -> Fork:
    """Return what does the same for programs that import torch."""
    return partial(_fork, _learners, folder)


def _fork(
    process: Warm,
    folder: Path,
    name: str = "",
    *,
    source: str = "",
    variables: dict[str, str] | None = None,
    machine: int | None = None,
    **given: Any,
) -> Forked:
    command = command_of(name, **given) if name else ()
    return Forked(process, folder, source, *command, variables=variables, machine=machine)


@pytest.fixture
def run_forked(fork: Fork) -> RunForked:
    """Return what does as `fork`, and gives the output of a program that ends well."""
    return partial(_run, fork)


@pytest.fixture
def run_learner(fork_learner: Fork) -> RunForked:
    """Return what does the same for programs that import torch."""
    return partial(_run, fork_learner)


def _run(fork: Fork, name: str, **given: Any) -> str:
    with fork(name, **given) as program:
        return program.result()


@pytest.fixture
def fork_line(_nodes: Warm, folder: Path, port: int) -> Iterator[Type]:
    """Return what forks the program that a line starts, such as `A=b python train.py`."""
    with ExitStack() as stack:
        yield Shells(folder, stack, port, _nodes).type_line


@pytest.fixture
def fork_learner_line(_learners: Warm, folder: Path, port: int) -> Iterator[Type]:
    """Return what does the same for programs that import torch."""
    with ExitStack() as stack:
        yield Shells(folder, stack, port, _learners).type_line

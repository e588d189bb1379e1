"""Find Accelerate, and check that this process is one of those that were started."""

from __future__ import annotations

import sys

import pytest

from ding_lite.distributed import Processes
from ding_lite.distributed.accelerate.accelerator import _check_is_as_started, _check_place
from ding_lite.errors import ConfigError, MissingExtraError


def test_a_launcher_that_started_one_process_instead_of_two_is_an_error() -> None:
    launched = {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_PORT": "29500"}
    with pytest.raises(ConfigError, match=r"has started one.*torchrun --nproc-per-node 2"):
        _check_is_as_started(1, launched)
    _check_is_as_started(2, launched | {"WORLD_SIZE": "2"})
    _check_is_as_started(1, {"ACCELERATE_MIXED_PRECISION": "no"})  # one was asked for
    _check_is_as_started(1, {"MASTER_PORT": "29500"})
    with pytest.raises(ConfigError, match=r"one of 2 processes.*Accelerator\(cpu=True\)"):
        _check_is_as_started(1, {"WORLD_SIZE": "2"})


def test_the_number_of_processes_is_a_whole_number_or_not_set() -> None:
    _check_is_as_started(1, {"WORLD_SIZE": ""})
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is 'two'; a whole number was expected"):
        _check_is_as_started(1, {"WORLD_SIZE": "two"})


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"WORLD_SIZE": "2"}, "`RANK` is not set, `WORLD_SIZE` is 2"),
        ({"RANK": "1"}, "`RANK` is 1, `WORLD_SIZE` is not set"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, "`RANK` is 2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "`MASTER_ADDR` is not set"),
        ({"RANK": "first", "WORLD_SIZE": "2"}, "RANK is 'first'; a whole number was expected"),
    ],
)
def test_a_process_without_a_place_among_the_others_is_refused(
    variables: dict[str, str], found: str
) -> None:
    with pytest.raises(ConfigError, match=found):
        _check_place(variables)
    for usual in ({}, {"RANK": "0"}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a.b"}):
        _check_place(usual)


def test_without_accelerate_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[accelerate\]"):
        Processes()

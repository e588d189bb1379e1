"""Collective operations with Accelerate, in a single process."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite import middleware as mw
from ding_lite.distributed import Processes
from ding_lite.distributed.accelerate.processes import _pack, _unpack, digest_of, mean_of_states
from ding_lite.errors import ConfigError
from ding_lite.parallel.wire.codec import encode


@pytest.fixture(scope="module")
def processes() -> Processes:
    return Processes()


def test_a_single_process_is_the_whole_group(processes: Processes) -> None:
    assert (processes.rank, processes.size, processes.is_main) == (0, 1, True)
    assert processes.gather("numbers", [1.0, 2.0]).tolist() == [[1.0, 2.0]]
    assert processes.broadcast("tree", {"a": (1,)}) == {"a": (1,)}
    processes.check_same("tree", {"a": 1}, generation=0)
    given = torch.ones(2)
    [mean] = processes.mean("weights", [given])
    assert torch.equal(mean, given)
    assert mean is not given


def test_only_weights_are_averaged_and_not_counters(processes: Processes) -> None:
    weight = torch.ones(2)
    state = {"w": {"a": weight}, "rng": np.ones(6, np.uint64), "n": 3, "i": torch.arange(2)}
    [averaged] = mean_of_states(processes, "states", [state])
    assert averaged["w"]["a"] is not weight
    assert averaged["rng"] is state["rng"]
    assert averaged["i"] is state["i"]
    assert averaged["n"] == 3


def test_arguments_in_the_wrong_order_are_refused(processes: Processes) -> None:
    population: Any = [1, 2]
    for make in (mw.average_agents, partial(mw.share_generation, every=1)):
        with pytest.raises(ConfigError, match="`population` is a list"):
            make(population, processes)
    with pytest.raises(ConfigError, match="`accelerator` is a str"):
        Processes("cpu")


def test_a_broadcast_is_received_unchanged() -> None:
    tree = {"w": torch.randn(5_000), "n": [1, "two", None], "rng": np.arange(6, dtype=np.uint64)}
    again = _unpack(_pack(encode(tree)))
    assert digest_of(again) == digest_of(tree)


def test_different_trees_have_different_digests() -> None:
    base: dict[str, Any] = {"a": torch.zeros(2), "b": [1, 2.0]}
    others: list[Any] = [
        {"a": torch.zeros(2, dtype=torch.float64), "b": [1, 2.0]},
        {"a": torch.tensor([0.0, 1e-8]), "b": [1, 2.0]},
        {"a": torch.zeros(1, 2), "b": [1, 2.0]},
        {"a": torch.zeros(2), "b": [1, 3.0]},
        {"a": torch.zeros(2), "c": [1, 2.0]},
    ]
    assert digest_of(base) == digest_of({"a": torch.zeros(2), "b": [1, 2.0]})
    assert digest_of(base) not in {digest_of(other) for other in others}

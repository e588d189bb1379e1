"""Detection of torchrun."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ding_lite.parallel.launch.environment.torchrun import detect
from tests.parallel.launch.environment.environs import TORCHRUN


def test_the_rank_is_the_node_id_and_the_world_size_the_number() -> None:
    place = detect(TORCHRUN)
    assert place is not None
    assert (place.launcher, place.node_id, place.num_nodes) == ("torchrun", 1, 3)
    assert place.on_one_machine
    assert place.hosts == {0: "127.0.0.1"}


def test_agents_on_several_machines_provide_the_host_of_node_0() -> None:
    place = detect({**TORCHRUN, "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "gpu08"})
    assert place is not None
    assert not place.on_one_machine
    assert place.hosts == {0: "gpu08"}


@pytest.mark.parametrize("master", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_a_loopback_master_address_means_one_machine(master: str) -> None:
    place = detect({**TORCHRUN, "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": master})
    assert place is not None
    assert place.on_one_machine


def test_a_restart_keeps_the_ranks() -> None:
    before, after = detect(TORCHRUN), detect({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert before is not None
    assert after == replace(before, num_restarts=1)
    assert after.port == before.port


@pytest.mark.parametrize("missing", ["TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"])
def test_incomplete_variables_are_ignored(missing: str) -> None:
    environ = {name: value for name, value in TORCHRUN.items() if name != missing}
    assert detect(environ) is None
    assert detect({**TORCHRUN, "RANK": " "}) is None

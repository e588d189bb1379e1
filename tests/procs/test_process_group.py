"""The addresses by which the members of a group of torch.distributed find each other."""

from __future__ import annotations

import pytest

from ding_lite.parallel.network.interfaces import interface_beyond
from ding_lite.parallel.network.security import make_key
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.router.group import _own_host
from ding_lite.parallel.router.node_router import NodeRouter


def test_the_address_of_a_group_is_that_of_its_first_member() -> None:
    assert _own_host("10.0.0.7", ["10.0.0.7", None]) == "10.0.0.7"
    assert _own_host(None, [None, None]) == "127.0.0.1"
    assert _own_host(None, [None, "127.0.0.1"]) == "127.0.0.1"
    assert interface_beyond("127.0.0.1") is None


@pytest.mark.parametrize(
    ("listens", "dials", "expected"),
    [
        ("tcp://127.0.0.1:0", {}, "127.0.0.1"),
        ("tcp://0.0.0.0:0", {}, None),
        (None, {0: "tcp://127.0.0.1:9"}, "127.0.0.1"),
        ("tcp://0.0.0.0:0", {0: "tcp://127.0.0.1:9"}, None),
        (None, {}, None),
    ],
)
def test_a_node_derives_the_address_by_which_others_reach_it(tmp_path, listens, dials, expected):
    router = NodeRouter(
        NodeSpec(
            node_id=1,
            num_nodes=3,
            labels=frozenset(),
            listen=listens,
            dials=dials,
            peers=frozenset({0, 2}),
            key_file=str(make_key(tmp_path / "key")),
        )
    )
    assert router.host == expected
    router.close()

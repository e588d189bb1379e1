"""The place of a process: the node spec that the environment, a launcher or `attach_to` yields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ding_lite.errors import ConfigError
from ding_lite.parallel import Parallel
from ding_lite.parallel.launch.environment import FIRST_PORT, Placement
from ding_lite.parallel.launch.place import attached_node, node_of_environment, node_of_launcher
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.network.address import Address
from ding_lite.parallel.network.security import make_key
from ding_lite.parallel.network.topology import Growth, NodeSpec
from ding_lite.runtime.task import Task
from ding_lite.settings.environment import Settings

A, B = "tcp://127.0.0.1:50515", "tcp://127.0.0.1:50516"


def spec_of(
    node_id: int,
    num_nodes: int = 2,
    *,
    dials: tuple[str, ...] = (),
    environ: dict[str, Any] | None = None,
    **plan: Any,
) -> NodeSpec:
    settings = Settings(node_id=node_id, num_nodes=num_nodes, **(environ or {}))
    whole = JobPlan(num_nodes=num_nodes, protocol="tcp", settings=settings, **plan)
    return node_of_environment(whole, dials)


def test_a_node_dials_lower_ids_and_listens_for_higher_ones() -> None:
    zero = spec_of(0, environ={"ports": (50515,)})
    assert (zero.listen, zero.dials, set(zero.peers)) == (A, {}, {1})
    one = spec_of(1, dials=(A,))
    assert (one.listen, one.dials, set(one.peers)) == (None, {0: A}, {0})
    one = spec_of(1, 3, dials=(A,), environ={"ports": (50515, 50516, 50517)})
    assert (one.listen, one.dials, set(one.peers)) == (B, {0: A}, {0, 2})
    two = spec_of(2, 3, dials=(A, B))
    assert (two.listen, two.dials, set(two.peers)) == (None, {0: A, 1: B}, {0, 1})


def test_the_address_of_node_0_suffices_and_any_port_is_allowed_then() -> None:
    zero = spec_of(0, 3, environ={"ports": (50515,)})
    one, two = (spec_of(node, 3, dials=(A,)) for node in (1, 2))
    assert (zero.listen, zero.rendezvous) == (A, A)
    assert (one.listen, one.dials, one.rendezvous) == ("tcp://127.0.0.1:0", {0: A}, A)
    assert (two.listen, two.dials, two.rendezvous) == (None, {0: A, 1: ""}, A)


def test_nodes_that_are_no_peers_of_node_0_use_its_rendezvous_too() -> None:
    links = [(0, 1), (1, 2), (2, 3)]
    one, two, three = (spec_of(node, 4, topology=links, dials=(A,)) for node in (1, 2, 3))
    assert [spec.dials for spec in (one, two, three)] == [{0: A}, {1: ""}, {2: ""}]
    assert [spec.rendezvous for spec in (one, two, three)] == [A, A, A]
    apart = spec_of(1, 3, topology=[(1, 2)], dials=(A,))
    assert (apart.listen, apart.dials, apart.rendezvous) == ("tcp://127.0.0.1:0", {}, A)
    alone = spec_of(0, 3, topology=[(1, 2)], environ={"ports": (50515,)})
    assert (alone.listen, alone.peers) == (A, frozenset())


def test_a_node_with_a_remote_node_0_listens_on_all_interfaces(tmp_path: Path) -> None:
    key = str(make_key(tmp_path / "key"))
    for rendezvous, listens in [
        ("tcp://10.0.0.7:50515", "tcp://0.0.0.0:0"),
        ("tcp://[fd00::7]:50515", "tcp://[::]:0"),
        (A, "tcp://127.0.0.1:0"),
    ]:
        assert spec_of(1, 3, dials=(rendezvous,), key_file=key).listen == listens
    more: dict[str, Any] = {"key_file": key, "address": "10.0.0.8", "environ": {"ports": (7,)}}
    assert spec_of(1, 3, dials=("tcp://10.0.0.7:1",), **more).listen == "tcp://10.0.0.8:7"


@pytest.mark.parametrize(
    ("node_id", "num_nodes", "dials", "expected"),
    [
        (1, 2, (), r"is not given; node 1 dials the nodes \[0\]"),
        (3, 4, (A, B), r"node 3 dials the nodes \[0, 1, 2\]\. Give it the address of node 0"),
        (0, 2, (A,), "node 0 dials no node, the others dial it"),
        (0, 2, (), "DING_LITE_PORTS is not set; others dial node 0 of 2"),
        (1, 2, ("ipc:///tmp/x",), "connects over tcp"),
        (1, 2, ("127.0.0.1:50515",), "is no address"),
        (1, 2, ("tcp://0.0.0.0:7",), "no other connect. Give the name .* tcp://10.0.0.7:7"),
        (1, 2, ("tcp://[::]:7",), "is tcp://.*, at which a node can listen, .* no other connect"),
    ],
)
def test_a_place_that_does_not_fit_is_refused(node_id, num_nodes, dials, expected) -> None:
    with pytest.raises(ConfigError, match=expected):
        spec_of(node_id, num_nodes, dials=dials)


def test_a_job_of_one_node_runs_in_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DING_LITE_NUM_NODES", "1")
    [labels] = Parallel.runner(8, ports=[1, 2])(lambda: Task().labels)
    assert labels == {"standalone", "node.0"}
    monkeypatch.setenv("DING_LITE_ROLES", "learner+collector")
    [labels] = Parallel.runner(2, roles=["learner", "collector"])(lambda: Task().labels)
    assert labels == {"standalone", "node.0", "learner", "learner.0", "collector", "collector.0"}


def test_arguments_override_the_environment_except_number_of_nodes_and_ports(monkeypatch) -> None:
    environ = {"NUM_NODES": "3", "NODE_ID": "2", "TOPOLOGY": "mesh", "ATTACH_TO": f"{A},{B}"}
    for name, value in environ.items():
        monkeypatch.setenv(f"DING_LITE_{name}", value)
    Parallel.runner(1)
    Parallel.runner(1, "star", attach_to=A)
    with pytest.raises(ConfigError, match=r"dials the nodes \[0\]"):
        Parallel.runner(1, "star")
    with pytest.raises(ConfigError, match=r"`protocol` .* is 'ipc', but nodes that are started by"):
        Parallel.runner(1, protocol="ipc")
    with pytest.raises(ConfigError, match=r"1 entries for 3 nodes.* set DING_LITE_ROLES in each"):
        Parallel.runner(1, roles=["learner"])


def test_roles_of_the_environment_replace_those_of_the_call_in_a_job_of_another_size() -> None:
    of_call: dict[str, Any] = {"roles": ["learner", *4 * ["collector"]], "dials": (A,)}
    shells: dict[str, Any] = {"environ": {"roles": ("learner", "a+b", "a")}}
    for given in ({}, of_call):
        two = spec_of(2, 3, **{"dials": (A,), **given, **shells})
        assert two.labels == {"distributed", "node.2", "a", "a.1"}
        assert two.world[1] == {"distributed", "node.1", "a", "a.0", "b", "b.0"}
    with pytest.raises(ConfigError, match="DING_LITE_ROLES has 3 entries for 2 nodes"):
        spec_of(1, **of_call, **shells)


def test_labels_of_the_environment_replace_roles_of_another_number_of_nodes(caplog) -> None:
    caplog.set_level("INFO")
    roles = ["learner", "collector"]
    shell: dict[str, Any] = {"roles": roles, "environ": {"labels": ("gpu",)}, "dials": (A,)}
    expected = {"distributed", "node.1", "collector", "collector.0", "gpu"}
    assert spec_of(1, **shell).labels == expected
    assert caplog.text == ""
    assert spec_of(2, 3, **shell).labels == {"distributed", "node.2", "gpu"}
    assert "`roles` has 2 entries for 3 nodes, and is replaced by DING_LITE_LABELS" in caplog.text


def test_nodes_of_an_elastic_job_listen_for_those_that_join() -> None:
    one = spec_of(1, dials=(A,), elastic=True)
    assert (one.listen, one.growth) == ("tcp://127.0.0.1:0", Growth("mesh", 2))
    alone = spec_of(0, 1, topology="star", elastic=True, environ={"ports": (50515,)})
    assert (alone.listen, alone.growth) == (A, Growth("star", 1))
    assert spec_of(1, dials=(A,), topology="star", elastic=True).listen is None


def launched(node_id: int, num_nodes: int = 3, *, host: str | None = None, **more: Any) -> NodeSpec:
    """Place a node; with a `host`, its job is on several machines."""
    where: dict[str, Any] = {"on_one_machine": host is None, "host": host or "", "job": "4711"}
    place = Placement(launcher="torchrun", node_id=node_id, num_nodes=num_nodes, **where)
    whole = JobPlan(**{"num_nodes": num_nodes, "protocol": "tcp", "ports": 20_000, **more})
    return node_of_launcher(whole, place)


def test_nodes_of_one_machine_use_the_loopback_interface() -> None:
    zero, one, two = (launched(node) for node in range(3))
    assert (zero.listen, zero.dials) == ("tcp://127.0.0.1:20000", {})
    assert (one.listen, one.dials) == ("tcp://127.0.0.1:20001", {0: zero.listen})
    assert (two.listen, two.dials) == (None, {0: zero.listen, 1: ""})
    assert [spec.rendezvous for spec in (zero, one, two)] == [zero.listen] * 3
    assert [set(spec.peers) for spec in (zero, one, two)] == [{1, 2}, {0, 2}, {0, 1}]


@pytest.mark.parametrize(
    ("address", "listens", "dials"),
    [
        ("127.0.0.2", "tcp://127.0.0.2:20001", "tcp://127.0.0.2:20000"),
        ("0.0.0.0", "tcp://0.0.0.0:20001", "tcp://127.0.0.1:20000"),
        ("[::1]", "tcp://[::1]:20001", "tcp://[::1]:20000"),
    ],
)
def test_an_address_applies_to_all_nodes_of_a_machine(address, listens, dials, tmp_path) -> None:
    key = str(make_key(tmp_path / "key"))
    spec = launched(1, address=address, key_file=key)
    assert (spec.listen, spec.dials) == (listens, {0: dials})


def test_without_ports_only_that_of_node_0_is_fixed(tmp_path: Path) -> None:
    zero, one, two = (launched(node, ports=None) for node in range(3))
    assert zero.listen is not None
    assert Address.parse(zero.listen).port >= FIRST_PORT
    assert (one.listen, one.dials) == ("tcp://127.0.0.1:0", {0: zero.listen})
    assert (two.listen, two.dials) == (None, {0: zero.listen, 1: ""})
    assert [spec.rendezvous for spec in (zero, one, two)] == [zero.listen] * 3
    assert apart(1, "gpu08", tmp_path, ports=None).listen == "tcp://0.0.0.0:0"
    given = launched(1, ports=[7000, 7010, 7020])
    assert (given.listen, given.dials) == ("tcp://127.0.0.1:7010", {0: "tcp://127.0.0.1:7000"})
    growing = launched(1, 2, ports=None, elastic=True)
    assert growing.listen == "tcp://127.0.0.1:0"


def test_every_node_knows_all_roles_unless_the_environment_has_labels() -> None:
    roles = ["learner", {"collector", "big"}, "collector"]
    specs = [launched(node, topology="star", roles=roles, labels="gpu") for node in range(3)]
    assert specs[2].labels == {"distributed", "node.2", "collector", "collector.1", "gpu"}
    assert all(spec.world == tuple(other.labels for other in specs) for spec in specs)
    spec = launched(2, settings=Settings(labels=("gpu",)))
    assert spec.labels == {"distributed", "node.2", "gpu"}
    assert spec.world == ()


def apart(node_id: int, host: str, tmp_path: Path, **more: Any) -> NodeSpec:
    key = tmp_path / "key"
    if not key.exists():
        make_key(key)
    return launched(node_id, host=host, **{"key_file": str(key), **more})


def test_on_several_machines_only_the_host_of_node_0_is_known(tmp_path: Path) -> None:
    rendezvous = "tcp://gpu08:20000"
    zero, one, two = (apart(node, "gpu08", tmp_path) for node in range(3))
    assert [spec.rendezvous for spec in (zero, one, two)] == [rendezvous] * 3
    assert (one.listen, one.dials) == ("tcp://0.0.0.0:20001", {0: rendezvous})
    assert (two.listen, two.dials) == (None, {0: rendezvous, 1: ""})
    assert apart(1, "gpu08", tmp_path, address="10.0.0.7").listen == "tcp://10.0.0.7:20001"
    assert apart(0, "gpu08", tmp_path, topology=[(1, 2)]).listen == "tcp://0.0.0.0:20000"
    leaf = apart(1, "gpu08", tmp_path, topology="star")
    assert (leaf.listen, leaf.dials, leaf.rendezvous) == (None, {0: rendezvous}, None)
    zero, one = (apart(node, "fd00::7", tmp_path, topology="star") for node in range(2))
    assert (zero.listen, one.dials) == ("tcp://[::]:20000", {0: "tcp://[fd00::7]:20000"})


def test_several_machines_need_a_key_and_the_host_of_node_0_on_all_nodes(tmp_path: Path) -> None:
    for node in range(3):
        with pytest.raises(ConfigError, match=r"no key to .* Make one with `ding-lite keygen"):
            apart(node, "gpu08", tmp_path, key_file=None)
        with pytest.raises(ConfigError, match="does not give the host of node 0"):
            apart(node, "", tmp_path)
    assert apart(0, "", tmp_path, key_file=None, topology="alone").listen is None


def guest_of(attach_to: tuple[str, ...], node_ids: Any, **more: Any) -> NodeSpec:
    settings = Settings(**more.pop("environ", {}))
    plan = JobPlan(**{"num_nodes": 1, "protocol": "tcp", "settings": settings, **more})
    return attached_node(plan, attach_to, node_ids)


def test_an_attached_node_dials_the_given_addresses_only() -> None:
    spec = guest_of((A, B), [4], labels="late", environ={"labels": ("gpu",)})
    assert (spec.node_id, spec.num_nodes, spec.dials) == (4, 0, {0: A, 1: B})
    assert (set(spec.peers), spec.listen) == ({0, 1}, None)
    assert spec.labels == {"distributed", "node.4", "late", "gpu"}
    assert guest_of((A,), None, environ={"node_id": 3}).node_id == 3
    assert guest_of((A,), [np.int64(3)]).node_id == 3


@pytest.mark.parametrize(
    ("node_ids", "more", "expected"),
    [
        (None, {}, "n_parallel_workers=1 and node_ids="),
        ([2, 3], {}, r"node_ids=\[2, 3\]"),
        (2, {}, "`node_ids` is 2; a list with the number of one place was expected"),
        ([2], {"num_nodes": 2}, "Found are n_parallel_workers=2.*also set DING_LITE_NUM_NODES"),
        ([0], {}, "must have a higher number"),
        ([True], {}, "`node_ids` is True; it must be a whole number"),
        ([2], {"roles": ["learner"]}, "Roles are counted over all nodes"),
        ([2], {"environ": {"roles": ("learner",)}}, "Roles are counted over all nodes"),
        ([2], {"ports": 50517}, "listens nowhere"),
        ([2], {"topology": "tree"}, "Also set DING_LITE_NUM_NODES to the number of nodes"),
    ],
)
def test_arguments_that_do_not_fit_attach_to_are_refused(node_ids, more, expected) -> None:
    with pytest.raises(ConfigError, match=expected):
        guest_of((A,), node_ids, **more)

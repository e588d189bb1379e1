"""External launch: run this process as one node of a job that it has not started.

There are three forms. With `DING_LITE_NUM_NODES` set, each shell starts the same file as one node
of the job, and the environment says which one. A launcher such as torchrun or srun starts the file
once for each node, and says which one in its own variables. With `attach_to`, a program takes a
free place in a running job. In all forms the node runs in this process. It knows the addresses of
its peers, or that of node 0, from which it fetches the others (`rendezvous`).
"""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineExceeded,
    RemoteError,
    TransportError,
)
from ding_lite.parallel.launch.environment.base import Placement, names_this_machine
from ding_lite.parallel.launch.membership import JOIN, read_roster
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.launch.rendezvous import RendezvousNode
from ding_lite.parallel.network.address import LOOPBACK, Address, is_loopback
from ding_lite.parallel.network.topology import (
    ENTRANCES,
    HUB,
    Growth,
    NodeSpec,
    listeners,
    neighbours,
)
from ding_lite.parallel.observe.metrics import own_directory
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.supervise.node_process import node_of
from ding_lite.runtime.messaging.labels import node_labels, roles_of
from ding_lite.settings.environment import Settings
from ding_lite.settings.rules import check_all, whole

ALL_INTERFACES = ("0.0.0.0", "::")
"""Wildcard hosts: every interface of a machine, in IPv4 and IPv6."""
INTERRUPTED_LINGER_S = 5.0
"""Seconds that a node waits for lost peers after a signal has ended it."""
LOOK_S = 1.0
"""Timeout of the test connection that explains why a peer is missing."""
TRIES = 8
"""The number of entrance ids to try; another joining node may use one at the same moment."""

logger = logging.getLogger(__name__)


def tcp_only(protocol: str | None) -> str:
    if protocol not in (None, "tcp"):
        raise ConfigError(
            f"`protocol` (or DING_LITE_PROTOCOL) is {protocol!r}, but nodes that are started by a "
            f"launcher, in a shell or by Ray, and those of an elastic job, connect over tcp. Leave "
            f"it out."
        )
    return "tcp"


def node_of_environment(plan: JobPlan, attach_to: Sequence[str]) -> NodeSpec:
    """Return the spec of this node; `attach_to` has the address of node 0, or of all lower ids."""
    num_nodes, node_id = plan.num_nodes, plan.settings.node_id
    if node_id is None:
        raise ConfigError(
            f"DING_LITE_NUM_NODES is {num_nodes}, so this process is one node of several, and "
            f"DING_LITE_NODE_ID does not say which. Set it to a number from 0 to {num_nodes - 1}, "
            f"another one in each shell."
        )
    lower = sorted(peer for peer in neighbours(plan.edges, node_id) if peer < node_id)
    rendezvous, where = _addresses_to_dial(node_id, lower, _tcp(attach_to))
    listen, grows = None, plan.growth(first_id=1)
    if _is_dialled(plan, node_id, grows):
        port = _port(plan.settings.ports, node_id, num_nodes, may_be_free=rendezvous is not None)
        listen = str(Address("tcp", plan.address or _interface(rendezvous, plan.key_file), port))
    world = tuple(plan.labels_of_nodes())
    return plan.spec(
        node_id,
        world[node_id],
        dict(zip(lower, where, strict=True)).__getitem__,
        listen=listen,
        rendezvous=listen if node_id == HUB else rendezvous,
        # Without roles the shells tell the nodes apart by labels, which only each itself knows.
        world=world if all(plan.roles) and not plan.settings.labels else (),
        growth=grows,
    )


def first_elastic_node(plan: JobPlan) -> NodeSpec:
    [port] = plan.ports or [0]
    return plan.specs_at([str(Address("tcp", plan.address or LOOPBACK, port))], job="")[0]


def joining_node(
    plan: JobPlan, attach_to: Sequence[str], node_ids: Sequence[int] | None
) -> NodeSpec:
    """Request a place in an elastic job; of several roles in a program the last is this node's."""
    node_ids = _places(node_ids, plan.settings)
    if len(attach_to) != 1 or len(node_ids) > 1:
        raise ConfigError(
            f"`attach_to` is {', '.join(attach_to)} and `node_ids` {[*node_ids]}; a node that "
            f"joins an elastic job needs the address of node 0 alone, and one number at most."
        )
    [rendezvous] = _tcp(attach_to)
    ports = plan.settings.ports
    port = ports[0] if len(ports) == 1 else 0
    try:
        return join(
            rendezvous,
            requested_id=node_ids[0] if node_ids else None,
            roles=roles_of(frozenset().union(*plan.roles)),
            labels=plan.labels,
            listen=str(Address("tcp", plan.address or _interface(rendezvous, plan.key_file), port)),
            plan=plan,
        )
    except DeadlineExceeded as error:
        raise DeadlineExceeded(f"{error} {probe(rendezvous)}") from error


def join(
    rendezvous: str,
    *,
    plan: JobPlan,
    requested_id: int | None,
    roles: Iterable[str],
    labels: Iterable[str],
    listen: str,
) -> NodeSpec:
    """Request a place in the elastic job of node 0 at `rendezvous`, and return its spec."""
    try:
        answer = _ask(rendezvous, plan, requested_id, sorted(roles), sorted(labels))
    except AuthenticationError as error:
        raise AuthenticationError(
            f"The job of node 0 at {rendezvous} has not let this node join. It takes further nodes "
            f"if it was started with `elastic=True` (or DING_LITE_ELASTIC=1), and with the same "
            f"key. {error}"
        ) from error
    except RemoteError as error:
        raise ConfigError(
            f"The job of node 0 at {rendezvous} has no such place: {error}"
        ) from error
    node_id, num_nodes = int(answer["node_id"]), int(answer["num_nodes"])
    is_mesh = answer["topology"] == "mesh"
    nodes = read_roster(answer["nodes"])
    there = frozenset(answer["there"] if is_mesh else [HUB])
    dials = {HUB: rendezvous}
    if is_mesh:
        dials |= {node: at if node in there else "" for node, (_, at) in nodes.items() if node}
    world = {node: names for node, (names, _) in nodes.items()}
    labels = world[node_id] = frozenset(map(str, answer["labels"]))
    return NodeSpec(
        node_id=node_id,
        num_nodes=num_nodes,
        labels=labels,
        listen=listen if is_mesh else None,
        dials=dials,
        peers=there,
        key_file=plan.key_file,
        startup_timeout=plan.startup_timeout,
        world=tuple(world.get(node, frozenset()) for node in range(max(world) + 1)),
        growth=Growth(str(answer["topology"]), num_nodes),
        has_joined=True,
        job=str(answer["job"]),
    )


def _ask(rendezvous: str, plan: JobPlan, *request: Any) -> dict[str, Any]:
    refusal: Exception | None = None
    for entrance in random.sample(ENTRANCES, TRIES):
        spec = NodeSpec(
            node_id=entrance,
            num_nodes=0,
            labels=frozenset(),
            incarnation=time.time_ns(),
            dials={HUB: rendezvous},
            peers=frozenset({HUB}),
            key_file=plan.key_file,
            startup_timeout=plan.startup_timeout,
        )
        with closing(NodeRouter(spec)) as router:
            try:
                router.wait_ready()
                answer: dict[str, Any] = router.call(
                    HUB, JOIN, *request, timeout=plan.startup_timeout
                )
                return answer
            except AuthenticationError as error:
                refusal = error
    raise refusal or AuthenticationError("no entrance was tried.")


def _places(node_ids: Sequence[int] | None, settings: Settings) -> Sequence[int]:
    if node_ids is None:
        return () if settings.node_id is None else (settings.node_id,)
    if not isinstance(node_ids, Sequence):
        raise ConfigError(
            f"`node_ids` is {node_ids!r}; a list with the number of one place was expected, such "
            f"as node_ids=[2]."
        )
    check_all(*(whole(0, node_ids=node_id) for node_id in node_ids))
    return [*map(int, node_ids)]


def _addresses_to_dial(
    node_id: int, lower: Sequence[int], attach_to: Sequence[str]
) -> tuple[str | None, Sequence[str]]:
    """Return the address of node 0, if known, and those of lower ids; a single one is node 0's."""
    if node_id != HUB and len(attach_to) == 1:
        [rendezvous] = attach_to
        return rendezvous, [rendezvous if peer == HUB else "" for peer in lower]
    if len(attach_to) != len(lower):
        found = f"`attach_to` (or DING_LITE_ATTACH_TO) is {', '.join(attach_to) or 'not given'}; "
        if node_id == HUB:
            raise ConfigError(
                f"{found}node 0 dials no node, the others dial it. Leave it out here."
            )
        raise ConfigError(
            f"{found}node {node_id} dials {f'the nodes {[*lower]}' if lower else 'no node'}. Give "
            f"it the address of node 0, which knows the others: "
            f"DING_LITE_ATTACH_TO=tcp://127.0.0.1:50515. Or give it that of each, in this order."
        )
    return attach_to[0] if HUB in lower else None, attach_to


def _interface(rendezvous: str | None, key_file: str | None) -> str:
    """Return the host to listen on, so that other nodes reach this node as it reaches node 0.

    The name of this machine may resolve to loopback here and to another interface elsewhere. Only
    a job with a key can have nodes on other machines.
    """
    host = LOOPBACK if rendezvous is None else Address.parse(rendezvous).place
    is_here = names_this_machine(host) or (key_file is None and is_loopback(host))
    return LOOPBACK if is_here else _all_interfaces(host)


def _port(ports: Sequence[int], node_id: int, num_nodes: int, *, may_be_free: bool) -> int:
    """Return this node's port; without one it is 0, any free port, if node 0 tells the others."""
    if not ports and may_be_free:
        return 0
    if len(ports) == 1:
        return ports[0]
    if len(ports) == num_nodes:
        return ports[node_id]
    raise ConfigError(
        f"DING_LITE_PORTS is {','.join(map(str, ports)) or 'not set'}; others dial node {node_id} "
        f"of {num_nodes}, so it must listen at a port that they know. Set it to one number, such "
        f"as DING_LITE_PORTS=50515."
    )


def _tcp(addresses: Sequence[str]) -> list[str]:
    for address in addresses:
        if Address.parse(address).scheme != "tcp":
            raise ConfigError(
                f"`attach_to` is {address}; an external launch connects over tcp. Give "
                f"an address such as tcp://127.0.0.1:50515."
            )
    return [*addresses]


def node_of_launcher(plan: JobPlan, place: Placement) -> NodeSpec:
    """Return the spec of this node, which listens on its own machine at its port of the plan."""
    node_id, ports = place.node_id, plan.ports
    host, listens_on = place.host, plan.address or _all_interfaces(place.host)
    if place.on_one_machine:
        host = LOOPBACK if plan.address in (None, *ALL_INTERFACES) else str(plan.address)
        listens_on = plan.address or LOOPBACK
    elif plan.edges:
        _check_machines(plan, place)
    hub = host and str(Address("tcp", host, ports[HUB]))
    grows, world = plan.growth(first_id=place.num_nodes), tuple(plan.labels_of_nodes())
    return plan.spec(
        node_id,
        world[node_id],
        lambda peer: hub if peer == HUB else "",
        listen=str(Address("tcp", listens_on, ports[node_id]))
        if _is_dialled(plan, node_id, grows)
        else None,
        rendezvous=hub if listeners(plan.edges) - {HUB} else None,
        # Labels of the environment may differ between nodes, so each sends its own.
        world=() if plan.settings.labels else world,
        growth=grows,
        job=f"{place.launcher} {place.job}",
    )


def _is_dialled(plan: JobPlan, node_id: int, grows: Growth | None) -> bool:
    """Tell whether other nodes dial a node, as peers or to ask node 0 for addresses."""
    may_be = node_id == HUB or (grows is not None and grows.topology == "mesh")
    return node_id in listeners(plan.edges) or (may_be and bool(plan.edges or grows))


def _check_machines(plan: JobPlan, place: Placement) -> None:
    """Refuse a job on several machines that cannot connect, on all nodes alike."""
    if not place.host:
        raise ConfigError(
            f"{place.launcher} has started {place.num_nodes} nodes on several machines and does "
            f"not give the host of node 0, which the others must dial. {place.how_to_tell}"
        )
    if plan.key_file is None:
        raise ConfigError(
            f"{place.launcher} has started {place.num_nodes} nodes on several machines, and "
            f"there is no key to authenticate them. Make one with `ding-lite keygen FILE`, copy it "
            f"to all of them, and give it as `key_file=...` or DING_LITE_KEY_FILE."
        )


def _all_interfaces(host: str) -> str:
    """Return the wildcard host of the IP version by which node 0 is dialled."""
    return ALL_INTERFACES[":" in host]


def attached_node(
    plan: JobPlan, attach_to: Sequence[str], node_ids: Sequence[int] | None
) -> NodeSpec:
    """Return the spec of a node that attaches to the nodes 0, 1, ... of a running job."""
    node_ids = _places(node_ids, plan.settings)
    if plan.num_nodes != 1 or len(node_ids) != 1:
        raise ConfigError(
            f"`attach_to` joins a running job with one node: n_parallel_workers=1 and "
            f"node_ids=[2] (or DING_LITE_NODE_ID=2), the number of a place that is free there. "
            f"If the job is elastic, give elastic=True instead of a number. "
            f"Found are n_parallel_workers={plan.num_nodes} and node_ids={[*node_ids]}. To run a "
            f"program of several workers as one node, also set DING_LITE_NUM_NODES."
        )
    [node_id] = node_ids
    if node_id < len(attach_to):
        raise ConfigError(
            f"`node_ids` is [{node_id}] and `attach_to` has the addresses of the nodes 0 to "
            f"{len(attach_to) - 1}; a node that joins must have a higher number than those."
        )
    if any(plan.roles) or plan.settings.roles:
        raise ConfigError(
            "Roles are counted over all nodes of a job, which one that joins by `attach_to` does "
            "not know. Give it `labels=` (or DING_LITE_LABELS) instead of roles."
        )
    if plan.fan_out:
        raise ConfigError(
            "The topology is a tree, and a node that joins one by `attach_to` alone does not know "
            "its hub. Also set DING_LITE_NUM_NODES to the number of nodes of the job: then node 0 "
            "gives it the address of its hub."
        )
    if plan.ports:
        raise ConfigError(
            f"`ports` is {plan.ports!r}, but a node that joins by `attach_to` listens nowhere: it "
            f"dials. Leave it out."
        )
    dials = dict(enumerate(_tcp(attach_to)))
    return NodeSpec(
        node_id=node_id,
        num_nodes=0,
        labels=node_labels(node_id, distributed=True, extra=plan.labels),
        dials=dials,
        peers=frozenset(dials),
        key_file=plan.key_file,
        startup_timeout=plan.startup_timeout,
        edges=frozenset((peer, node_id) for peer in dials),
    )


@contextmanager
def connected(spec: NodeSpec, *, starter: str = "hand", advice: str = "") -> Iterator[NodeRouter]:
    """Connect a node, run the `with` block as that node, and close it.

    The block starts when all peers are connected. If it raises, or SIGTERM ends it, the node leaves
    without a good-bye, so the others count it as lost and wait for its return. Ctrl-C and
    `sys.exit` end the job instead.
    """
    with own_directory() as directory:
        # No supervisor counts incarnations here, so the time in nanoseconds is used: it grows, and
        # is above FIRST_TIMESTAMP_INCARNATION.
        began, incarnation = SYSTEM_CLOCK.now(), time.time_ns()
        started = replace(spec, incarnation=incarnation, directory=directory, began=began)
        try:
            node = RendezvousNode(started)
        except TransportError as error:
            raise TransportError(f"{error} {advice}".rstrip()) from error
        router = node.router
        logger.info(
            "node %d of %s, started by %s, listens on %s and dials %s",
            spec.node_id,
            spec.num_nodes or "a running job",
            starter,
            router.address or "nothing",
            ", ".join(at or f"node {peer}" for peer, at in spec.dials.items()) or "no node",
        )
        good_bye, linger = True, float(spec.linger)
        try:
            _connect(node, spec, advice)
            with node_of(router):
                yield router
            if router.failure is not None:
                raise router.failure
        except Exception:
            good_bye = False
            raise
        except (KeyboardInterrupt, SystemExit) as error:
            good_bye = not isinstance(error, SystemExit) or error.code in (None, 0)
            linger = min(linger, INTERRUPTED_LINGER_S)
            raise
        finally:
            router.close(good_bye=good_bye, linger=linger)


def _connect(node: RendezvousNode, spec: NodeSpec, advice: str) -> None:
    """Wait for the peers; if some are missing, report which program listens at their addresses."""
    router = node.router
    try:
        node.wait_ready()
    except AuthenticationError as error:
        if not spec.num_nodes:
            error.add_note(
                "A job has places beyond its first nodes if it was started with `elastic=True` (or "
                "DING_LITE_ELASTIC=1); with the same argument here node 0 gives one that is free."
            )
        raise
    except DeadlineExceeded as error:
        sentences = [str(error)]
        missing = {peer: at for peer, at in spec.dials.items() if peer not in router.peers}
        sentences += [probe(at) for at in missing.values() if at]
        unknown = [peer for peer, at in missing.items() if not at]
        if unknown and HUB not in missing:
            sentences.append(f"Node 0 has not sent the addresses of the nodes {unknown}.")
        if spec.listen is not None:
            sentences.append(f"This node listens on {router.address}.")
        raise DeadlineExceeded(" ".join([*sentences, advice]).rstrip()) from error


def probe(address: str) -> str:
    """Try to connect to a tcp address, and describe the result in a sentence."""
    there = Address.parse(address)
    try:
        socket.create_connection((there.place, there.port), timeout=LOOK_S).close()
    except (socket.gaierror, UnicodeError) as error:
        return f"The host `{there.place}` cannot be looked up ({error})."
    except TimeoutError:
        return f"{address} gives no answer: is it another machine, or behind a firewall?"
    except OSError as error:
        return f"Nothing can be reached at {address} ({error.strerror})."
    return f"Something listens on {address}, but it is no node that waits for this one."

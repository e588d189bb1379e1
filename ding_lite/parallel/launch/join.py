"""This process as one node of a job whose other nodes it does not start.

There are three ways in. With `DING_LITE_NUM_NODES` set, each shell starts the same file as one of
the job's nodes, and the environment says which. A launcher such as torchrun or srun starts the
file once for each node and says which is which in variables of its own. With `attach_to`, a
program takes a place in a job that runs already, one that a node has left or lost. In each of
them the node runs here. It knows its peers by the addresses it was given, or knows only
node 0, which tells it where the others are (`rendezvous`).
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import AuthenticationError, ConfigError, DeadlineExceeded, TransportError
from ding_lite.interruption import Terminated
from ding_lite.parallel.launch.elastic_join import join
from ding_lite.parallel.launch.environment.base import Placement, names_this_machine
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.launch.rendezvous import Presence
from ding_lite.parallel.network.address import LOOPBACK, Address, is_loopback
from ding_lite.parallel.network.topology import HUB, NodeSpec, listeners, neighbours
from ding_lite.parallel.observe.metrics import own_directory
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime.messaging.labels import check_labels, node_labels, roles_of
from ding_lite.runtime.messaging.router import use_router
from ding_lite.settings import Settings

ALL_INTERFACES = ("0.0.0.0", "::")
"""The hosts that stand for every interface of a machine, of version 4 and 6."""
INTERRUPTED_LINGER_S = 5.0
"""Seconds that a node waits for lost peers, as it leaves, when a signal has asked for its end."""
LOOK_S = 1.0
"""Seconds to wait for a connection when a peer is missing, to say why."""

logger = logging.getLogger(__name__)


def tcp_only(protocol: str | None) -> str:
    """Return the protocol of nodes that are not started by the runner of one of them.

    Raises:
        ConfigError: Another one was asked for.
    """
    if protocol not in (None, "tcp"):
        raise ConfigError(
            f"`protocol` (or DING_LITE_PROTOCOL) is {protocol!r}, but nodes that a launcher or a "
            f"hand starts, or that join by `attach_to`, meet over tcp. Leave it out."
        )
    return "tcp"


def node_of_environment(plan: JobPlan, settings: Settings, attach_to: Sequence[str]) -> NodeSpec:
    """Return the place of the node that the environment describes.

    Args:
        plan: The whole job, as every node of it plans it; without ports, which are not known.
        settings: What the environment says.
        attach_to: The address of node 0, or those of all peers with a lower id, in the order
            of their ids.

    Raises:
        ConfigError: The environment leaves out where this node listens or whom it dials.
    """
    num_nodes, node_id = plan.num_nodes, settings.node_id
    if node_id is None:
        raise ConfigError(
            f"DING_LITE_NUM_NODES is {num_nodes}, so this process is one node of several, and "
            f"DING_LITE_NODE_ID does not say which. Set it to a number from 0 to {num_nodes - 1}, "
            f"another one in each shell."
        )
    near = neighbours(plan.edges, node_id)
    lower = sorted(peer for peer in near if peer < node_id)
    desk, where = _whom_to_ask(node_id, lower, _tcp(attach_to))
    listen, grows = None, plan.growth(first_id=1)
    is_dialled = node_id == HUB or (grows is not None and grows.topology == "mesh")
    if (is_dialled and (plan.edges or grows)) or any(peer > node_id for peer in near):
        port = _port(settings.ports, node_id, num_nodes, may_be_free=desk is not None)
        listen = str(Address("tcp", plan.address or _interface(desk, plan.key_file), port))
    return NodeSpec(
        node_id=node_id,
        num_nodes=num_nodes,
        labels=plan.labels_of_nodes(distributed=True)[node_id],
        listen=listen,
        dials=dict(zip(lower, where, strict=True)),
        desk=listen if node_id == HUB else desk,
        peers=near,
        key_file=plan.key_file,
        startup_timeout=plan.startup_timeout,
        edges=plan.edges,
        fan_out=plan.fan_out,
        growth=grows,
    )


def alone_at_first(plan: JobPlan) -> NodeSpec:
    """Return the place of the only node with which an elastic job begins."""
    host = plan.address or LOOPBACK
    [port] = plan.chosen_ports or [0]
    [spec] = plan.specs_at([str(Address("tcp", host, port))], job="")
    return spec


def newcomer(
    plan: JobPlan, settings: Settings, attach_to: Sequence[str], node_ids: Sequence[int] | None
) -> NodeSpec:
    """Ask node 0 of an elastic job for a place, and return it.

    The program may be that of the whole job: of several roles the last one is this node's, as
    it is for the further nodes of `ding-lite run`.

    Args:
        plan: One node, with its role.
        settings: What the environment says.
        attach_to: The address of node 0.
        node_ids: The number to take; that of the environment by default, and else any free one.

    Raises:
        ConfigError: What is asked for is no place.
        AuthenticationError: The job takes no further nodes.
        DeadlineExceeded: There was no answer in time.
    """
    if node_ids is None:
        node_ids = () if settings.node_id is None else (settings.node_id,)
    if len(attach_to) != 1 or len(node_ids) > 1:
        raise ConfigError(
            f"`attach_to` is {', '.join(attach_to)} and `node_ids` {[*node_ids]}; a node that "
            f"joins an elastic job needs the address of node 0 alone, and one number at most."
        )
    [desk] = _tcp(attach_to)
    port = settings.ports[0] if len(settings.ports) == 1 else 0
    try:
        return join(
            desk,
            wish=node_ids[0] if node_ids else None,
            roles=roles_of(frozenset().union(*(plan.roles or ()))),
            labels=check_labels(plan.labels or ()) | check_labels(settings.labels),
            listen=str(Address("tcp", plan.address or _interface(desk, plan.key_file), port)),
            key_file=plan.key_file,
            startup_timeout=plan.startup_timeout,
        )
    except DeadlineExceeded as error:
        raise DeadlineExceeded(f"{error} {what_is_at(desk)}") from error


def _whom_to_ask(
    node_id: int, lower: Sequence[int], attach_to: Sequence[str]
) -> tuple[str | None, Sequence[str]]:
    """Return the address of node 0, as far as it is known, and those of the lower peers.

    One address is that of node 0, which tells the others; several are those of all of them.

    Raises:
        ConfigError: It is neither.
    """
    if node_id != HUB and len(attach_to) == 1:
        [desk] = attach_to
        return desk, [desk if peer == HUB else "" for peer in lower]
    if len(attach_to) != len(lower):
        raise ConfigError(_wrong_number(node_id, lower, attach_to))
    return attach_to[0] if HUB in lower else None, attach_to


def _wrong_number(node_id: int, lower: Sequence[int], attach_to: Sequence[str]) -> str:
    found = f"`attach_to` (or DING_LITE_ATTACH_TO) is {', '.join(attach_to) or 'not given'}; "
    if node_id == HUB:
        return f"{found}node 0 dials nobody, the others dial it. Leave it out here."
    return (
        f"{found}node {node_id} dials {f'the nodes {[*lower]}' if lower else 'nobody'}. Give it "
        f"the address of node 0, which knows where the others are: "
        f"DING_LITE_ATTACH_TO=tcp://127.0.0.1:50515. Or give it that of each, in this order."
    )


def _interface(desk: str | None, key_file: str | None) -> str:
    """Return where to listen so that the others reach this node as it reaches node 0.

    The name of this machine may stand for its loopback interface here, and for another one
    elsewhere; with a key there may be an elsewhere.
    """
    host = LOOPBACK if desk is None else Address.parse(desk).place
    is_here = names_this_machine(host) or (key_file is None and is_loopback(host))
    return LOOPBACK if is_here else _all_interfaces(host)


def _port(ports: Sequence[int], node_id: int, num_nodes: int, *, may_be_free: bool) -> int:
    """Pick this node's port; the variable holds that one alone, or those of all nodes.

    Without one it is any that is free, 0, where node 0 tells the others which one that is.
    """
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
                f"`attach_to` is {address}; nodes that were started by hand meet over tcp. Give "
                f"an address such as tcp://127.0.0.1:50515."
            )
    return [*addresses]


def node_of_launcher(plan: JobPlan, place: Placement) -> NodeSpec:
    """Return the place of the node that a launcher has started here.

    Node k listens at the k-th port of the plan, on its own machine. The launcher runs the same
    program everywhere, so each node knows the roles of all.

    Args:
        plan: The whole job, as every node of it plans it, with the port of each.
        place: What the launcher says.

    Raises:
        ConfigError: The launcher does not say where the nodes are that others dial, or they are
            on other machines and there is no key for that.
    """
    node_id, links, ports = place.node_id, plan.edges, plan.chosen_ports
    if links and not place.on_one_machine:
        _check_machines(plan, place)
    inside = LOOPBACK if plan.address in (None, *ALL_INTERFACES) else plan.address

    def address_of(peer: int) -> str:
        """Return where a node is dialled; "" where the launcher does not tell its machine."""
        host = inside if place.on_one_machine else place.hosts.get(peer, "")
        return host and str(Address("tcp", host, ports[peer]))

    must_ask = not all(map(address_of, listeners(links)))

    listen, grows = None, plan.growth(first_id=place.num_nodes)
    is_dialled = grows is not None and (node_id == HUB or grows.topology == "mesh")
    if node_id in listeners(links) or is_dialled or (must_ask and node_id == HUB):
        host = plan.address or (
            inside if place.on_one_machine else _all_interfaces(place.hosts.get(HUB, ""))
        )
        listen = str(Address("tcp", host, ports[node_id]))
    near = neighbours(links, node_id)
    lower = sorted(peer for peer in near if peer < node_id)
    world = tuple(plan.labels_of_nodes(distributed=True))
    return NodeSpec(
        node_id=node_id,
        num_nodes=place.num_nodes,
        labels=world[node_id],
        listen=listen,
        dials={peer: address_of(peer) for peer in lower},
        desk=address_of(HUB) if must_ask else None,
        peers=near,
        key_file=plan.key_file,
        startup_timeout=plan.startup_timeout,
        # Labels of the environment may be another node's own, so each must tell its labels.
        world=() if plan.settings.labels else world,
        edges=links,
        fan_out=plan.fan_out,
        growth=grows,
        job=f"{place.launcher} {place.job}",
    )


def _check_machines(plan: JobPlan, place: Placement) -> None:
    """Refuse a job on several machines that could not meet, on all nodes alike."""
    if 0 not in place.hosts:
        raise ConfigError(
            f"{place.launcher} has started {place.num_nodes} nodes on several machines and does "
            f"not say where node 0 is, which the others must find. {place.how_to_tell}"
        )
    if plan.key_file is None:
        raise ConfigError(
            f"{place.launcher} has started {place.num_nodes} nodes on several machines, and no "
            f"key says who may connect. Make one with `ding-lite keygen FILE`, copy it to all of "
            f"them, and give it as `key_file=...` or DING_LITE_KEY_FILE."
        )


def _all_interfaces(host: str) -> str:
    """Return the host that stands for them, of the kind of address by which node 0 is dialled."""
    four, six = ALL_INTERFACES
    return six if ":" in host else four


def guest(
    plan: JobPlan, settings: Settings, attach_to: Sequence[str], node_ids: Sequence[int] | None
) -> NodeSpec:
    """Return the place of a node that joins a running job.

    It is connected to the nodes 0, 1, ... whose addresses it was given, and learns from them
    how many nodes the job has.

    Args:
        plan: One node; its number in the job is not known to the plan.
        settings: What the environment says.
        attach_to: The addresses of nodes 0, 1, and so on.
        node_ids: The number of the place to take; that of the environment by default.

    Raises:
        ConfigError: The place is not named, or what is asked for needs more than a place.
    """
    if node_ids is None:
        node_ids = () if settings.node_id is None else (settings.node_id,)
    if plan.num_nodes != 1 or len(node_ids) != 1:
        raise ConfigError(
            f"`attach_to` joins a running job with one node: n_parallel_workers=1 and "
            f"node_ids=[2] (or DING_LITE_NODE_ID=2), the number of a place that is free there. "
            f"Found are n_parallel_workers={plan.num_nodes} and node_ids={[*node_ids]}."
        )
    [node_id] = node_ids
    if not isinstance(node_id, int) or isinstance(node_id, bool) or node_id < len(attach_to):
        raise ConfigError(
            f"`node_ids` is [{node_id!r}] and `attach_to` has the addresses of the nodes 0 to "
            f"{len(attach_to) - 1}; a node that joins must have a higher number than those."
        )
    if any(plan.roles or ()) or settings.roles:
        raise ConfigError(
            "Roles are counted over all nodes of a job, which one that joins by `attach_to` does "
            "not know. Give it `labels=` (or DING_LITE_LABELS) instead of roles."
        )
    if plan.fan_out:
        raise ConfigError(
            "The topology is a tree, and a node that joins one by `attach_to` alone does not know "
            "its place there. Say with DING_LITE_NUM_NODES how many nodes the job has, too: then "
            "node 0 tells it where its hub is."
        )
    if plan.ports is not None:
        raise ConfigError(
            f"`ports` is {plan.ports!r}, but a node that joins by `attach_to` listens nowhere: it "
            f"dials. Leave it out."
        )
    extra = check_labels(plan.labels or ()) | check_labels(settings.labels)
    dials = dict(enumerate(_tcp(attach_to)))
    return NodeSpec(
        node_id=node_id,
        num_nodes=0,
        labels=node_labels(node_id, distributed=True, extra=extra),
        dials=dials,
        peers=frozenset(dials),
        key_file=plan.key_file,
        startup_timeout=plan.startup_timeout,
        edges=frozenset((peer, node_id) for peer in dials),
    )


@contextmanager
def connected(spec: NodeSpec, *, starter: str = "hand", advice: str = "") -> Iterator[NodeRouter]:
    """Be the node for the length of a `with` block, from when all peers have greeted.

    Where the block raises, or SIGTERM ends it, the node leaves without a good-bye, so that the
    others hear of its loss and wait for it to come back; not so where the user ends the job, by
    Ctrl-C or `sys.exit`.

    Args:
        spec: The node's place.
        starter: What has started it, for the log.
        advice: What else to say where it finds its place taken or its peers missing.
    """
    with own_directory() as directory:
        # No launcher counts the incarnations of this node: nanoseconds are above
        # FIRST_TIMESTAMP_INCARNATION, and grow.
        present = replace(
            spec, incarnation=time.time_ns(), directory=directory, began=SYSTEM_CLOCK.now()
        )
        presence = _take_place(present, advice)
        router = presence.router
        logger.info(
            "node %d of %s, started by %s, listens on %s and dials %s",
            spec.node_id,
            spec.num_nodes or "a running job",
            starter,
            router.address or "nothing",
            ", ".join(at or f"node {peer}" for peer, at in spec.dials.items()) or "nobody",
        )
        good_bye, linger = True, float(spec.linger)
        try:
            _meet(presence, spec, advice)
            with router.deferred_sigint.installed(), use_router(router):
                yield router
            if router.failure is not None:
                raise router.failure
        except Exception:
            good_bye = False
            raise
        except (KeyboardInterrupt, SystemExit) as error:
            good_bye = not isinstance(error, Terminated)
            linger = min(linger, INTERRUPTED_LINGER_S)
            raise
        finally:
            presence.close(good_bye=good_bye, linger=linger)


def _take_place(spec: NodeSpec, advice: str) -> Presence:
    try:
        return Presence(spec)
    except TransportError as error:
        raise TransportError(f"{error} {advice}".rstrip()) from error


def _meet(presence: Presence, spec: NodeSpec, advice: str) -> None:
    """Wait for the peers; where some are missing, look what there is instead of them."""
    router = presence.router
    try:
        presence.wait_ready()
    except AuthenticationError as error:
        if not spec.num_nodes:
            error.add_note(
                "A job has places beyond its first nodes if it was started with `elastic=True` (or "
                "DING_LITE_ELASTIC=1); with the same argument here node 0 gives one that is free."
            )
        raise
    except DeadlineExceeded as error:
        said = [str(error)]
        missing = {peer: at for peer, at in spec.dials.items() if peer not in router.peers}
        said += [what_is_at(at) for at in missing.values() if at]
        unheard = [peer for peer, at in missing.items() if not at]
        if unheard and HUB not in missing:
            said.append(f"Node 0 has not told where the nodes {unheard} listen now.")
        if spec.listen is not None:
            said.append(f"This node listens on {router.address}.")
        raise DeadlineExceeded(" ".join([*said, advice]).rstrip()) from error


def what_is_at(address: str) -> str:
    """Say in a sentence what a connection to a tcp address finds."""
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

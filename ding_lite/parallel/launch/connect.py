"""Run this process as one node of a job: connect it, and close it at the end."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ding_lite.clock import SYSTEM_CLOCK, Deadline
from ding_lite.errors import AuthenticationError, DeadlineExceeded, TransportError
from ding_lite.parallel.launch.rendezvous import RendezvousNode
from ding_lite.parallel.network.address import Address
from ding_lite.parallel.network.topology import HUB, NodeSpec
from ding_lite.parallel.observe.metrics import own_directory
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.supervise.node_process import node_of

INTERRUPTED_LINGER_S = 5.0
"""Seconds that a node waits for lost peers after a signal has ended it."""
LOOK_S = 1.0
"""Timeout of the test connection that explains why a peer is missing."""

logger = logging.getLogger(__name__)


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
        all_started = Deadline.after(spec.startup_timeout)
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
            node.wait_served(all_started)
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
        if advice:
            error.add_note(
                f"{advice} Has a node started this program? Then it has inherited the variables "
                f"of the launcher, and not a place of its own."
            )
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

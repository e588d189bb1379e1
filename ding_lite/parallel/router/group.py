"""The world of a job, and groups of nodes with collective operations.

A collective operation is a call: every member calls one node, the coordinator of the group, which
answers all of them when the last one has called. In a star that is the hub, since members need
not be connected to each other; elsewhere it is the first member that all can reach.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable, Iterable
from datetime import timedelta
from hashlib import blake2b
from multiprocessing import parent_process
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self, cast

from ding_lite.errors import (
    CodecError,
    ConfigError,
    DeadlineExceeded,
    PeerLost,
    TransportError,
    kind_of,
)
from ding_lite.parallel.network.address import LOOPBACK, Address, is_loopback
from ding_lite.parallel.network.interfaces import interface_beyond, interface_towards
from ding_lite.runtime.messaging.collectives import COLLECTIVE
from ding_lite.runtime.messaging.labels import check_patterns, matches
from ding_lite.runtime.messaging.router import Router, current_router
from ding_lite.settings.environment import suggest_environ
from ding_lite.settings.rules import check_all, positive, whole

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

COLLECTIVE_TIMEOUT_S = 60.0
"""Default timeout of a collective operation."""
GATHERED_BYTES = 512 * 1024
"""Tensors below this size (of all members together) are averaged by all_gather: the ring all_reduce
of gloo takes several rounds, which pays only for large tensors."""


class World:
    """All nodes of a job, seen from one of them.

    Example:
        >>> World.current().group("node.*").all_gather("hello")
        ['hello']
    """

    def __init__(self, router: Router) -> None:
        self._router = router

    @classmethod
    def current(cls) -> Self:
        """Return the world of this process; a world of one node without a job."""
        return cls(current_router())

    @property
    def node_id(self) -> int:
        """This node's number."""
        return self._router.node_id

    @property
    def rank(self) -> int:
        """The rank of this node among all nodes, which is its `node_id`."""
        return self.node_id

    @property
    def num_nodes(self) -> int:
        """The number of nodes of the job; in an elastic job the current number."""
        world = self._router.world
        return sum(map(bool, world)) if self._router.grows else len(world)

    @property
    def node_seed(self) -> int:
        """A seed that is equal in every run and different on every node."""
        return int.from_bytes(blake2b(b"node %d" % self.node_id, digest_size=4).digest()) >> 1

    def labels_of(self, node: int) -> frozenset[str]:
        """Return the labels of a node.

        Raises:
            ConfigError: There is no such node, or this node does not know the labels.
        """
        if not self._is_node(node):
            raise ConfigError(
                f"`node` is {node!r}; the number of a node was expected, from 0 to "
                f"{len(self._router.world) - 1}."
            )
        self._check_known([node])
        return self._router.world[node]

    def group(self, members: str | int | Iterable[str | int]) -> Group:
        """Return a group of nodes; a local operation, which any node may call at any time.

        In an elastic job the group has the current nodes and does not change: `members_now` of
        the group, and another call of this method, include nodes that have joined since, and
        leave out those that have left.

        Args:
            members: Label patterns, or node ids.

        Raises:
            ConfigError: No node matches, an id does not exist, or this node does not know the
                labels of all nodes.
        """
        if not isinstance(members, str | Integral | Iterable):
            raise ConfigError(
                f"`members` is {kind_of(members)}; label patterns or node ids were expected, such "
                f'as `World.current().group("learner")`.'
            )
        wanted = list(members) if not isinstance(members, str | Integral) else [members]
        patterns = [item for item in wanted if isinstance(item, str)]
        numbers = [item for item in wanted if not isinstance(item, str)]
        named = {int(item) if self._is_node(item) else -1 for item in numbers}
        ids, world = set(named), self._router.world
        if patterns:
            if not self._router.grows:
                self._check_known(range(len(world)))
            ids |= self._matched(check_patterns(patterns))
        if not ids or not ids <= set(range(len(world))):
            labels = sorted(frozenset().union(*world))
            raise ConfigError(
                f"No group can be made of {wanted}: the job has the nodes 0 to {len(world) - 1} "
                f"with the labels {labels}. Name some of these."
            )

        def members_now() -> tuple[int, ...]:
            world, grows = self._router.world, self._router.grows
            here = {node for node in named if world[node] or not grows}
            return tuple(sorted(here | self._matched(patterns)))

        return Group(self._router, tuple(sorted(ids)), members_now)

    def _is_node(self, value: object) -> bool:
        return not whole(0, value=value) and value in range(len(self._router.world))

    def _matched(self, patterns: Iterable[str]) -> set[int]:
        return {node for node, own in enumerate(self._router.world) if matches(own, patterns)}

    def _check_known(self, nodes: Iterable[int]) -> None:
        unknown = [node for node in nodes if not self._router.world[node]]
        if unknown:
            raise ConfigError(
                f"Node {self.node_id} does not know the labels of the nodes {unknown}: it "
                f"is not connected to them, and was not given their labels. Name members by their "
                f"ids, or use a mesh."
            )


class Group:
    """Some nodes of a job, with collective operations.

    Every member must call the same collective operations in the same order; other nodes must not
    call them.
    """

    def __init__(
        self,
        router: Router,
        members: tuple[int, ...],
        members_now: Callable[[], tuple[int, ...]] | None = None,
    ) -> None:
        self.members = members
        """The ids of the nodes, in the order of their ranks."""
        self.router = router
        """The router of this node."""
        self._members_now = members_now

    def __len__(self) -> int:
        return len(self.members)

    @property
    def members_now(self) -> tuple[int, ...]:
        """The nodes that match at this moment, in an elastic job without those that have left."""
        return self.members if self._members_now is None else self._members_now()

    @property
    def is_member(self) -> bool:
        """Whether this node is a member."""
        return self.router.node_id in self.members

    @property
    def rank(self) -> int:
        """The rank of this node among the members, from 0.

        Raises:
            ConfigError: This node is no member.
        """
        if not self.is_member:
            raise ConfigError(
                f"Node {self.router.node_id} is no member of the group {list(self.members)}, so "
                f"it has no rank there. Ask `group.is_member` first."
            )
        return self.members.index(self.router.node_id)

    def barrier(self, *, timeout: float | None = COLLECTIVE_TIMEOUT_S) -> None:
        """Block until all members have called it.

        Raises:
            DeadlineExceeded: A member did not call in time.
            PeerLost: A member has left the job.
            ConfigError: Another member has called another collective operation.
        """
        self._exchange("barrier", None, timeout)

    def all_gather(
        self, value: object, *, timeout: float | None = COLLECTIVE_TIMEOUT_S
    ) -> list[Any]:
        """Send a value, and return the values of all members, in the order of their ranks.

        Raises:
            DeadlineExceeded: A member did not call in time.
            PeerLost: A member has left the job.
            ConfigError: Another member has called another collective operation.
            CodecError: The value cannot be encoded.
        """
        return self._exchange("all_gather", value, timeout)

    def broadcast(
        self, value: object, *, src: int = 0, timeout: float | None = COLLECTIVE_TIMEOUT_S
    ) -> Any:
        """Return the value of one member; the values of the others are ignored.

        Args:
            value: The value, used on the member with rank `src` only.
            src: The rank of the member that sends its value.
            timeout: Seconds to wait for the others; `None` waits for ever.

        Raises:
            ConfigError: `src` is no rank of the group, or another member has called another
                collective operation, or named another `src`.
            DeadlineExceeded: A member did not call in time.
            PeerLost: A member has left the job.
        """
        if whole(0, src=src) or src >= len(self.members):
            raise ConfigError(
                f"`src` is {src!r}; the group {list(self.members)} has the ranks 0 to "
                f"{len(self.members) - 1}."
            )
        own = value if self.rank == src else None
        return self._exchange(f"broadcast(src={int(src)})", own, timeout)[src]

    def _exchange(self, kind: str, value: object, timeout: float | None) -> list[Any]:
        rank, collectives = self.rank, self.router.collectives
        number = collectives.next_round(self.members)
        key = f"group {','.join(map(str, self.members))}, operation {number}"
        point = self.router.coordinator_of(self.members)
        try:
            values = self.router.call(
                point, COLLECTIVE, key, kind, [*self.members], rank, value, timeout=timeout
            )
        except PeerLost:
            if not self.router.world[point]:  # in an elastic job a node may still get its number
                collectives.repeat_round(self.members)
            raise
        except (CodecError, TransportError):
            collectives.repeat_round(self.members)  # the others still wait for a value
            raise
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"Not all members of {key} have called within {timeout:g} s; node "
                f"{self.router.node_id} waited. Did one of them fail, or call fewer collective "
                f"operations than the others? A restarted node begins with operation 1 again: "
                f"restart all members with it."
            ) from error
        if isinstance(values, str):
            raise ConfigError(
                f"In {key}, {values}. All members must call the same operations in the same order."
            )
        if not isinstance(values, list):
            collectives.repeat_round(self.members)
            raise PeerLost(
                f"Node {values} has left the job, so {key} cannot be completed. All members must "
                f"call the same operations: end each `main` with a barrier."
            )
        return values

    def averager(self, *, timeout: float = COLLECTIVE_TIMEOUT_S) -> Callable[[Tensor], None]:
        """Return a function that replaces a tensor in place by the mean over all members.

        Every member must call this method, and the returned function as often as the others, with
        tensors of the same shape. Each call makes a gloo group of its own, beside the default group
        of `torch.distributed`. A tensor on a GPU is averaged on the host, because a deadline of
        nccl ends the process.

        Args:
            timeout: Seconds that a member waits for the others each time.

        Raises:
            ConfigError: `timeout` is not above 0.
            PeerLost: By the returned function: a member has died, has left, or was too slow.
        """
        check_all(positive(timeout=timeout))
        if len(self.members) == 1:
            return lambda tensor: None
        import torch

        distributed: Any = torch.distributed
        limit, size = timedelta(seconds=timeout), len(self.members)
        store, _ = self._rendezvous(limit)
        groups = [distributed.ProcessGroupGloo(store, self.rank, size, timeout=limit)]
        leave_groups_at_exit(groups.clear)

        def average(given: Tensor) -> None:
            [group], tensor = groups, given.cpu()
            is_small = size * tensor.nbytes <= GATHERED_BYTES
            all_of_them = tensor.new_empty((size, *tensor.shape)) if is_small else tensor
            try:
                if is_small:
                    work = group.allgather([[*all_of_them.unbind()]], [tensor])
                else:
                    work = group.allreduce([tensor])
                work.wait(limit)
            except RuntimeError as error:
                raise PeerLost(
                    f"The mean over the nodes {list(self.members)} cannot be taken: one of them "
                    f"has died, has left, or was not there within {timeout:g} s ({error}). "
                    f"Nothing was updated; restart all of them."
                ) from error
            if is_small:
                torch.mean(all_of_them, 0, out=tensor)
            else:
                tensor /= size
            if tensor is not given:
                given.copy_(tensor)

        return average

    def process_group(
        self, backend: str | None = None, *, host: str | None = None, timeout: float = 300.0
    ) -> ProcessGroup:
        """Make the members one process group of `torch.distributed`.

        Every member must call it, once. The traffic of gloo and nccl is neither encrypted nor
        authenticated: use it on a network that you trust.

        On several machines gloo uses the interface by which this machine reaches the others, unless
        the variable GLOO_SOCKET_IFNAME names another one.

        Args:
            backend: As `torch.distributed` names it. By default gloo; and nccl for tensors on GPUs
                if the current GPU of every member is one that no other member uses.
            host: The host at which the other members reach the member of rank 0; by default where
                its router listens, or the interface by which its machine reaches the others.
            timeout: Seconds after which a member that waits for another one in a collective of
                the group raises PyTorch's error. PyTorch's default is 30 minutes. Members that
                stay apart for more than five minutes need a longer timeout.

        Returns:
            The process group; it is also the default group of this process.

        Raises:
            ConfigError: `timeout` is not above 0, or this process has a default group already.
        """
        check_all(positive(timeout=timeout))
        import torch

        distributed: Any = torch.distributed  # its stubs are incomplete
        if distributed.is_initialized():
            raise ConfigError(
                "This process is already in a default group of torch.distributed, and a process "
                "can be in one only. Call `process_group` once, on all nodes that need one, and "
                "make the others of it by `torch.distributed.new_group(ranks)`."
            )
        limit = timedelta(seconds=timeout)
        store, has_own_gpus = self._rendezvous(limit, host)
        backend = backend or ("cpu:gloo,cuda:nccl" if has_own_gpus else "gloo")
        distributed.init_process_group(
            backend, store=store, rank=self.rank, world_size=len(self.members), timeout=limit
        )
        leave_groups_at_exit()
        return cast("ProcessGroup", distributed.group.WORLD)

    def _rendezvous(self, limit: timedelta, host: str | None = None) -> tuple[Any, bool]:
        """Return a store that all members share, and whether each has a GPU of its own."""
        import torch

        answers = self.all_gather([_own_gpu(), self.router.host])
        gpus = {gpu for gpu, _ in answers if gpu is not None}
        own = _own_host(self.router.host, [host for _, host in answers])
        if (interface := interface_beyond(own)) is not None:
            suggest_environ("GLOO_SOCKET_IFNAME", interface)
        distributed: Any = torch.distributed
        size, store = len(self.members), None
        if self.rank == 0:
            host = host or own
            store = distributed.TCPStore(host, 0, size, True, limit, wait_for_workers=False)
        host, port = self.broadcast(None if store is None else [host, store.port])
        store = store or distributed.TCPStore(host, port, size, False, limit)
        return store, len(gpus) == size


def check_group(group: object, role: str) -> None:
    """Raise ConfigError unless this is a group, such as for the labels of its members."""
    if not isinstance(group, Group):
        raise ConfigError(
            f"`{role}` is {kind_of(group)}; a group of nodes was expected, such as "
            f'`World.current().group("learner")`.'
        )


def _own_gpu() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return None
    gpu: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return str(gpu.uuid)


def _own_host(own: str | None, of_all: Iterable[str | None]) -> str:
    """Return the host by which the others reach this machine; loopback if all are on it."""
    if own is not None:
        return own
    others = [host for host in of_all if host is not None and not is_loopback(host)]
    return interface_towards(Address("tcp", others[0], 1)) if others else LOOPBACK


def leave_groups_at_exit(release: Callable[[], None] | None = None) -> None:
    """Destroy all groups of torch.distributed, and their threads, before Python ends.

    Threads of gloo release the tensors of the last collective late, and need Python for that. If
    they do so during finalization the process aborts with SIGABRT (PyTorch issue 190489). A
    forked process skips finalization, so nothing is registered there. A group lives as long as
    any handle; `release` drops those of the caller.
    """
    if parent_process() is None:
        atexit.register(_leave_groups, release)


def _leave_groups(release: Callable[[], None] | None) -> None:
    import torch

    if release is not None:
        release()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    gc.collect()  # a wrapped network holds its group, and is part of a cycle

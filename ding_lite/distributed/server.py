"""The base of the servers of this package: an incarnation, waits, and retried calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias

from ding_lite.clock import Deadline
from ding_lite.errors import ConfigError, DeadlineExceeded, PeerLost, RemoteError, kind_of
from ding_lite.parallel.router.calls import REGISTRATION_S
from ding_lite.parallel.router.group import Group, check_group

Condition: TypeAlias = Callable[[], bool]


def new_incarnation() -> int:
    """Draw a number that distinguishes this object from one of an earlier process; never 0."""
    return int.from_bytes(os.urandom(6), "little") + 1


def check_methods(value: object, role: str, *names: str, expected: str) -> None:
    """Raise ConfigError if a value lacks one of these methods, or is a class that has them."""
    for name in names:
        if isinstance(value, type) or not callable(getattr(value, name, None)):
            found = f"the class {value.__name__}" if isinstance(value, type) else kind_of(value)
            raise ConfigError(f"`{role}` is {found}, which has no `{name}`; {expected}.")


class Server:
    """One node's side of a service; the owner, the first node of the group, holds the state.

    `name` is the prefix of its calls; `timeout` limits the wait for a lost node, and for an answer.
    """

    def __init__(self, group: Group, name: str, *, timeout: float) -> None:
        check_group(group, "group")
        self.router = group.router
        self.owner = group.members[0]
        self.timeout = timeout
        self.incarnation = new_incarnation()
        """Differs after a restart of the process, and after `renew`."""
        self._name = name
        # To no topic: `notify` wakes its waits, and so do nodes that come and go.
        self._changes = self.router.subscribe()

    @property
    def is_owner(self) -> bool:
        return self.router.node_id == self.owner

    def register(self, name: str, fn: Callable[..., Any], *, quick: bool = False) -> None:
        self.router.register(f"{self._name}.{name}", fn, quick=quick)

    def renew(self) -> None:
        """Take another incarnation; work handed out under the former one is no longer accepted."""
        self.incarnation = new_incarnation()

    def notify(self) -> None:
        """Make each `wait` check its condition again."""
        self._changes.wake()

    def wait(self, ready: Condition, deadline: Deadline, until: Condition) -> bool:
        """Block until `ready()` or `until()`, or the job ends; return False if it is too late."""
        return self._changes.wait_before(deadline, lambda: until() or ready())

    def has_ended(self, until: Condition) -> bool:
        """Tell whether `until()`, or the job ends."""
        return until() or self.router._is_ending()

    def is_connected(self, node: int) -> bool:
        """Tell whether a node can be called; this node always can."""
        return node == self.router.node_id or node in self.router.peers

    def wait_for_node(self, node: int, until: Condition) -> bool:
        """Wait for a node; return whether it is connected before `until()`."""
        if fault := self.router._fault_of_topology([node]):
            raise ConfigError(f"{fault} Node {node} answers `{self._name}`.")
        deadline = Deadline.after(self.timeout)
        if not self.wait(lambda: self.is_connected(node), deadline, until):
            raise DeadlineExceeded(
                f"Node {node}, which answers `{self._name}`, has not been connected for "
                f"{self.timeout:g} s. Is it gone?"
            )
        return self.is_connected(node)

    def ask(self, node: int, name: str, *args: object) -> Future[Any]:
        """Call a node without waiting; the answer makes each `wait` check its condition."""
        answer = self.router.ask(node, f"{self._name}.{name}", *args)
        answer.add_done_callback(lambda _: self.notify())
        return answer

    def call(
        self, node: int, name: str, *args: object, until: Condition, awaits_server: bool = True
    ) -> Any:  # noqa: ANN401 - as the handler answers
        """Call a node and return its answer; None if the node was lost, or `until` ended a wait.

        `until` also ends the wait for a lost node. If a new process has not made its server yet,
        the call waits for it if `awaits_server`; otherwise the node counts as lost. Raises
        DeadlineExceeded if the node was not connected, or did not answer, in time, and RemoteError
        for an error of the handler.
        """
        deadline = Deadline.after(self.timeout)
        if self.wait_for_node(node, until):
            while self.is_connected(node):
                try:
                    return self.router.call(
                        node, f"{self._name}.{name}", *args, timeout=deadline.remaining
                    )
                except PeerLost:
                    break
                except RemoteError as error:
                    if error.is_not_registered and not awaits_server:
                        break
                    if not error.is_not_registered or deadline.expires_within(REGISTRATION_S):
                        raise
                if until():
                    break
        return None

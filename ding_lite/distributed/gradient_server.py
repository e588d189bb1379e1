"""Asynchronous gradients: agents push gradients to a server, each at its own pace (A3C).

Mnih et al. 2016 (arXiv:1602.01783). An agent pulls the newest weights, plays, and pushes a
gradient. The first node of the server's group, the owner, applies it and answers; no agent waits
for another. The staleness of a gradient is the number of versions between its pull and its push;
a gradient that is too stale is refused.

Further nodes of the group are reducers. Each receives the gradients of some agents, and forwards
the mean of the gradients that arrived while the previous mean was under way. If one of them is too
stale, each is forwarded alone.

The owner applies each gradient that it receives, or refuses it as stale, and counts it as such,
even if its agent is killed meanwhile. An invalid gradient (of another size, or not finite) is an
error of its agent, and is not counted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ding_lite.clock import Deadline
from ding_lite.distributed.server import Server, check_methods
from ding_lite.errors import (
    ConfigError,
    DeadlineExceeded,
    NonFiniteError,
    PeerLost,
    RemoteError,
    ShapeError,
    kind_of,
)
from ding_lite.parallel.router.group import Group
from ding_lite.records import register
from ding_lite.rl.batch import NumpyArray, to_numpy
from ding_lite.rl.protocols import Policy
from ding_lite.rl.replay.storage import check_keys
from ding_lite.settings.rules import check_all, positive, whole

MOST_STALENESSES = 1 << 16
"""The most values of staleness that are kept, for a program that never takes them."""
_LOADS = "the policy that is to load the weights was expected"


class Loads(Protocol):
    """An object that loads weights."""

    def load_weights(self, weights: Mapping[str, Any]) -> None: ...


class Improvable(Policy, Protocol):
    """A policy that applies gradients computed elsewhere."""

    def apply_gradient(self, grad_P: Tensor, /) -> float: ...


@register(name="ding_lite.Receipt")
@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to a pushed gradient."""

    is_applied: bool
    staleness: int
    """Versions between the weights of the gradient and the weights that it was to change."""
    version: int
    """The server's version afterwards."""


class GradientServer:
    """Applies the gradients of other nodes to a policy.

    Every node makes one, with the same arguments. On the first node of the group, the owner, it
    holds a clone of the policy, and its state can be part of a checkpoint. Methods for the
    owner raise ConfigError on other nodes.

    Args:
        group: The server's nodes: the first one owns the weights, others reduce.
        policy: The policy to improve: an A2C, for example.
        max_staleness: The highest staleness of a gradient, in versions; a staler one is refused. A
            higher limit wastes fewer gradients and is less exact; None accepts all.
        name: Distinguishes this server from others of the same nodes.
        timeout: Seconds that an agent waits for an answer, or for a lost server.

    Raises:
        ConfigError: A setting is out of range, or the policy cannot apply gradients, or normalises
            observations.
    """

    def __init__(
        self,
        group: Group,
        policy: Improvable,
        *,
        max_staleness: int | None = None,
        name: str = "gradients",
        timeout: float = 60.0,
    ) -> None:
        check_all(
            [] if max_staleness is None else whole(0, max_staleness=max_staleness),
            positive(timeout=timeout),
        )
        expected = "a policy was expected that steps along gradients of others, such as an A2C"
        check_methods(policy, "policy", "apply_gradient", "clone", expected=expected)
        if getattr(policy, "norm", None) is not None:
            raise ConfigError(
                "`normalize_obs` is on, and its running means would stay as they are, because "
                "agents push gradients, which do not carry them. Leave it out and normalise in the "
                "environment (`wrappers=`), or let IMPALA's collectors send their rollouts."
            )
        self.num_applied = 0
        """On the owner: gradients that have changed the weights."""
        self.num_refused = 0
        """On the owner: gradients that were too stale."""
        self.version = 0
        """On the owner: the number of its updates."""
        self.is_agent = False
        """Whether this node has pushed a gradient."""
        self._pulled = 0, 0
        """The incarnation and the version of the weights that were pulled last."""
        self._loaded: Loads | None = None
        """The policy that has loaded them."""
        self._server = server = Server(group, f"ding_lite.gradient_server.{name}", timeout=timeout)
        self._incarnation = server.incarnation
        """Tells states of this server from those of other processes; `renew` does not change it."""
        self._counted = {self._incarnation}
        """The incarnations of the servers that the counts of pushes include."""
        self._members = group.members
        self._reducer: Reducer | None = None
        self._max_staleness = max_staleness
        self._lock = threading.Lock()
        """Guards all below, the counters and `version`: handlers run on the router's threads."""
        self._own: Improvable | None = None
        self._stalenesses: deque[int] = deque(maxlen=MOST_STALENESSES)
        self._newest: tuple[int, int, Mapping[str, Any]] = (0, 0, {})
        """On the owner: its incarnation, version and weights; replaced as a whole, without lock."""
        self._shape: tuple[int, ...] | None = None
        """On the owner: the shape of the gradients that were applied."""
        if server.is_owner:
            self._own = policy.clone()
            self._note_newest(self._own)
            server.register("pull", self._answer_pull, quick=True)
            server.register("apply", self._apply)
            server.register("push", self._push_here)
        elif group.is_member:
            self._reducer = Reducer(server)

    # -- on an agent ---------------------------------------------------------------------------

    def push(self, grad_P: Tensor, *, until: Callable[[], bool] = lambda: False) -> Receipt | None:
        """Send a gradient of the weights that were pulled last, and return its receipt.

        Args:
            grad_P: The flat gradient.
            until: Ends the wait once it returns True.

        Returns:
            The receipt; None if the server was lost meanwhile, or `until` ended the wait.

        Raises:
            ConfigError: The gradient is no dense tensor of floating-point numbers.
            DeadlineExceeded: The server could not be reached, or has not answered, in time.
            RemoteError: The called node has not made its server in time, or refused the gradient.
        """
        is_tensor = isinstance(grad_P, Tensor)
        if not (is_tensor and grad_P.is_floating_point() and grad_P.layout is torch.strided):
            kind = f", {grad_P.layout} of {grad_P.dtype}" if is_tensor else ""
            raise ConfigError(
                f"`grad_P` is {kind_of(grad_P)}{kind}; a dense tensor of floating-point numbers "
                f"was expected, the first value of `policy.gradients(rollouts)`."
            )
        self.is_agent = True
        # Each agent always pushes to the same node, so that the agents are divided evenly.
        others = self._members[1:] or self._members[:1]
        node = others[self._server.router.node_id % len(others)]
        receipt: Receipt | None = self._server.call(
            node, "push", *self._pulled, to_numpy(grad_P), until=until
        )
        return receipt

    def pull(self, policy: Loads, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Load the newest weights, unless this policy was the last to load them.

        Returns:
            Whether weights were loaded.

        Raises:
            ConfigError: The policy has no `load_weights`.
            DeadlineExceeded: The server could not be reached, or has not answered, in time.
            RemoteError: The owner has not made its server in time, or refused the request.
        """
        check_methods(policy, "policy", "load_weights", expected=_LOADS)
        known = self._pulled if policy is self._loaded else (0, 0)
        newest = self._server.call(self._server.owner, "pull", *known, until=until)
        if newest is None:
            return False
        incarnation, version, weights = newest
        policy.load_weights(weights)
        self._loaded, self._pulled = policy, (incarnation, version)
        return True

    @property
    def is_owner(self) -> bool:
        """Whether this node owns the weights: the first one of the group."""
        return self._server.is_owner

    @property
    def pulled_version(self) -> int:
        """The version of the weights that this node has pulled last."""
        return self._pulled[1]

    # -- on the owner --------------------------------------------------------------------------

    def wait_for_updates(self, count: int, *, until: Callable[[], bool]) -> None:
        """Wait until the owner has done `count` more updates, or `until()` returns True.

        A reducer, which knows no updates, waits for `until` alone.

        Raises:
            ConfigError: This node is none of the server's.
            DeadlineExceeded: No gradient was pushed for too long.
        """
        if self._reducer is not None:
            self._server.wait(lambda: False, Deadline.after(None), until)
            return
        self._owned()
        goal, is_in_time = self.version + count, False
        while not is_in_time:
            seen, deadline = self.version, Deadline.after(self._server.timeout)
            is_in_time = self._server.wait(lambda: self.version >= goal, deadline, until)
            if not is_in_time and self.version == seen:
                raise DeadlineExceeded(
                    f"No gradient that could be applied was pushed for {self._server.timeout:g} s; "
                    f"{self.num_applied} were applied and {self.num_refused} refused before."
                )

    def copy_to(self, policy: Loads) -> None:
        """Load the owner's weights into a policy of the same node."""
        check_methods(policy, "policy", "load_weights", expected=_LOADS)
        self._owned()
        policy.load_weights(self._newest[2])

    def take_stalenesses(self) -> list[int]:
        """Return the staleness of each push since the last call, refused ones included.

        If there are more than 65,536, these are the newest.
        """
        with self._lock:
            taken = [*self._stalenesses]
            self._stalenesses.clear()
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Copy the state of the owner: its policy and its counters."""
        with self._lock:
            return {
                "policy": self._owned().state_dict(),
                "version": self.version,
                "num_applied": self.num_applied,
                "num_refused": self.num_refused,
                "incarnation": self._incarnation,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned, on the owner.

        Gradients that were pushed before the load count as refused, as their updates are lost.

        Raises:
            CheckpointError: It is no state of a server, or of one with another kind of policy.
            ShapeError: The state is of a network of another size.
        """
        own = self._owned()
        check_keys(state, self.state_dict(), "a GradientServer")
        with self._lock:
            own.load_state_dict(state["policy"])
            num_pushed = self.num_applied + self.num_refused
            if state["incarnation"] not in self._counted:  # else these include its pushes
                self._counted.add(state["incarnation"])
                num_pushed += int(state["num_applied"]) + int(state["num_refused"])
            self.num_applied = int(state["num_applied"])
            self.num_refused = num_pushed - self.num_applied
            self.version = int(state["version"])
            self._server.renew()
            self._note_newest(own)
        self._server.notify()

    def _note_newest(self, own: Improvable) -> None:
        self._newest = self._server.incarnation, self.version, own.weights()

    def _answer_pull(self, incarnation: int, version: int) -> tuple[Any, ...] | None:
        """Answer on the thread that reads messages, even while a gradient is applied."""
        newest = self._newest
        return None if newest[:2] == (incarnation, version) else newest

    def _push_here(self, incarnation: int, version: int, grad_P: NumpyArray) -> Receipt:
        _check_push(incarnation, version, grad_P)
        [receipt] = self._apply(incarnation, [version], grad_P)
        return receipt

    def _apply(self, incarnation: int, versions: list[int], grad_P: NumpyArray) -> list[Receipt]:
        """Apply a mean of gradients; refuse a single stale one, or return no receipts."""
        own = self._owned()
        with self._lock:
            if self._shape not in (None, grad_P.shape):
                raise ShapeError(
                    f"The gradient has shape {grad_P.shape}; {self._shape} was expected. Is it of "
                    f"a network of the same size?"
                )
            before, limit = self.version, self._max_staleness
            # The staleness is unknown for weights of a former incarnation, or before a first pull.
            is_known = incarnation == self._server.incarnation
            stalenesses = [before - version if is_known else before for version in versions]
            is_applied = limit is None or (is_known and max(stalenesses) <= limit)
            if not is_applied and len(versions) > 1:
                return []
            if is_applied:
                own.apply_gradient(torch.from_numpy(np.array(grad_P, np.float32)))
                self._shape = grad_P.shape
                self.num_applied += len(versions)
                self.version += 1
                self._note_newest(own)
            else:
                self.num_refused += 1
            self._stalenesses += stalenesses
            receipts = [Receipt(is_applied, staleness, self.version) for staleness in stalenesses]
        self._server.notify()
        return receipts

    def _owned(self) -> Improvable:
        if self._own is None:
            raise ConfigError(
                f"Node {self._server.router.node_id} does not own the weights of this server; node "
                f"{self._server.owner} does. Let this run there only."
            )
        return self._own


@dataclass(eq=False)
class _PendingGradient:
    grad_P: NumpyArray
    incarnation: int
    """The incarnation of the server from which the agent pulled its weights."""
    version: int
    answer: Future[Any]
    is_alone: bool = False
    """Whether a mean with it was refused, so that it is forwarded alone."""

    @property
    def kind(self) -> tuple[int, ...]:
        """The same for gradients that may be averaged."""
        return self.incarnation, *self.grad_P.shape, id(self) if self.is_alone else 0


class Reducer:
    """Forwards the mean of the gradients that arrive while the previous mean is under way.

    Gradients of which one is too stale are forwarded alone. Each agent gets the owner's receipt.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        """Guards all below: handlers run on the router's threads."""
        self._waiting: list[_PendingGradient] = []
        self._is_under_way = False
        server.register("push", self._push)

    def _push(self, incarnation: int, version: int, grad_P: NumpyArray) -> Future[Any]:
        _check_push(incarnation, version, grad_P)
        pending = _PendingGradient(np.array(grad_P), incarnation, version, Future())
        with self._lock:
            self._waiting.append(pending)
        self._hand_on()
        return pending.answer

    def _hand_on(self) -> None:
        with self._lock:
            if self._is_under_way or not self._waiting:
                return
            kind = self._waiting[0].kind
            batch = [each for each in self._waiting if each.kind == kind]
            self._waiting = [each for each in self._waiting if each.kind != kind]
            self._is_under_way = True
        mean_P = np.mean([each.grad_P for each in batch], axis=0, dtype=np.float32)
        versions = [each.version for each in batch]
        self._server.ask(
            self._server.owner, "apply", batch[0].incarnation, versions, mean_P
        ).add_done_callback(lambda done: self._pass_back(batch, done))

    def _pass_back(self, batch: list[_PendingGradient], done: Future[Any]) -> None:
        error = done.exception()
        receipts: list[Any] = [] if error is not None else done.result()
        is_new = isinstance(error, RemoteError) and error.is_not_registered
        if isinstance(error, PeerLost) or is_new:
            receipts = [None] * len(batch)  # as if it had been this node that was lost
        with self._lock:
            self._is_under_way = False
            if not receipts and error is None:
                for each in batch:
                    each.is_alone = True
                self._waiting = batch + self._waiting
        if receipts:
            for each, receipt in zip(batch, receipts, strict=True):
                each.answer.set_result(receipt)
        elif error is not None:
            for each in batch:
                each.answer.set_exception(error)
        self._hand_on()


def _check_push(incarnation: object, version: object, grad_P: NumpyArray) -> None:
    is_array = isinstance(grad_P, np.ndarray) and grad_P.dtype.kind == "f"
    if not (is_array and type(incarnation) is type(version) is int):
        raise ConfigError("A push consists of two whole numbers and an array of floats.")
    if not np.isfinite(grad_P).all():
        raise NonFiniteError(
            "A gradient that was pushed holds NaN or infinity, and is not applied. A lower `lr` or "
            "`max_grad_norm` helps when values have blown up."
        )

"""A policy that agents improve from afar, each at its own pace (A3C, arXiv:1602.01783).

An agent pulls the newest weights, plays, and pushes a gradient. The first node of the server's
group steps along it and answers; nobody waits for other agents. Between pull and push others
may have pushed: by so many versions a gradient is stale, and too stale a one is refused.

Further nodes of the group are reducers: each takes the gradients of some agents, and hands on
the mean of those that have come while the one before was under way. Whatever is pushed is
answered when it was applied or refused, so both are counted exactly.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from ding_lite.clock import Deadline
from ding_lite.errors import ConfigError, DeadlineExceeded, PeerLost
from ding_lite.parallel.group import Group
from ding_lite.records import register
from ding_lite.rl.batch import NumpyArray
from ding_lite.settings import check_all, positive, whole

LOOK_S = 0.25
"""How often an agent looks whether a server that it has lost is back."""


class Loads(Protocol):
    """Something that takes over weights."""

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Take over weights."""
        ...


class Improvable(Loads, Protocol):
    """A policy that steps along gradients which it need not have computed itself."""

    def apply_gradient(self, grad_P: Tensor, /) -> float:
        """Step along a flat gradient."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """Copy what acting and computing gradients need."""
        ...

    def clone(self) -> Self:
        """Make an independent policy in exactly this state."""
        ...


@register(name="ding_lite.Receipt")
@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a gradient."""

    is_applied: bool
    staleness: int
    """How many versions there were between the weights it is of and those it was to change."""
    version: int
    """The server's version afterwards."""


@dataclass
class _Waiting:
    """A gradient at a reducer, until the server has answered."""

    grad_P: NumpyArray
    version: int
    answer: Future[Receipt]


class GradientServer:
    """The weights of a policy, which gradients of other nodes improve.

    Every node makes one, with the same arguments. On the first node of the group it holds a
    policy of its own, which begins as the one given.

    Args:
        group: The server's nodes: the first one owns the weights, others reduce.
        policy: What is improved: an A2C, for example.
        max_staleness: Gradients of weights that are older by more versions are refused. More
            wastes less and is less exact; None takes all.
        name: Tells it from another one of the same nodes.
        timeout: Seconds that an agent waits for an answer, or for a server that is gone.

    Raises:
        ConfigError: A setting is out of range, or the policy cannot be improved so.
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
        if not callable(getattr(policy, "apply_gradient", None)):
            raise ConfigError(
                f"`policy` is a {type(policy).__name__}, which cannot step along a gradient that "
                f"others have computed: it has no `apply_gradient`. Give an A2C."
            )
        self.num_applied = 0
        """On the owner: gradients that have changed the weights."""
        self.num_refused = 0
        """On the owner: gradients that were too stale."""
        self.version = 0
        """On the owner: its updates."""
        self._pulled, self._pulled_life = 0, 0
        self._router, self._members = group.router, group.members
        self._name = f"ding_lite.gradient_server.{name}"
        self._max_staleness = max_staleness
        self._timeout = timeout
        self._life = 0
        self._end = self._router.watch()
        self._changed = threading.Condition()
        self._stalenesses: list[int] = []
        self._waiting: list[_Waiting] = []
        self._is_under_way = False
        self._own: Improvable | None = None
        if self._router.node_id == group.members[0]:
            self._life = int.from_bytes(os.urandom(6), "little") + 1
            self._own = policy.clone()
            self._router.register(f"{self._name}.pull", self._answer_pull, quick=True)
            self._router.register(f"{self._name}.apply", self._apply)
            self._router.register(f"{self._name}.push", self._push_here)
        elif group.is_member:
            self._router.register(f"{self._name}.push", self._reduce)

    # -- on an agent ---------------------------------------------------------------------------

    def push(self, grad_P: Tensor, *, until: Callable[[], bool] = lambda: False) -> Receipt | None:
        """Send a gradient of the weights that were pulled last, and wait for its receipt.

        Args:
            grad_P: The flat gradient.
            until: Ends the wait.

        Returns:
            What became of it; None where the server was lost meanwhile, or `until` said so.

        Raises:
            DeadlineExceeded: No server was there, or none has answered, in time.
        """
        # An agent keeps to one of the nodes, so that their number divides the work.
        others = self._members[1:] or self._members[:1]
        node = others[self._router.node_id % len(others)]
        array = grad_P.detach().cpu().numpy()
        receipt: Receipt | None = self._ask(
            node, "push", until, self._pulled_life, self._pulled, array
        )
        return receipt

    def pull(self, policy: Loads, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Load the newest weights; return whether they were other ones than before.

        Raises:
            DeadlineExceeded: No server was there, or none has answered, in time.
        """
        newest = self._ask(self._members[0], "pull", until, self._pulled_life, self._pulled)
        if newest is None:
            return False
        self._pulled_life, self._pulled, weights = newest
        policy.load_weights(weights)
        return True

    @property
    def pulled_version(self) -> int:
        """The version of the weights that this node has pulled last."""
        return self._pulled

    def _ask(self, node: int, what: str, until: Callable[[], bool], *args: object) -> Any:  # noqa: ANN401 - as the handler answers
        deadline = Deadline.after(self._timeout)
        router = self._router
        while node != router.node_id and node not in router.peers:
            if until():
                return None
            if deadline.expired:
                raise DeadlineExceeded(
                    f"Node {node}, of the gradient server, has not been connected for "
                    f"{self._timeout:g} s. Is it gone?"
                )
            self._end.wait(lambda _: False, Deadline.after(LOOK_S), until)
        try:
            return router.call(node, f"{self._name}.{what}", *args, timeout=deadline.remaining)
        except PeerLost:
            return None  # what it has held is lost with it; the next pull tells what there is

    # -- on the owner --------------------------------------------------------------------------

    def wait_for_updates(self, count: int, *, until: Callable[[], bool]) -> None:
        """Wait until the owner has made so many updates more, or `until()`.

        Raises:
            ConfigError: This node is not the owner.
            DeadlineExceeded: Nobody has pushed anything for too long.
        """
        self._owned()
        goal, seen, deadline = self.version + count, self.version, Deadline.after(self._timeout)
        while self.version < goal and not until():
            self._end.wait(lambda _: self.version >= goal, Deadline.after(LOOK_S), until)
            if self.version != seen:
                seen, deadline = self.version, Deadline.after(self._timeout)
            elif deadline.expired:
                raise DeadlineExceeded(
                    f"Nobody has pushed a gradient that could be applied for {self._timeout:g} s; "
                    f"{self.num_applied} were applied and {self.num_refused} refused before."
                )

    def copy_to(self, policy: Loads) -> None:
        """Load the owner's weights into a policy of the same node.

        Raises:
            ConfigError: This node is not the owner.
        """
        with self._changed:
            policy.load_weights(self._owned().weights())

    def take_stalenesses(self) -> list[int]:
        """Return the staleness of each push since the last call, refused ones included."""
        with self._changed:
            taken, self._stalenesses = self._stalenesses, []
        return taken

    def _answer_pull(self, life: int, version: int) -> list[Any] | None:
        own = self._owned()
        with self._changed:
            if (life, version) == (self._life, self.version):
                return None
            return [self._life, self.version, own.weights()]

    def _push_here(self, life: int, version: int, grad_P: NumpyArray) -> Receipt:
        return self._apply(life, [version], grad_P)

    def _apply(self, life: int, versions: list[int], grad_P: NumpyArray) -> Receipt:
        """Step along the mean of some gradients, or refuse them together."""
        own = self._owned()
        with self._changed:
            # Weights of a former life, or of before the first pull, are of no known age.
            oldest = min(versions) if life == self._life else None
            staleness = self.version if oldest is None else self.version - oldest
            self._stalenesses += [staleness] * len(versions)
            limit = self._max_staleness
            if limit is not None and (oldest is None or staleness > limit):
                self.num_refused += len(versions)
                return Receipt(False, staleness, self.version)
            own.apply_gradient(torch.from_numpy(np.array(grad_P, np.float32)))
            self.num_applied += len(versions)
            self.version += 1
            receipt = Receipt(True, staleness, self.version)
        self._end.wake()
        return receipt

    def _owned(self) -> Improvable:
        if self._own is None:
            raise ConfigError(
                f"Node {self._router.node_id} does not own the weights of this server; node "
                f"{self._members[0]} does. Let `serve_gradients` run there only."
            )
        return self._own

    # -- on a reducer --------------------------------------------------------------------------

    def _reduce(self, life: int, version: int, grad_P: NumpyArray) -> Future[Receipt]:
        """Take a gradient, and answer once the owner has answered for it."""
        answer: Future[Receipt] = Future()
        with self._changed:
            if life != self._life:
                self._life = life
            self._waiting.append(_Waiting(np.array(grad_P), version, answer))
        self._hand_on()
        return answer

    def _hand_on(self) -> None:
        with self._changed:
            if self._is_under_way or not self._waiting:
                return
            batch, self._waiting = self._waiting, []
            self._is_under_way = True
            life = self._life
        mean_P = np.mean([waiting.grad_P for waiting in batch], axis=0, dtype=np.float32)
        versions = [waiting.version for waiting in batch]
        self._router.ask(
            self._members[0], f"{self._name}.apply", life, versions, mean_P
        ).add_done_callback(lambda done: self._pass_back(batch, done))

    def _pass_back(self, batch: list[_Waiting], done: Future[Any]) -> None:
        with self._changed:
            self._is_under_way = False
        for waiting in batch:
            error = done.exception()
            if error is not None:
                waiting.answer.set_exception(error)
            else:
                waiting.answer.set_result(done.result())
        self._hand_on()

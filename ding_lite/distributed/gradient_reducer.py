"""A node between the agents of a gradient server and its owner, which averages gradients."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from ding_lite.distributed.server import Server
from ding_lite.errors import ConfigError, NonFiniteError, PeerLost, RemoteError
from ding_lite.rl.batch import NumpyArray


@dataclass(eq=False)
class _PendingGradient:
    """A gradient that waits until the owner answers."""

    grad_P: NumpyArray
    incarnation: int
    """The incarnation of the server from which the agent pulled its weights."""
    version: int
    answer: Future[Any]

    @property
    def kind(self) -> tuple[int, ...]:
        """The same for gradients that may be averaged."""
        return self.incarnation, *self.grad_P.shape


class Reducer:
    """Forwards the mean of the gradients that arrive while the previous mean is under way.

    Gradients of which one is too stale are forwarded alone. Each agent gets the owner's receipt.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        """Guards all below: handlers run on the router's threads."""
        self._waiting: list[_PendingGradient] = []
        self._alone: list[_PendingGradient] = []
        self._is_under_way = False
        server.register("push", self._push)

    def _push(self, incarnation: int, version: int, grad_P: NumpyArray) -> Future[Any]:
        """Queue a gradient; the future gets the receipt when the owner has answered."""
        is_array = isinstance(grad_P, np.ndarray) and grad_P.dtype.kind == "f"
        if not (is_array and type(incarnation) is type(version) is int):
            raise ConfigError("A push consists of two whole numbers and an array of floats.")
        if not np.isfinite(grad_P).all():
            raise NonFiniteError(
                "A gradient that was pushed holds NaN or infinity; it would spoil the mean with "
                "those of others. A lower `lr` or `max_grad_norm` helps when values have blown up."
            )
        pending = _PendingGradient(np.array(grad_P), incarnation, version, Future())
        with self._lock:
            self._waiting.append(pending)
        self._hand_on()
        return pending.answer

    def _hand_on(self) -> None:
        with self._lock:
            if self._is_under_way or not (self._alone or self._waiting):
                return
            if self._alone:
                batch = [self._alone.pop(0)]
            else:
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
                self._alone += batch
        if receipts:
            for each, receipt in zip(batch, receipts, strict=True):
                each.answer.set_result(receipt)
        elif error is not None:
            for each in batch:
                each.answer.set_exception(error)
        self._hand_on()

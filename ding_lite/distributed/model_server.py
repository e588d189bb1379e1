"""Named weights that one node publishes and the others fetch, by version.

Publishing sends them to every connected node, on one machine through shared memory, and the newest
version wins. So fetching takes no message, whether there is a new version or not.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ding_lite.clock import Deadline
from ding_lite.distributed.server import new_incarnation
from ding_lite.errors import ConfigError, DeadlineExceeded, kind_of
from ding_lite.parallel.router.group import World
from ding_lite.settings.rules import check_all, whole

logger = logging.getLogger(__name__)


class Model(NamedTuple):
    """Published weights, with their version."""

    version: int
    weights: Mapping[str, Any]


class Number(NamedTuple):
    """The number of a version."""

    incarnation: int
    """The publisher's incarnation; a restarted publisher counts versions from 1 again."""
    version: int


class ModelServer:
    """The newest version of some weights, which one node publishes and all may fetch.

    Args:
        world: The nodes that share the weights; this node's job by default.
        name: Distinguishes these weights from others.

    Example:
        >>> server = ModelServer(name="actor")
        >>> server.publish({"w": Tensor([1.0, 1.0])})
        1
        >>> server.fetch().version, server.fetch(newer_than=1)
        (1, None)
    """

    def __init__(self, world: World | None = None, *, name: str = "model") -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"`name` is {name!r}; a name such as `actor` was expected.")
        world = World.current() if world is None else world
        if not isinstance(world, World):
            raise ConfigError(
                f"`world` is {world!r:.80}; a World was expected. A name is given as "
                f'`ModelServer(name="actor")`.'
            )
        # Not of all nodes: a leaf of a star may not know the labels of the others.
        self._router = world.group(world.node_id).router
        self._announced, self._published = topics_of(name)
        self._topics = self._router.subscribe(self._announced, self._published)
        self._half_precision = _HalfPrecision()
        self._version: int | None = None
        self._incarnation = new_incarnation()
        self.fetched: Number | None = None
        """The number of the weights of another node that were fetched last."""
        self._former: set[int] = set()
        """The incarnations of publishers that others have replaced."""

    def publish(
        self, weights: Mapping[str, Tensor], *, half: bool = False, version: int | None = None
    ) -> int:
        """Offer weights to all connected nodes; neither waits for them nor keeps old versions.

        Args:
            weights: Tensors by name, on any device. They are copied, and may change after the call.
            half: Send 32-bit numbers in 16 bits: half the bytes, and about three digits of numbers
                above 6e-5; those below 3e-8 become 0. Sums of running statistics (`norm.*`), and
                tensors with numbers above 65,504, are sent as they are.
            version: Their version; by default one more than the last one, from 1.

        Returns:
            Their version.

        Raises:
            ConfigError: `weights` holds anything else than tensors, `version` is no whole number
                from 0 on, or another server of this node has published under the same name since
                this one did.
        """
        _check_weights(weights)
        check_all([] if version is None else whole(0, version=version))
        newest = self._router.published(self._announced)
        if self._version is not None and newest[0] != self._incarnation:
            raise ConfigError(
                f"Something else on this node publishes `{self._published}` too, and only the "
                f"newest is kept. `mw.publish_weights` is for one policy of a job: share the "
                f"weights of others by `ModelServer(name=...)`, each with a name of its own."
            )
        given = (
            self._half_precision(weights, but=("norm.",))
            if half
            else {name: w.cpu() for name, w in weights.items()}
        )
        if version is None:
            version = (self._version or 0) + 1
        number = (self._incarnation, version)
        self._router.publish(self._announced, number)
        self._router.publish(self._published, {"number": number, "weights": given})
        self._version = version
        return version

    def fetch(self, *, newer_than: int | None = None) -> Model | None:
        """Return the newest weights that have arrived; None if there are none.

        The publishing node gets a copy of the weights that it has published last. On other nodes
        all fetches of a version share their tensors: copy them before you change them in place.
        If several nodes publish in turn, a warning names them.

        Args:
            newer_than: Return higher versions only. A restarted publisher counts from 1 again, and
                a server that has fetched from it before returns any of its versions.
        """
        least = -math.inf if newer_than is None else newer_than
        if self._version is not None:
            if self._version <= least:
                return None
            own = self._router.published(self._published)
            return Model(own["number"][1], own["weights"])
        published = self._topics.newest.get(self._published)  # once: it may be replaced meanwhile
        if published is None:
            return None
        number = Number(*published["number"])
        fetched = self.fetched
        has_restarted = fetched is not None and fetched.incarnation != number.incarnation
        if number.version <= least and not has_restarted:
            return None
        if fetched is not None and has_restarted:
            self._replace(fetched.incarnation, number.incarnation)
        self.fetched = number
        return Model(number.version, published["weights"])

    def _replace(self, former: int, now: int) -> None:
        """Note that another publisher is fetched from; warn once a former one is back."""
        if now in self._former and former not in self._former:
            nodes = [
                node
                for node, values in self._topics.of_nodes.items()
                if values.get(self._announced, (0,))[0] in (former, now)
            ]
            logger.warning(
                "Nodes %s publish `%s` in turn, and the newest is fetched: their versions and "
                "weights are mixed. Publish on one node, such as `task.at('learner.0')`, or give "
                "each `ModelServer(name=...)` a name of its own.",
                " and ".join(map(str, sorted(nodes))),
                self._published,
            )
        self._former.add(former)

    @property
    def announced(self) -> Number | None:
        """The number of the newest weights that another node has published."""
        number = self._topics.newest.get(self._announced)
        return None if number is None else Number(*number)

    @property
    def arrived(self) -> Number | None:
        """The number of the newest weights of another node that have arrived."""
        published = self._topics.newest.get(self._published)
        return None if published is None else Number(*published["number"])

    def num_behind(self, number: Number | None) -> int | None:
        """Count the versions published after `number`; None if they cannot be compared."""
        announced = self.announced
        if announced is None or number is None or number.incarnation != announced.incarnation:
            return None
        return max(0, announced.version - number.version)

    def wait(
        self,
        *,
        newer_than: int | None = None,
        timeout: float | None = 60.0,
        until: Callable[[], bool] = lambda: False,
    ) -> Model | None:
        """Wait for weights as `fetch` returns them; return None if `until()`, or the job ends.

        Raises:
            DeadlineExceeded: No such version was published in time.
        """
        found: list[Model] = []

        def has_come() -> bool:
            model = self.fetch(newer_than=newer_than)
            found.extend([model] if model is not None else [])
            return bool(found)

        if not self.wait_for(has_come, timeout=timeout, until=until):
            raise DeadlineExceeded(
                f"No version of `{self._published}`"
                f"{'' if newer_than is None else f' above {newer_than}'} has come within "
                f"{timeout:g} s. Does a connected node publish it?"
            )
        return found[0] if found else None

    def wait_for(
        self, ready: Callable[[], bool], *, timeout: float | None, until: Callable[[], bool]
    ) -> bool:
        """Wait until `ready()`, `until()`, or the job ends; return False if it is too late."""
        return self._topics.wait_before(Deadline.after(timeout), lambda: until() or ready())


class _HalfPrecision:
    """Converts 32-bit tensors to half precision, always into the same memory.

    Fresh memory would cost more than the conversion: the kernel clears each page of it. The
    returned tensors are valid until the next call.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def __call__(
        self, weights: Mapping[str, Tensor], *, but: tuple[str, ...] = ()
    ) -> dict[str, Tensor]:
        """Return the tensors on the CPU, in half precision unless a name begins as in `but`.

        A tensor with a number above 65,504, which would become infinite, is returned as it is.
        """
        return {
            name: tensor.cpu()
            if tensor.dtype is not torch.float32 or name.startswith(but)
            else self._shortened(name, tensor)
            for name, tensor in weights.items()
        }

    def _shortened(self, name: str, tensor: Tensor) -> Tensor:
        half = self._buffers.get(name)
        if half is None or half.shape != tensor.shape:
            half = self._buffers[name] = torch.empty(tensor.shape, dtype=torch.float16)
        half.copy_(tensor.detach())
        overflows = half.numel() > 0 and any(map(math.isinf, half.aminmax()))
        return tensor.cpu() if overflows else half


def _check_weights(weights: object) -> None:
    named = weights if isinstance(weights, Mapping) else {"": weights}
    wrong = {name: value for name, value in named.items() if not isinstance(value, Tensor)}
    if wrong or named is not weights:
        name, value = next(iter((wrong or named).items()))
        raise ConfigError(
            f"`weights{f'[{name!r}]' if name else ''}` is {kind_of(value)}; tensors by name were "
            f"expected, such as `policy.weights()` or `module.state_dict()`."
        )


def topics_of(name: str) -> tuple[str, str]:
    """Return the topics of the numbers and of the weights: large weights arrive later."""
    return f"model_version/{name}", f"model/{name}"

"""The Ray cluster: connect to it, validate requested resources, and require authentication.

The safety of Ray depends on how it was started. Any client of a Ray cluster without authentication
can run any program, so such a cluster is refused unless it is on loopback.
"""

from __future__ import annotations

import importlib
import math
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from ding_lite.errors import ConfigError, MissingExtraError, did_you_mean, pip_line
from ding_lite.parallel.network.address import is_loopback
from ding_lite.runtime.messaging.labels import matches
from ding_lite.settings.environment import process_environ

WANTED = ("num_cpus", "num_gpus", "memory", "resources", "accelerator_type", "label_selector")

Resources = Mapping[str, Mapping[str, Any]]


def resources_of_nodes(
    labels: Sequence[frozenset[str]], resources: Resources
) -> list[dict[str, Any]]:
    """Return the resources of each node: those of all its labels, and one core by default."""
    is_mapping = isinstance(resources, Mapping)
    if not is_mapping or not all(isinstance(wanted, Mapping) for wanted in resources.values()):
        raise ConfigError(
            f"`resources` is {resources!r}; the resources of nodes by patterns of labels were "
            f"expected, such as {{'learner': {{'num_gpus': 1}}}}."
        )
    for pattern, wanted in resources.items():
        for name in set(wanted) - {*WANTED}:
            raise ConfigError(
                f"`resources` asks for {name!r} for {pattern!r}.{did_you_mean(name, WANTED)} A "
                f"node may ask for {', '.join(WANTED)}."
            )
        if not any(matches(of_node, [pattern]) for of_node in labels):
            known = sorted(frozenset().union(*labels))
            raise ConfigError(
                f"`resources` names {pattern!r}, but no node has such a label. The "
                f"nodes have {', '.join(known)}."
            )
    found = []
    for of_node in labels:
        asked: dict[str, Any] = {"num_cpus": 1}
        for pattern, wanted in resources.items():
            if matches(of_node, [pattern]):
                asked |= wanted
        found.append(asked)
    return found


def load_ray() -> ModuleType:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError(
            'The engine "ray" needs a package that is not installed. Install it: '
            f"{pip_line('ray')}."
        ) from error


@contextmanager
def connected_to(ray: ModuleType, num_cpus: float) -> Iterator[str]:
    """Connect to Ray, or start it with at least `num_cpus` cores; yield its head's address."""
    is_ours = not ray.is_initialized()
    if is_ours:
        # Without an address Ray may find the files of an ended cluster, and fail.
        address = process_environ().get("RAY_ADDRESS")
        if address is None:  # nodes share the cores of one machine, as without Ray
            num_cpus = max(os.cpu_count() or 1, math.ceil(num_cpus))
            ray.init(address="local", num_cpus=num_cpus, include_dashboard=False)
        else:
            ray.init(address=address)
    try:
        head = str(ray.get_runtime_context().gcs_address)
        check_guarded(head)
        yield head
    finally:
        if is_ours:
            with suppress(KeyboardInterrupt):  # the first signal has been handled already
                ray.shutdown()


def check_guarded(head: str) -> None:
    """Refuse a Ray cluster without authentication that other machines can reach."""
    host = head.rpartition(":")[0].strip("[]")
    if is_loopback(host) or process_environ().get("RAY_AUTH_MODE") == "token":
        return
    raise ConfigError(
        f"Ray's head listens on {head} without authentication, so that any client that reaches "
        f"it can run programs as you. Start Ray with RAY_AUTH_MODE=token, here and on all its "
        f"machines (docs.ray.io/en/latest/ray-security/token-auth.html), or on 127.0.0.1."
    )


@contextmanager
def without_rays_handler() -> Iterator[None]:
    """Disable the SIGTERM handler of Ray within the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    is_rays = getattr(before, "__module__", "").partition(".")[0] == "ray"
    if is_rays:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        if is_rays:
            signal.signal(signal.SIGTERM, before)


def shown(resources: Mapping[str, float]) -> str:
    shown = [f"{name} {value:g}" for name, value in resources.items() if name in ("CPU", "GPU")]
    return ", ".join(shown) or "nothing"

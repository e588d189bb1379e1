"""The actor of a node, without Ray."""

from __future__ import annotations

import secrets
import sys
from functools import partial
from typing import Any

import pytest

from ding_lite.parallel.network.security import SECRET_BYTES
from ding_lite.parallel.supervise.ray.node import RayNode
from ding_lite.runtime.messaging.router import current_router
from tests.parallel.tcp import hub_spec


def run(main: partial[Any]) -> object:
    return RayNode().run(hub_spec(1), main, secrets.token_bytes(SECRET_BYTES))


def test_an_exit_of_main_is_an_error_that_ray_passes_on() -> None:
    with pytest.raises(RuntimeError, match=r"`main` has called `sys\.exit\(3\)`") as raised:
        run(partial(sys.exit, 3))
    assert isinstance(raised.value.__cause__, SystemExit)
    assert run(partial(sys.exit, 0)) is None


def test_main_runs_as_the_node() -> None:
    assert run(partial(lambda: current_router().node_id)) == 0

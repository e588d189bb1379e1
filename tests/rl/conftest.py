"""Fixtures of the tests of policies and networks."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from ding_lite.rl import host_or_device
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.networks.actor_critic import recorded_actor_critic
from ding_lite.rl.policies import actor_critic_config


@pytest.fixture
def on_tensors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the CPU compute as other devices do."""
    Rows.of_one.cache_clear()
    monkeypatch.setattr(host_or_device, "is_host", lambda _: False)
    # The module is shared by all networks of its sizes.
    monkeypatch.setattr(
        actor_critic_config,
        "MLPActorCritic",
        lambda module: recorded_actor_critic(copy.deepcopy(module)),
    )
    yield
    Rows.of_one.cache_clear()

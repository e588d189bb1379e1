"""Batched policies: those of one architecture act and learn as one computation.

`KINDS` lists the policies that can; all others act and learn one after the other. A further kind is
one `Stack` and one entry here.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from ding_lite.evolution.batched_box import ActorStack, SACStack
from ding_lite.evolution.batched_dqn import DQNStack
from ding_lite.evolution.batched_policies import Stack, UpdateResult
from ding_lite.rl.policies.ddpg import DDPG
from ding_lite.rl.policies.dqn import DQN
from ding_lite.rl.policies.sac import SAC
from ding_lite.rl.policies.td3 import TD3
from ding_lite.rl.protocols import Policy

__all__ = ["KINDS", "Stack", "UpdateResult", "make_stack", "stack_key"]

KINDS: dict[type[Any], type[Stack[Any]]] = {
    DQN: DQNStack,
    DDPG: ActorStack,
    TD3: ActorStack,
    SAC: SACStack,
}
"""The stack of each kind of policy. A subclass of one of them is no such kind."""


def stack_key(policy: Policy) -> Hashable | None:
    """Return the key that policies of one stack share; None for a policy that learns alone.

    A policy on another device than the CPU learns alone.
    """
    kind = KINDS.get(type(policy))
    if kind is None or torch.device(getattr(policy, "device", "cpu")).type != "cpu":
        return None
    key = kind.key(policy)
    return None if key is None else (type(policy), key)


def make_stack(like: Policy, count: int) -> Stack[Any]:
    """Make a stack for so many policies like one that has a `stack_key`."""
    return KINDS[type(like)](like, count)

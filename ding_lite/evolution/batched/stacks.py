"""Batched policies: policies of one architecture act and learn as one computation.

`KINDS` lists the supported policies; all others act and learn one after the other. A further kind
needs one `Stack` and one entry here.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

from ding_lite.errors import ConfigError
from ding_lite.evolution.batched.base import Stack, UpdateResult
from ding_lite.evolution.batched.box import BoxStack
from ding_lite.evolution.batched.dqn import DQNStack
from ding_lite.evolution.batched.rollouts import RolloutStack
from ding_lite.rl.policies.a2c import A2C
from ding_lite.rl.policies.ddpg import DDPG
from ding_lite.rl.policies.dqn import DQN
from ding_lite.rl.policies.impala import IMPALA
from ding_lite.rl.policies.ppo import PPO
from ding_lite.rl.policies.sac import SAC
from ding_lite.rl.policies.td3 import TD3
from ding_lite.rl.protocols import Policy

__all__ = ["KINDS", "Stack", "UpdateResult", "make_stack", "stack_key"]

KINDS: dict[type[Any], type[Stack[Any]]] = {
    DQN: DQNStack,
    **dict.fromkeys((DDPG, TD3, SAC), BoxStack),
    **dict.fromkeys((A2C, PPO, IMPALA), RolloutStack),
}
"""The stack class of each policy class. Subclasses of these policy classes are not supported."""


def stack_key(policy: Policy) -> Hashable | None:
    """Return the key that policies of one stack share; None for a policy that learns alone.

    A policy on another device than the CPU learns alone.
    """
    kind = KINDS.get(type(policy))
    if kind is None or not _may_share(policy):
        return None
    key, config = kind.key(policy), cast(Any, policy.config)
    return None if key is None else (type(policy), key, config.normalize_obs)


def make_stack(like: Policy, count: int) -> Stack[Any]:
    if stack_key(like) is None:
        raise ConfigError(
            f"This {type(like).__name__} has no `stack_key`: it cannot be batched with others, and "
            f"learns alone."
        )
    return KINDS[type(like)](like, count)


def _may_share(policy: Any) -> bool:  # noqa: ANN401 - one of `KINDS`
    """Return whether stacks support the policy's observations, optimiser, gradients and device."""
    return (
        policy.device.type == "cpu"
        and policy.spec.packing is None
        and not policy.has_own_optimizer
        and policy.reduce_gradient is None
    )

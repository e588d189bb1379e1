"""Agents, the members of a population: a policy, hyperparameters, fitness and lineage."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Self, cast

import numpy as np
from torch import Tensor

from ding_lite.errors import CheckpointError, ConfigError, NonFiniteError, did_you_mean, kind_of
from ding_lite.evolution.growth.modules import growth_seeds, with_growth
from ding_lite.evolution.search import LEARN_EVERY, Value
from ding_lite.rl.batch import FloatArray, NumpyArray, Transitions
from ding_lite.rl.memory import Memory, memory_of
from ding_lite.rl.policies.base.open_policy import OpenPolicy
from ding_lite.rl.policies.box_policy import BoxPolicy
from ding_lite.rl.protocols import ActorCritic, Policy
from ding_lite.rl.seeding import make_rng, rng_state
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings.config import as_config
from ding_lite.settings.rules import check_all, whole

logger = logging.getLogger(__name__)

_STATE = {
    *("config", "policy", "learn_every", "birth", "evaluations", "num_new_evaluations"),
    *("fault", "steps_not_learned_from", "env_step_seen"),
}
"""The keys of a state; that of a grown policy also has `growth`."""


@dataclass(frozen=True, kw_only=True)
class Birth:
    """The origin of an agent."""

    id: int
    """The agent's id, unique in the population over all generations."""
    parent: int | None = None
    """The id of the agent that it was copied from or mutated from; None for the first agents."""
    generation: int = 0
    """The generation of its birth."""
    mutation: str = "first"
    """The mutation that changed it, in a few words."""


class Agent:
    """A place in a population, with a policy that a new generation may replace.

    It delegates to its current policy, so that it can be used as a policy: `mw.collect(agent,
    envs, steps=64)`, `mw.train(agent, replay)`. A new generation replaces the policy and keeps the
    agent object.

    Args:
        policy: Its first policy.
        place: Its place in the population, from 0.
        searched: The names of the hyperparameters that are searched.
        learn_every: The agent's env steps per update; None leaves that to `train`.
        birth: Its origin; by default it is the first one in its place.

    Raises:
        ConfigError: The policy has no setting of a name in `searched`, or a number is out of range.

    Example:
        >>> from ding_lite.rl import DQN, make_envs
        >>> envs = make_envs("CartPole-v1", 2)
        >>> agent = Agent(DQN(envs.spec), searched=("lr",))
        >>> agent.act(envs.obs).shape, agent.hyperparameters
        ((2,), {'lr': 0.002})
    """

    # More than 20 methods: those of a policy, as middleware use an agent as one, and its own.

    def __init__(
        self,
        policy: Policy,
        *,
        place: int = 0,
        searched: Sequence[str] = (),
        learn_every: int | None = None,
        birth: Birth | None = None,
    ) -> None:
        if learn_every is not None:
            check_all(whole(1, learn_every=learn_every))
        _check_searched(searched, policy)
        self.policy: Any = policy
        """Its current policy, of the class that the population trains."""
        self.place = place
        """Its place in the population."""
        self.searched = tuple(searched)
        """The names of the hyperparameters that are searched."""
        self.learn_every = learn_every
        """The agent's env steps per update; None leaves that to `train`."""
        self.birth = birth or Birth(id=place)
        """Its origin."""
        self.evaluations: list[float] = []
        """The mean returns of its evaluations, and before its birth those of its parent."""
        self.num_new_evaluations = 0
        """The number of evaluations in this generation."""
        self.fault: str | None = None
        """The reason why it stopped learning in this generation: weights or losses not finite."""
        self.is_away = False
        """Whether another node trains it in this generation."""
        self._steps_not_learned_from = 0
        self._env_step_seen = _env_step(policy)

    # -- its policy ----------------------------------------------------------------------

    @property
    def spec(self) -> EnvSpec:
        """The spec of the environments that it was made for."""
        spec: EnvSpec = self.policy.spec
        return spec

    @property
    def config(self) -> Any:  # noqa: ANN401 - a dataclass of the policy's own
        """The settings of its policy, which no other agent shares."""
        return self.policy.config

    @property
    def n_step(self) -> int:
        """The env steps that one of its transitions spans, unless the episode ends."""
        return int(self.policy.n_step)

    @property
    def gamma(self) -> float:
        """The discount of one env step."""
        return float(self.policy.gamma)

    def act(self, obs: NumpyArray, *, explore: bool = True, **more: Any) -> NumpyArray:  # noqa: ANN401 - what its policy takes
        """Choose an action for each observation, as its policy does."""
        action: NumpyArray = self.policy.act(obs, explore=explore, **more)
        return action

    def learn(self, batch: Any, /) -> Mapping[str, float | NumpyArray]:  # noqa: ANN401 - what its policy takes
        """Do one update, as its policy does."""
        metrics: Mapping[str, float | NumpyArray] = self.policy.learn(batch)
        return metrics

    def td_errors(self, transitions: Transitions) -> NumpyArray:
        """Return the TD error of each transition, as its policy does if it learns from a replay."""
        errors: NumpyArray = self.policy.td_errors(transitions)
        return errors

    def make_memory(self, num_envs: int) -> Memory | None:
        """Make the memory that its policy acts by; None for a policy without memory."""
        return memory_of(self.policy, num_envs)

    def weights(self) -> dict[str, Tensor]:
        """Copy the weights that a collector needs to act."""
        weights: dict[str, Tensor] = self.policy.weights()
        return weights

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights that `weights` of a policy of the same architecture returned."""
        self.policy.load_weights(weights)

    def take_updates(self) -> int:
        """Return how many updates `learn_every` asks for since the last call.

        Env steps that are left over count for the next call.
        """
        now = _env_step(self.policy)
        self._steps_not_learned_from += now - self._env_step_seen
        self._env_step_seen = now
        if self.learn_every is None:
            return 0
        updates, self._steps_not_learned_from = divmod(
            self._steps_not_learned_from, self.learn_every
        )
        return updates

    # -- fitness -------------------------------------------------------------------------

    @property
    def hyperparameters(self) -> dict[str, Value]:
        """Its values of the hyperparameters that are searched."""
        own = {LEARN_EVERY: self.learn_every}
        return {
            name: own[name] if name in own else getattr(self.config, name) for name in self.searched
        }

    @property
    def fitness(self) -> float | None:
        """The mean return of its newest evaluation; None before the first."""
        return self.evaluations[-1] if self.evaluations else None

    @property
    def is_skipped(self) -> bool:
        """Whether this node skips it: it has a fault, or another node trains it."""
        return self.is_away or self.fault is not None

    rests = is_skipped  # its former name

    def mean_fitness(self, window: int) -> float:
        """Return the mean of its newest evaluations, or of as many as there are.

        It is minus infinity for an agent that is skipped or was never evaluated, and for a mean of
        NaN.
        """
        mean = fmean(self.evaluations[-window:]) if self.evaluations else math.nan
        return -math.inf if self.is_skipped or math.isnan(mean) else mean

    def note_evaluation(self, value: float) -> None:
        """Record the mean return of an evaluation."""
        self.evaluations.append(float(value))
        self.num_new_evaluations += 1

    def set_aside(self, error: NonFiniteError) -> None:
        """Skip the agent, as its numbers are not finite, until a copy replaces it."""
        self.fault = str(error)
        logger.warning(
            "agent %d does no more in this generation, with the settings %s: %s",
            self.place,
            self.hyperparameters,
            error,
        )

    # -- a new generation ----------------------------------------------------------------

    def inherit(self, parent: Agent, *, seed: int) -> None:
        """Become an independent copy of another agent, with its own random numbers.

        Args:
            parent: The agent to copy.
            seed: Seed of the copy's random numbers, which would otherwise equal its parent's.
        """
        policy = parent.policy.clone()
        self.evaluations = list(parent.evaluations)
        self.learn_every = parent.learn_every
        self.policy = policy
        self._steps_not_learned_from = parent._steps_not_learned_from
        self._env_step_seen = parent._env_step_seen
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Continue with the random numbers of another seed, if its policy draws any."""
        if isinstance(self.policy, OpenPolicy):
            self.policy.reseed(seed)
        elif "rng" in (state := self.policy.state_dict()):
            rng = rng_state(make_rng(seed, "offspring"))
            self.policy.load_state_dict({**state, "rng": rng})

    def replace_policy(self, policy: Policy) -> None:
        """Replace its policy."""
        self._steps_not_learned_from += _env_step(self.policy) - self._env_step_seen
        self.policy = policy
        self._env_step_seen = _env_step(policy)

    def begin_generation(self, birth: Birth) -> None:
        """Record its birth in a new generation."""
        self.birth = birth
        self.num_new_evaluations = 0
        self.fault = None

    # -- saving --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Copy everything that an exact resume needs, the settings included."""
        growth = growth_seeds(self.policy)
        return {
            **({"growth": list(growth)} if growth else {}),
            "config": dataclasses.asdict(self.config),
            "policy": self.policy.state_dict(),
            "learn_every": self.learn_every,
            "birth": dataclasses.asdict(self.birth),
            "evaluations": np.array(self.evaluations, dtype=np.float64),
            "num_new_evaluations": self.num_new_evaluations,
            "fault": self.fault,
            "steps_not_learned_from": self._steps_not_learned_from,
            "env_step_seen": self._env_step_seen,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict` exactly, with its settings.

        Raises:
            CheckpointError: The state is not that of an agent.
        """
        if missing := _STATE - state.keys():
            raise CheckpointError(f"This is no state of an agent: it lacks {sorted(missing)}.")
        try:
            config = as_config(type(self.config), state["config"])
        except ConfigError as error:
            raise CheckpointError(
                f"The saved agent has other settings than {type(self.policy).__name__}. Make "
                f"agents with the kind of policy that was saved. {error}"
            ) from error
        seeds = tuple(int(seed) for seed in state.get("growth", ()))
        if seeds != growth_seeds(self.policy):
            self.policy = with_growth(self.policy, config, seeds)
        else:
            self.policy = made_like(self.policy, config)
        self.policy.load_state_dict(state["policy"])
        self.learn_every = state["learn_every"]
        self.birth = Birth(**state["birth"])
        self.evaluations = np.asarray(state["evaluations"]).tolist()
        self.num_new_evaluations = int(state["num_new_evaluations"])
        self.fault = state["fault"]
        self._steps_not_learned_from = int(state["steps_not_learned_from"])
        self._env_step_seen = int(state["env_step_seen"])

    def clone(self) -> Self:
        """Make an independent agent in exactly this state."""
        twin = copy(self)
        twin.policy, twin.evaluations = self.policy.clone(), list(self.evaluations)
        twin.is_away = False
        return twin


class ActorCriticAgent(Agent):
    """An agent with an `ActorCritic` policy, which learns from rollouts of its own."""

    policy: ActorCritic

    @property
    def train_iter(self) -> int:
        return self.policy.train_iter

    def explore(self, obs: NumpyArray, **more: Any) -> tuple[NumpyArray, FloatArray]:  # noqa: ANN401 - what its policy takes
        return self.policy.explore(obs, **more)


def make_agent(policy: Policy, **more: Any) -> Agent:  # noqa: ANN401 - what Agent takes
    return (ActorCriticAgent if isinstance(policy, ActorCritic) else Agent)(policy, **more)


def made_like(policy: Policy, config: object) -> Policy:
    """Make an untrained policy of the kind of another, with other settings."""
    if isinstance(policy, OpenPolicy):
        return policy.like(config)
    device = getattr(policy, "device", None)
    make = cast(Callable[..., Policy], type(policy))
    if device is None:
        return make(policy.spec, config)
    return make(policy.spec, config, device=device)


def made_from(policy: Policy, config: object) -> Policy:
    """Make a policy in the state of another, with other settings of networks of the same shapes."""
    twin = made_like(policy, config)
    twin.load_state_dict(policy.state_dict())
    if isinstance(twin, BoxPolicy):
        for weight, value in twin.fixed_weights.items():
            twin.flat_weights[0][weight].fill_(value)
    return twin


def _check_searched(searched: Sequence[str], policy: Policy) -> None:
    if isinstance(searched, str):
        raise ConfigError(
            f'`searched` is "{searched}"; a list of names was expected, such as ["{searched}"].'
        )
    for name in searched:
        if name != LEARN_EVERY and not hasattr(policy.config, name):
            hint = did_you_mean(name, getattr(policy.config, "__dict__", ()))
            raise ConfigError(
                f'`searched` has "{name}", which is no setting of {kind_of(policy.config)}.{hint}'
            )


def _env_step(policy: Policy) -> int:
    return int(getattr(policy, "env_step", 0))

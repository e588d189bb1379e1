"""The base of DDPG, TD3 and SAC: an actor for box actions, and critics.

All weights lie in one flat tensor: the critics', the actor's, then further ones that the actor's
optimiser steps. The target weights lie in the same order and follow them slowly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import ConfigError, NonFiniteError
from ding_lite.rl.batch import (
    Array,
    FloatArray,
    NumpyArray,
    PrioritizedTransitions,
    Transitions,
    to_numpy,
)
from ding_lite.rl.formulas.returns import bootstrapped_targets
from ding_lite.rl.networks.action_values import ActionValues, draw_stacked_weights
from ding_lite.rl.networks.box_actors import BoxActor
from ding_lite.rl.networks.flat import FlatAdam, FlatWeights
from ding_lite.rl.networks.inputs import as_floats
from ding_lite.rl.networks.q_nets import draw_weights
from ding_lite.rl.policies.base import (
    BoxActions,
    check_obs,
    check_state_keys,
    limit_torch_threads,
    step_size,
    usable_device,
)
from ding_lite.rl.policies.data_parallel import LearnsTogether
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import check_all, inside, positive, whole


@dataclass(frozen=True, kw_only=True)
class BoxPolicyConfig:
    """The settings that DDPG, TD3 and SAC share."""

    actor_lr: float = 1e-3
    """Adam's step size for the actor. Higher learns faster, too high gets stuck; 1e-4 to 3e-3."""
    critic_lr: float = 1e-3
    """Adam's step size for the critics; usually that of the actor or a few times as much."""
    gamma: float = 0.99
    """The discount of one env step. Higher looks further ahead: 1 / (1 - gamma) steps or so."""
    n_step: int = 1
    """How many rewards are summed before bootstrapping; 1, or 3 to 5 with many collectors and a
    prioritized replay."""
    hidden: tuple[int, ...] = (64, 64)
    """The widths of the hidden layers of the actor and of each critic. Two of 256 are usual for
    robots; smaller ones are faster and do for small tasks."""
    batch_size: int = 128
    """The transitions of one update. More are steadier and slower; 64 to 256."""
    target_tau: float = 0.01
    """The share of the weights in each update of the target weights. Higher follows faster and
    less steadily; 0.001 to 0.02 are usual."""
    seed: int = 0
    """Draws the initial weights and the exploration noise."""

    def __post_init__(self) -> None:
        check_all(
            step_size(actor_lr=self.actor_lr, critic_lr=self.critic_lr),
            inside(0.0, 1.0, gamma=self.gamma),
            whole(1, n_step=self.n_step, batch_size=self.batch_size),
            [] if self.hidden else ["`hidden` is empty; at least one width was expected"],
            *(whole(1, hidden=width) for width in self.hidden),
            inside(0.0, 1.0, target_tau=self.target_tau) + positive(target_tau=self.target_tau),
            whole(0, seed=self.seed),
        )


ActorT = TypeVar("ActorT", bound=BoxActor)
ConfigT = TypeVar("ConfigT", bound=BoxPolicyConfig)


class BoxPolicy(LearnsTogether, ABC, Generic[ActorT, ConfigT]):
    """An actor and critics that learn from replay; subclasses add their losses.

    Args:
        spec: The spec of the environments.
        config: The settings.
        actor: The kind of actor.
        num_critics: How many critics estimate the value of an action.
        has_target_actor: Whether an actor that follows slowly chooses the next actions.
        more_shapes: Of further tensors that are learned with the actor.
        device: The device of the weights and of learning.
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: ConfigT,
        *,
        actor: type[ActorT],
        num_critics: int,
        has_target_actor: bool,
        more_shapes: Mapping[str, tuple[int, ...]] | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        """Initialise the weights."""
        limit_torch_threads()
        self.spec = spec
        self.config = config
        self.device = usable_device(device)
        """Where the weights are."""
        self.env_step = 0
        """Env steps acted with `explore=True`."""
        self.train_iter = 0
        """Updates done."""
        self.reduce_gradient: Callable[[Tensor], None] | None = None
        """Called with each flat gradient before a step along it, to change it in place: learners
        that share their updates average theirs here."""

        name = type(self).__name__
        self._box = BoxActions(spec, policy=name)
        self._rng = make_rng(config.seed, name.lower())
        self._actor_type = actor
        self._sizes = sizes = (vector_length(spec, policy=name), *config.hidden)
        critics = ActionValues.shapes(num_critics, sizes[0], self._box.size, config.hidden)
        shapes = _named("critics", critics)
        of_actor = _named("actor", actor.shapes(sizes, self._box.size))
        followed = shapes | of_actor if has_target_actor else shapes
        self._weights = FlatWeights({**shapes, **of_actor, **(more_shapes or {})}, device=device)
        self._grads = self._weights.zeros_like()
        self._target = FlatWeights(followed, device=device)
        draw_stacked_weights(self._weights.part("critics."), self._rng)
        draw_weights(self._weights.part("actor."), self._rng)
        self._target.flat.copy_(self._weights.flat[: len(self._target.flat)])

        self._critics = self._make_critics(self._weights)
        self._target_critics = self._make_critics(self._target)
        self._actor = self._make_actor(self._weights)
        self._border = len(self._weights.part("critics.").flat)
        critics_P, actor_P = self._weights.flat.tensor_split([self._border])
        self._critic_adam = FlatAdam(critics_P, lr=config.critic_lr)
        self._actor_adam = FlatAdam(actor_P, lr=config.actor_lr)

    def _make_actor(self, weights: FlatWeights) -> ActorT:
        """Make an actor on these weights; all actors share one memory for gradients."""
        grads = self._grads.part("actor.")
        return self._actor_type(weights.part("actor."), grads, sizes=self._sizes)

    def _make_critics(self, weights: FlatWeights, *, first: int | None = None) -> ActionValues:
        """Make critics on these weights; only the first ones if `first` is given."""
        grads = self._grads.part("critics.")
        return ActionValues(weights.part("critics."), grads, depth=len(self._sizes), first=first)

    @property
    def n_step(self) -> int:
        """The env steps that one of its transitions spans, unless the episode ends."""
        return self.config.n_step

    @property
    def gamma(self) -> float:
        """The discount of one env step."""
        return self.config.gamma

    def q_values(self, obs: NumpyArray, action: NumpyArray) -> FloatArray:
        """Estimate the return of taking an action, and going on as the policy does.

        Args:
            obs: [N, ...].
            action: One for each observation, [N, ...], as the environment takes them.

        Returns:
            The values, [N], each the lowest that a critic gives.

        Raises:
            ShapeError: If the observations are not those of the environment it was made for.
        """
        obs_NI = torch.from_numpy(self._as_array(obs)).to(self.device)
        action_NA = torch.from_numpy(self._box.to_unit(action)).to(self.device)
        q_EN, _ = self._critics.forward(obs_NI, action_NA)
        lowest_N: FloatArray = q_EN.amin(0).cpu().numpy()
        return lowest_N

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite raises instead
    def learn(self, batch: Transitions, /) -> dict[str, float | NumpyArray]:
        """Do one update: a step of Adam for the critics, one for the actor, and the targets follow.

        The target of a transition that spans k env steps and leads to x' is
        reward + gamma^k (1 - terminated) V(x'), with the V(x') of the policy. A truncated
        transition is bootstrapped like any other.

        Args:
            batch: B transitions, tensors or arrays. From what a prioritized replay gave the
                critics learn with its importance weights.

        Returns:
            `loss`, that of the critics; `q_mean`, the mean value of the actions taken;
            `actor_loss` in updates of the actor; of prioritized transitions also `td_error`,
            [B]: how far the values of each were from its target, as a mean over the critics.

        Raises:
            NonFiniteError: If a loss is NaN or infinite. The weights of what it is the loss of
                are as before then.
            ShapeError: If the observations are not those of the environment it was made for.
        """
        obs_BI, next_obs_BI = self._on_device(batch.obs), self._on_device(batch.next_obs)
        action_BA = torch.from_numpy(self._box.to_unit(to_numpy(batch.action))).to(self.device)
        target_B = bootstrapped_targets(
            _floats(batch.reward),
            to_numpy(batch.terminated),
            to_numpy(batch.num_steps),
            self._next_values(next_obs_BI).cpu().numpy(),
            gamma=self.config.gamma,
        )
        q_EB, saved = self._critics.forward(obs_BI, action_BA)
        error_EB = q_EB.cpu().numpy() - target_B
        weight_B = _floats(batch.weight) if isinstance(batch, PrioritizedTransitions) else None
        loss, grad_EB = self._critic_loss(error_EB, weight_B)
        self.check_loss(loss, of="critics")

        self._critics.backward(saved, torch.from_numpy(grad_EB).to(self.device))
        self.step_critics(self._grads.flat, self._weights.flat)
        metrics: dict[str, float | NumpyArray] = {"loss": loss, "q_mean": float(q_EB.mean())}
        if self.actor_is_due:
            metrics |= self._improve_actor(obs_BI)
            self.step_actor(self._grads.flat, self._weights.flat, self._target.flat)
        self.train_iter += 1
        if weight_B is not None:
            metrics["td_error"] = np.abs(error_EB).mean(axis=0)
        return metrics

    @property
    def _actor_every(self) -> int:
        """Updates of the critics per update of the actor and the targets."""
        return 1

    @property
    def actor_is_due(self) -> bool:
        """Whether the update under way is one of the actor, too."""
        return (self.train_iter + 1) % self._actor_every == 0

    @abstractmethod
    def _next_values(self, next_obs_BI: Tensor) -> Tensor:
        """Estimate the return from the observations that transitions lead to, [B]."""

    @abstractmethod
    def _improve_actor(self, obs_BI: Tensor) -> dict[str, float]:
        """Write the actor's gradient; return its metrics, `actor_loss` among them."""

    def _critic_loss(
        self, error_EB: FloatArray, weight_B: FloatArray | None
    ) -> tuple[float, FloatArray]:
        """Return the sum of the critics' mean squared errors, and its gradient by each error."""
        weighted_EB = error_EB if weight_B is None else error_EB * weight_B
        per_B = np.float32(1.0 / error_EB.shape[1])
        return float(np.vdot(weighted_EB, error_EB) * per_B), weighted_EB * (2.0 * per_B)

    def step_critics(self, grad_P: Tensor, weights_P: Tensor) -> None:
        """Step along the critics' part of a flat gradient.

        Args:
            grad_P: The gradient of all weights.
            weights_P: The flat weights, its own or a copy of them that stands for them.
        """
        self._step(self._critic_adam, grad_P[: self._border], weights_P[: self._border])

    def step_actor(self, grad_P: Tensor, weights_P: Tensor, target_P: Tensor) -> None:
        """Step along the actor's part of a flat gradient, then move the targets.

        Args:
            grad_P: The gradient of all weights.
            weights_P: The flat weights, its own or a copy of them that stands for them.
            target_P: Those of the targets likewise.
        """
        self._step(self._actor_adam, grad_P[self._border :], weights_P[self._border :])
        target_P.lerp_(weights_P[: len(target_P)], self.config.target_tau)

    def _step(self, adam: FlatAdam, grad_P: Tensor, weights_P: Tensor) -> None:
        if self.reduce_gradient is not None:
            self.reduce_gradient(grad_P)
        adam.step(grad_P, weights_P)

    def check_loss(self, loss: float, *, of: str) -> None:
        """Raise if a loss is not finite.

        Args:
            loss: The loss.
            of: Of which networks.

        Raises:
            NonFiniteError: It is NaN or infinite.
        """
        if not math.isfinite(loss):
            name, config = type(self).__name__, self.config
            raise NonFiniteError(
                f"The loss of the {of} in {name}'s update {self.train_iter + 1} is {loss}; a "
                f"finite number was expected. Their weights are as they were before it. A lower "
                f"`critic_lr` or `actor_lr` (now {config.critic_lr} and {config.actor_lr}), or "
                f"rewards scaled down, helps when values have blown up."
            )

    def _on_device(self, obs: Array) -> Tensor:
        """Return observations as floats on the networks' device."""
        check_obs(obs, self.spec)
        found = obs if isinstance(obs, Tensor) else torch.from_numpy(np.require(obs, None, "W"))
        return as_floats(found.to(self.device)).float()

    def _as_array(self, obs: NumpyArray) -> FloatArray:
        """Return observations as floats on the CPU."""
        check_obs(obs, self.spec)
        return as_floats(np.asarray(obs, dtype=self.spec.obs_dtype))

    @property
    def flat_weights(self) -> tuple[FlatWeights, FlatWeights]:
        """All weights, and the target weights, themselves and not copies."""
        return self._weights, self._target

    def weights(self) -> dict[str, Tensor]:
        """Copy the weights that a collector acts by: the actor's tensors by name, on the CPU."""
        return self._weights.part("actor.").snapshot()

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights that another policy's `weights` returned.

        Args:
            weights: Tensors or arrays by name.

        Raises:
            ShapeError: If a name or a shape is not this actor's. Nothing is changed then.
        """
        self._weights.part("actor.").load(weights)

    def state_dict(self) -> dict[str, Any]:
        """Copy everything that an exact resume needs."""
        return {
            "weights": self._weights.snapshot(),
            "target": self._target.snapshot(),
            "critic_adam": self._critic_adam.state_dict(),
            "actor_adam": self._actor_adam.state_dict(),
            "rng": rng_state(self._rng),
            "env_step": self.env_step,
            "train_iter": self.train_iter,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        Raises:
            CheckpointError: If it is no state of such a policy.
            ShapeError: If it is of networks of another size.
        """
        expected = {"weights", "target", "critic_adam", "actor_adam", "rng"}
        check_state_keys(state, expected | {"env_step", "train_iter"}, policy=type(self).__name__)
        self._weights.load(state["weights"])
        self._target.load(state["target"])
        self._critic_adam.load_state_dict(state["critic_adam"])
        self._actor_adam.load_state_dict(state["actor_adam"])
        set_rng_state(self._rng, state["rng"])
        self.env_step = int(state["env_step"])
        self.train_iter = int(state["train_iter"])

    @abstractmethod
    def clone(self) -> Self:
        """Make an independent policy in exactly this state, random generator included."""


def vector_length(spec: EnvSpec, *, policy: str) -> int:
    """Return the length of vector observations.

    Raises:
        ConfigError: If observations are images.
    """
    if spec.is_image:
        raise ConfigError(
            f"{policy} sees vectors, but {spec.env_id} shows images of the shape "
            f"{spec.obs_shape}. Make vectors of them with a wrapper, `make_envs(..., "
            f"wrappers=[...])`, such as gymnasium's `FlattenObservation` for small ones."
        )
    return math.prod(spec.obs_shape)


def _floats(values: Array) -> FloatArray:
    return np.asarray(to_numpy(values), dtype=np.float32)


def _named(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}

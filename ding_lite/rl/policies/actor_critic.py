"""The base of A2C, PPO and IMPALA: a stochastic actor, a critic, and the gradient of their loss.

A subclass adds how it learns from rollouts. The network runs on `device`; actions and the
gradients of the network's outputs are small arrays and stay on the CPU.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, get_args

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from ding_lite.errors import NonFiniteError, ShapeError
from ding_lite.rl.batch import FloatArray, NumpyArray, Rollout
from ding_lite.rl.formulas.distributions import (
    Gaussian,
    Likelihood,
    distribution_shapes,
    make_distribution,
    num_outputs,
)
from ding_lite.rl.formulas.schedules import linear
from ding_lite.rl.networks.actor_critic import draw_orthogonal, make_actor_critic
from ding_lite.rl.networks.conv import TorsoName, torso_for
from ding_lite.rl.networks.flat import FlatAdam
from ding_lite.rl.networks.observation_norm import make_norm, read_norm, with_norm
from ding_lite.rl.networks.torso import Activation
from ding_lite.rl.policies.base import (
    check_obs,
    check_state_keys,
    limit_torch_threads,
    step_size,
    usable_device,
)
from ding_lite.rl.policies.data_parallel import LearnsTogether
from ding_lite.rl.replay.rollouts import merged
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import at_least, check_all, finite, inside, one_of, positive, whole

_ADAM_EPS = 1e-5
"""Larger than Adam's default, as is usual here: gradients are noisy and may be tiny."""


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig:
    """The settings that A2C, PPO and IMPALA share."""

    lr: float = 1e-3
    """Adam's step size. Higher learns faster, too high forgets; 1e-4 to 3e-3 are usual, and the
    larger the network, the lower."""
    lr_end: float | None = None
    """The step size from update `lr_updates` on, to which it falls in a straight line. Falling
    steps settle what was learned; None keeps `lr`."""
    lr_updates: int = 10_000
    """The updates of that fall; those of the whole run are usual."""
    gamma: float = 0.99
    """The discount of one env step. Higher looks further ahead: 1 / (1 - gamma) steps or so."""
    hidden: tuple[int, ...] = (64, 64)
    """The widths of the hidden layers. Wider ones fit more and cost more. For vectors actor and
    critic have their own; for images they share these and the convolutions before them."""
    activation: Activation = "tanh"
    """The activation of hidden layers: `tanh` is steadier, `relu` cheaper. Behind convolutions it
    is always `relu`."""
    torso: TorsoName = "auto"
    """The convolutions for images: `nature` (84 x 84 pixels or so), `small` (up to about 30 x
    30), `mlp` (none), or `auto`, which picks one by size."""
    normalize_obs: bool = False
    """Normalise each number of an observation to mean 0 and standard deviation 1. It helps where
    their scales differ much; not for images, which are scaled anyway."""
    value_coef: float = 0.5
    """The weight of the critic's loss. It matters where actor and critic share layers, and for
    `max_grad_norm`; 0.25 to 1 are usual."""
    entropy_coef: float = 0.0
    """The weight of the entropy bonus. Higher explores longer; 0 to 0.02 are usual."""
    max_grad_norm: float | None = 0.5
    """The norm to which a larger gradient is clipped; None leaves it."""
    log_std_start: float = 0.0
    """For continuous actions: the logarithm of the initial standard deviation, in units of half
    the range of the action space. -1 to 0 are usual."""
    seed: int = 0
    """Draws the initial weights and the actions."""

    def __post_init__(self) -> None:
        check_all(
            step_size(lr=self.lr, lr_end=self.lr_end),
            positive(gamma=self.gamma),
            whole(1, lr_updates=self.lr_updates),
            inside(0.0, 1.0, gamma=self.gamma),
            [] if self.hidden else ["`hidden` is empty; at least one width was expected"],
            *(whole(1, hidden=width) for width in self.hidden),
            one_of(get_args(Activation), activation=self.activation),
            one_of(get_args(TorsoName), torso=self.torso),
            at_least(0.0, value_coef=self.value_coef, entropy_coef=self.entropy_coef),
            finite(value_coef=self.value_coef, entropy_coef=self.entropy_coef),
            [] if self.max_grad_norm is None else positive(max_grad_norm=self.max_grad_norm),
            inside(-20.0, 5.0, log_std_start=self.log_std_start),
            whole(0, seed=self.seed),
        )


class ActorCriticPolicy(LearnsTogether, ABC):
    """Acts and applies gradients; subclasses compute the gradients.

    Args:
        spec: The spec of the environments, `envs.spec`.
        config: The settings.
        device: The device of the network, as PyTorch names it.

    Raises:
        ConfigError: If there is no such device, or a setting does not fit the environment.
    """

    def __init__(
        self, spec: EnvSpec, config: ActorCriticConfig, *, device: str | torch.device = "cpu"
    ) -> None:
        """Initialise the weights."""
        limit_torch_threads()
        self.spec = spec
        self.device = usable_device(device)
        self.env_step = 0
        """Env steps acted with exploration."""
        self.train_iter = 0
        """Updates done."""
        self.reduce_gradient: Callable[[Tensor], None] | None = None
        """Called by `learn` with the flat gradient before a step along it, to change it in place:
        learners that share their updates average theirs here."""

        self._settings = config
        self._rng = make_rng(config.seed, type(self).__name__)
        self._net = make_actor_critic(
            spec.obs_shape,
            torso_for(config.torso, spec.obs_shape, env_id=spec.env_id),
            config.hidden,
            num_outputs=num_outputs(spec),
            activation=config.activation,
            more_shapes=distribution_shapes(spec),
            device=self.device,
        )
        draw_orthogonal(self._net.weights, self._rng)
        if isinstance(spec.action_space, Box):
            self._net.weights[Gaussian.NAME].fill_(config.log_std_start)
        self._distribution = make_distribution(spec, self._net.weights, self._net.grads)
        self._norm = make_norm(self.spec, normalize_obs=self._settings.normalize_obs)
        self._adam = FlatAdam(self._net.weights.flat, lr=config.lr, eps=_ADAM_EPS)
        lr_end = config.lr if config.lr_end is None else config.lr_end
        self._lr_at = linear(config.lr, lr_end, steps=config.lr_updates)

    @abstractmethod
    def learn(self, rollouts: Sequence[Rollout], /) -> dict[str, float]:
        """Do one update or several from rollouts of one length, and return their metrics."""

    @abstractmethod
    def gradients(self, unrolls: Sequence[Rollout]) -> tuple[Tensor, dict[str, float]]:
        """Compute the gradient of one update, [P], and its metrics, and change nothing."""

    @property
    def n_step(self) -> int:
        """Always 1: it learns from rollouts, not from transitions of n steps."""
        return 1

    @property
    def gamma(self) -> float:
        """The discount of one env step."""
        return self._settings.gamma

    def act(self, obs: NumpyArray, *, explore: bool = True) -> NumpyArray:
        """Choose an action for each observation, within what the environment takes.

        Args:
            obs: [N, ...].
            explore: Without it every action is the likeliest one, and nothing random is drawn.

        Returns:
            Actions, [N] int64 or [N, ...] float32.

        Raises:
            ShapeError: If the observations are not those of the environment it was made for.
        """
        if not explore:
            return self._distribution.best(self._net.act(self._inputs(obs)))
        return within(self.spec, self.explore(obs)[0])

    def explore(self, obs: NumpyArray) -> tuple[NumpyArray, FloatArray]:
        """Sample an action for each observation, and return its log-probability.

        Args:
            obs: [N, ...].

        Returns:
            Actions, [N] int64 or [N, ...] float32, and the logarithms of their probabilities, or
            densities, [N]. Numbers may lie outside of what the environment takes.

        Raises:
            ShapeError: If the observations are not those of the environment it was made for.
        """
        drawn = self._distribution.draw(self._net.act(self._inputs(obs)), self._rng)
        self.env_step += len(obs)
        return drawn

    def values(self, obs: NumpyArray) -> FloatArray:
        """Estimate the return from each observation.

        Args:
            obs: [N, ...].

        Returns:
            Values, [N].

        Raises:
            ShapeError: If the observations are not those of the environment it was made for.
        """
        return self._net.values(self._inputs(obs))

    def apply_gradient(self, grad_P: Tensor | FloatArray) -> float:
        """Do one step of Adam along a gradient of `gradients`, or a mean of several.

        Args:
            grad_P: [P]. It is left as it is.

        Returns:
            Its length, before it was shortened to `max_grad_norm`.

        Raises:
            ShapeError: If it is of other weights.
            NonFiniteError: If it is not finite. The weights are as before then.
        """
        flat_P = self._net.weights.flat
        if not isinstance(grad_P, Tensor):
            grad_P = torch.from_numpy(np.array(grad_P, dtype=np.float32))  # may be read-only
        if grad_P.shape != flat_P.shape:
            raise ShapeError(
                f"The gradient has shape {tuple(grad_P.shape)}; {tuple(flat_P.shape)} was "
                f"expected. Is it of a network of the same size?"
            )
        grad_P = grad_P.to(self.device)
        norm, limit = float(torch.linalg.vector_norm(grad_P)), self._settings.max_grad_norm
        if not math.isfinite(norm):
            raise NonFiniteError(
                f"The gradient of update {self.train_iter + 1} has the length {norm}; a finite "
                f"number was expected. The weights are as they were before it. {self._advice()}"
            )
        if limit is not None and norm > limit:
            grad_P = grad_P * (limit / norm)
        self._adam.lr = self._lr_at(self.train_iter)
        self._adam.step(grad_P)
        self.train_iter += 1
        return norm

    def weights(self) -> dict[str, Tensor]:
        """Copy the weights that a collector acts by: the network's tensors by name, on the CPU."""
        return with_norm(self._net.weights.snapshot(), self._norm)

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights that another policy's `weights` returned.

        Args:
            weights: Tensors or arrays by name.

        Raises:
            ShapeError: If a name or a shape is not this network's. Nothing is changed then.
        """
        norm, of_network = read_norm(weights, self.spec, normalize_obs=self._norm is not None)
        self._net.weights.load(of_network)
        self._norm = norm

    def state_dict(self) -> dict[str, Any]:
        """Copy everything that an exact resume needs."""
        return {
            "network": self.weights(),
            "adam": self._adam.state_dict(),
            "rng": rng_state(self._rng),
            "env_step": self.env_step,
            "train_iter": self.train_iter,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        Raises:
            CheckpointError: If it is no state of such a policy.
            ShapeError: If it is of a network of another size.
        """
        expected = {"network", "adam", "rng", "env_step", "train_iter"}
        check_state_keys(state, expected, policy=type(self).__name__)
        self.load_weights(state["network"])
        self._adam.load_state_dict(state["adam"])
        set_rng_state(self._rng, state["rng"])
        self.env_step = int(state["env_step"])
        self.train_iter = int(state["train_iter"])

    def clone(self) -> Self:
        """Make an independent policy in exactly this state, random generator included."""
        twin = self._twin()
        twin.load_state_dict(self.state_dict())
        return twin

    @abstractmethod
    def _twin(self) -> Self:
        """Make another policy of the same settings."""

    def _improve(self) -> float:
        """Apply the gradient that `_write_gradient` wrote; return its length."""
        grad_P = self._net.grads.flat
        if self.reduce_gradient is not None:
            self.reduce_gradient(grad_P)
        return self.apply_gradient(grad_P)

    def _inputs(self, obs: NumpyArray) -> NumpyArray:
        """Return observations as the network takes them."""
        check_obs(obs, self.spec)
        obs = np.asarray(obs, dtype=self.spec.obs_dtype)
        return obs if self._norm is None else self._norm(obs)

    def _has_seen(self, rollout: Rollout) -> None:
        """Update the statistics of observations with those that were learned from."""
        if self._norm is not None:
            self._norm.update(merged(rollout.obs))

    def _write_gradient(
        self,
        saved: Any,  # noqa: ANN401 - the network's own
        likely: Likelihood,
        policy_loss: float,
        log_prob_grad_B: FloatArray,
        value_error_B: FloatArray,
    ) -> dict[str, float]:
        """Add the losses of the critic and the entropy to the actor's, and backpropagate.

        Args:
            saved: What the network's forward kept.
            likely: The likelihood of the actions.
            policy_loss: The actor's loss.
            log_prob_grad_B: Its gradient with respect to each log_prob.
            value_error_B: Value minus target.

        Returns:
            The metrics.

        Raises:
            NonFiniteError: If the loss is NaN or infinite.
        """
        size, config = len(value_error_B), self._settings
        value_loss = float(value_error_B @ value_error_B) / size
        entropy = float(likely.entropy_B.sum()) / size
        loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
        if not math.isfinite(loss):
            raise NonFiniteError(
                f"The loss of update {self.train_iter + 1} of {type(self).__name__} is {loss}; a "
                f"finite number was expected. The weights are as they were before it. "
                f"{self._advice()}"
            )
        outputs_grad_BD = self._distribution.backward(
            likely, log_prob_grad_B, -config.entropy_coef / size
        )
        value_grad_B = np.float32(2.0 * config.value_coef / size) * value_error_B
        self._net.backward(saved, outputs_grad_BD, value_grad_B)
        return {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
        }

    def _advice(self) -> str:
        return (
            f"A lower `lr` (now {self._settings.lr}) or `max_grad_norm` (now "
            f"{self._settings.max_grad_norm}) helps when values have blown up."
        )


def within(spec: EnvSpec, action: NumpyArray) -> NumpyArray:
    """Clip continuous actions to the bounds of the action space."""
    space = spec.action_space
    if not isinstance(space, Box):
        return action
    return np.clip(action, space.low, space.high)


def normalized(advantage_B: FloatArray) -> FloatArray:
    """Normalise advantages to mean 0 and standard deviation 1.

    Example:
        >>> normalized(np.array([1.0, 3.0], dtype=np.float32)).round(4).tolist()
        [-1.0, 1.0]
    """
    centred_B: FloatArray = advantage_B - advantage_B.mean()
    spread = math.sqrt(float(centred_B @ centred_B) / len(centred_B))
    centred_B /= np.float32(spread + 1e-8)
    return centred_B

"""DQN: learn the value of each action, and take the best one.

Mnih et al. 2015 (doi:10.1038/nature14236) with the double estimate of van Hasselt et al. 2016
(arXiv:1509.06461) and returns of n steps (Sutton and Barto 2018, section 7.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import NonFiniteError
from ding_lite.rl.batch import FloatArray, NumpyArray, Transitions, to_numpy
from ding_lite.rl.exploration import epsilon_greedy
from ding_lite.rl.flat import FlatAdam
from ding_lite.rl.losses import huber, squared
from ding_lite.rl.networks.heads import QNetwork
from ding_lite.rl.policies.base import (
    check_obs_shape,
    check_state_keys,
    discrete_actions,
    limit_torch_threads,
)
from ding_lite.rl.returns import bootstrapped_targets
from ding_lite.rl.schedules import linear
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import check_all, inside, one_of, positive, suggests, whole


@suggests
@dataclass(frozen=True, kw_only=True)
class DQNConfig:
    """The settings of a DQN. The defaults suit small tasks such as CartPole."""

    lr: float = 2e-3
    """Adam's step size. Higher learns faster, too high forgets; 1e-4 to 3e-3 are usual, and the
    larger the network, the lower."""
    gamma: float = 0.99
    """The discount of one env step. Higher looks further ahead: 1 / (1 - gamma) steps or so."""
    n_step: int = 3
    """How many rewards are taken as they were before a value is estimated; 1 to 5 are usual."""
    hidden: tuple[int, ...] = (64, 64)
    """The widths of the hidden layers. Wider can tell more apart and costs more."""
    double: bool = True
    """Choose the next action with one network and judge it with the other: less optimism."""
    batch_size: int = 128
    """How many transitions one update learns from. More are steadier and slower; 32 to 512."""
    loss: Literal["huber", "mse"] = "huber"
    """`huber` grows linearly from an error of 1 on, so that outliers pull less; `mse` is plain."""
    target_tau: float = 0.01
    """The share of the way the target network goes to the online one at a time. Higher spreads
    what was learned faster and less steadily; 0.001 to 0.02 are usual, and 1 copies it."""
    target_every: int = 1
    """How many updates lie between two moves of the target network; with a tau of 1, 100 to
    10,000 are usual."""
    max_grad_norm: float | None = None
    """The gradient is shortened to this length where it is longer; None leaves it."""
    epsilon_start: float = 1.0
    """The share of random actions at the first env step."""
    epsilon_end: float = 0.1
    """The share of random actions from env step `epsilon_steps` on. Lower collects higher
    returns; too low, and a good policy forgets what it never sees any more."""
    epsilon_steps: int = 5_000
    """How many env steps the share of random actions takes to fall, in a straight line."""
    seed: int = 0
    """Draws the first weights and the random actions."""

    def __post_init__(self) -> None:
        check_all(
            positive(lr=self.lr),
            inside(0.0, 1.0, gamma=self.gamma),
            whole(1, n_step=self.n_step, batch_size=self.batch_size),
            [] if self.hidden else ["`hidden` is empty; at least one width was expected"],
            *(whole(1, hidden=width) for width in self.hidden),
            one_of(("huber", "mse"), loss=self.loss),
            inside(0.0, 1.0, target_tau=self.target_tau) + positive(target_tau=self.target_tau),
            whole(1, target_every=self.target_every),
            [] if self.max_grad_norm is None else positive(max_grad_norm=self.max_grad_norm),
            inside(0.0, 1.0, epsilon_start=self.epsilon_start, epsilon_end=self.epsilon_end),
            whole(1, epsilon_steps=self.epsilon_steps),
            whole(0, seed=self.seed),
        )


class DQN:
    """A policy for discrete actions that learns from replay.

    Args:
        spec: What it acts on, `envs.spec`.
        config: The settings.

    Raises:
        ConfigError: If the actions are continuous.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("CartPole-v1", 2)
        >>> DQN(envs.spec).act(envs.obs, explore=False).shape
        (2,)
    """

    def __init__(self, spec: EnvSpec, config: DQNConfig | None = None) -> None:
        """Draw the first weights."""
        limit_torch_threads()
        self.spec = spec
        self.config = config = config or DQNConfig()
        self.env_step = 0
        """Env steps acted with `explore=True`; the policy's own epsilon follows it."""
        self.train_iter = 0
        """Updates done."""

        self._num_actions = discrete_actions(spec, policy="DQN")
        self._rng = make_rng(config.seed, "dqn")
        self._epsilon = linear(config.epsilon_start, config.epsilon_end, steps=config.epsilon_steps)
        num_inputs = math.prod(spec.obs_shape)
        self._q_net = QNetwork(num_inputs, config.hidden, num_actions=self._num_actions)
        self._target_net = QNetwork(num_inputs, config.hidden, num_actions=self._num_actions)
        self._q_net.draw_weights(self._rng)
        self._target_net.weights.flat.copy_(self._q_net.weights.flat)
        self._loss = huber if config.loss == "huber" else squared
        self._adam = FlatAdam(self._q_net.weights.flat, lr=config.lr)

    @property
    def n_step(self) -> int:
        """How many env steps one of its transitions spans, where the episode is long enough."""
        return self.config.n_step

    @property
    def gamma(self) -> float:
        """The discount of one env step."""
        return self.config.gamma

    def act(
        self, obs: NumpyArray, *, explore: bool = True, epsilon: float | None = None
    ) -> NumpyArray:
        """Choose an action for each observation.

        Args:
            obs: [N, I] float32.
            explore: Without it every action is the best one, and nothing random is drawn.
            epsilon: The share of random actions; the config's schedule if None.

        Returns:
            Actions, [N] int64.

        Raises:
            ShapeError: If the observations are not those of the environment it was made for.
        """
        obs = np.asarray(obs, dtype=np.float32)
        check_obs_shape(obs, self.spec)
        greedy_N = self._q_net.greedy(obs)
        if not explore:
            return greedy_N
        epsilon = self._epsilon(self.env_step) if epsilon is None else epsilon
        self.env_step += len(obs)
        return epsilon_greedy(greedy_N, epsilon, num_actions=self._num_actions, rng=self._rng)

    def q_values(self, obs: FloatArray) -> FloatArray:
        """Estimate the return of each action.

        Args:
            obs: [N, I] float32.

        Returns:
            Values, [N, A].
        """
        return self._q_net.values(obs)

    @np.errstate(over="ignore", invalid="ignore")  # what is not finite is raised, not warned of
    def learn(self, batch: Transitions) -> dict[str, float]:
        """Do one update: one step of Adam along the loss, then move the target network.

        The target of a transition that spans k env steps and leads to x' is
        reward + gamma^k (1 - terminated) Q_target(x', argmax_a Q(x', a)); without `double`
        both are the target network. A truncated transition is bootstrapped like any other.

        Args:
            batch: B transitions, tensors or arrays.

        Returns:
            `loss`, and `q_mean`, the mean value of the actions taken.

        Raises:
            NonFiniteError: If the loss is NaN or infinite. The weights are as before then.
            ShapeError: If the observations are not those of the environment it was made for.
        """
        obs_BI, next_obs_BI = torch.as_tensor(batch.obs), torch.as_tensor(batch.next_obs)
        check_obs_shape(obs_BI, self.spec)
        row_B, action_B = np.arange(len(batch)), to_numpy(batch.action)

        q_BA, outputs, next_q_B = self._evaluate(obs_BI, next_obs_BI, row_B)
        target_B = bootstrapped_targets(
            to_numpy(batch.reward),
            to_numpy(batch.terminated),
            to_numpy(batch.num_steps),
            next_q_B,
            gamma=self.config.gamma,
        )
        q_B = q_BA[row_B, action_B]
        loss, grad_B = self._loss(q_B - target_B)
        if not math.isfinite(loss):
            raise NonFiniteError(
                f"The loss of DQN's update {self.train_iter + 1} is {loss}; a finite number was "
                f"expected. The weights are as they were before it. A lower `lr` (now "
                f"{self.config.lr}) or a `max_grad_norm` helps when values have blown up."
            )

        grad_BA = np.zeros_like(q_BA)
        grad_BA[row_B, action_B] = grad_B
        self._q_net.backward(outputs, torch.from_numpy(grad_BA))
        self._improve()
        return {"loss": loss, "q_mean": float(q_B.sum()) / len(batch)}

    def _evaluate(
        self, obs_BI: Tensor, next_obs_BI: Tensor, row_B: NumpyArray
    ) -> tuple[FloatArray, list[Tensor], FloatArray]:
        """Return Q(x, .), what its backward needs, and the value of x'."""
        next_target_BA = self._target_net.forward(next_obs_BI).numpy()
        if not self.config.double:
            q_BA, outputs = self._q_net.forward_saving(obs_BI)
            return q_BA.numpy(), outputs, next_target_BA.max(axis=1)

        size = len(obs_BI)
        q_2BA, outputs = self._q_net.forward_saving(torch.cat((obs_BI, next_obs_BI)))
        best_B = q_2BA.numpy()[size:].argmax(axis=1)
        return (
            q_2BA.numpy()[:size],
            [output[:size] for output in outputs],
            next_target_BA[row_B, best_B],
        )

    def _improve(self) -> None:
        """Step along the gradient that `backward` wrote, then move the target network."""
        grad_P = self._q_net.grads.flat
        limit = self.config.max_grad_norm
        if limit is not None:
            norm = float(torch.linalg.vector_norm(grad_P))
            if norm > limit:
                grad_P.mul_(limit / norm)
        self._adam.step(grad_P)

        self.train_iter += 1
        if self.train_iter % self.config.target_every == 0:
            self._target_net.weights.flat.lerp_(self._q_net.weights.flat, self.config.target_tau)

    def weights(self) -> dict[str, Tensor]:
        """Copy what a collector needs to act: the online network's tensors by name."""
        return self._q_net.weights.snapshot()

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Act from now on with what another DQN's `weights` returned.

        Args:
            weights: Tensors or arrays by name.

        Raises:
            ShapeError: If a name or a shape is not this network's. Nothing is changed then.
        """
        self._q_net.weights.load(weights)

    def state_dict(self) -> dict[str, Any]:
        """Copy everything that an exact resume needs."""
        return {
            "q_net": self._q_net.weights.snapshot(),
            "target_net": self._target_net.weights.snapshot(),
            "adam": self._adam.state_dict(),
            "rng": rng_state(self._rng),
            "env_step": self.env_step,
            "train_iter": self.train_iter,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            CheckpointError: If it is no state of a DQN.
            ShapeError: If it is of a network of another size.
        """
        expected = {"q_net", "target_net", "adam", "rng", "env_step", "train_iter"}
        check_state_keys(state, expected, policy="DQN")
        self._q_net.weights.load(state["q_net"])
        self._target_net.weights.load(state["target_net"])
        self._adam.load_state_dict(state["adam"])
        set_rng_state(self._rng, state["rng"])
        self.env_step = int(state["env_step"])
        self.train_iter = int(state["train_iter"])

    def clone(self) -> Self:
        """Make an independent DQN in exactly this state, random generator included."""
        twin = type(self)(self.spec, self.config)
        twin.load_state_dict(self.state_dict())
        return twin

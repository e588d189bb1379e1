"""DQN: learn the value of each action, and take the action of the highest value.

Mnih et al. 2015 (doi:10.1038/nature14236) with the double estimate of van Hasselt et al. 2016
(arXiv:1509.06461), the dueling network of Wang et al. 2016 (arXiv:1511.06581), the importance
weights of prioritized replay (Schaul et al. 2016, arXiv:1511.05952) and returns of n steps
(Sutton and Barto 2018, section 7.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import NonFiniteError
from ding_lite.rl.batch import (
    FloatArray,
    NumpyArray,
    PrioritizedTransitions,
    Transitions,
    to_numpy,
)
from ding_lite.rl.formulas.exploration import epsilon_greedy
from ding_lite.rl.formulas.losses import huber, squared
from ding_lite.rl.formulas.returns import bootstrapped_targets
from ding_lite.rl.formulas.schedules import Schedule, constant, linear
from ding_lite.rl.networks.conv import TorsoName, torso_for
from ding_lite.rl.networks.flat import FlatAdam, FlatWeights
from ding_lite.rl.networks.observation_norm import make_norm, read_norm, with_norm
from ding_lite.rl.networks.q_nets import QNetwork, draw_weights, make_q_network
from ding_lite.rl.networks.torso import Activation
from ding_lite.rl.policies.base import (
    check_obs,
    check_state_keys,
    discrete_actions,
    limit_torch_threads,
    step_size,
    usable_device,
)
from ding_lite.rl.policies.data_parallel import LearnsTogether
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import check_all, inside, one_of, positive, suggests, whole


@suggests
@dataclass(frozen=True, kw_only=True)
class DQNConfig:
    """Settings of DQN. The defaults suit small tasks such as CartPole."""

    lr: float = 2e-3
    """Adam's step size. Higher learns faster, too high forgets; 1e-4 to 3e-3 are usual, and the
    larger the network, the lower."""
    lr_end: float | None = None
    """The step size from update `lr_updates` on; None stays at `lr`. A tenth of `lr` is usual:
    lower settles down, and what it has learned stays learned."""
    lr_updates: int = 50_000
    """The updates of that fall, in a straight line. The count of updates is saved, so that a
    resumed run goes on with exactly the step size that it would have had."""
    gamma: float = 0.99
    """The discount of one env step. Higher looks further ahead: 1 / (1 - gamma) steps or so."""
    n_step: int = 3
    """How many rewards are summed before bootstrapping; 1 to 5 are usual."""
    hidden: tuple[int, ...] = (64, 64)
    """The widths of the hidden layers. Wider ones fit more and cost more. Images pass through
    convolutions first; a single layer of 128 to 512 is usual after them."""
    torso: TorsoName = "auto"
    """The convolutions for images: `nature` (84 x 84 pixels or so), `small` (up to about 30 x
    30), `mlp` (none), or `auto`, which picks one by size."""
    activation: Activation = "relu"
    """The activation of hidden layers: `relu` is cheaper, `tanh` keeps values within bounds.
    Behind convolutions it is always `relu`."""
    double: bool = True
    """Choose the next action by the online network and value it by the target network: values are
    overestimated less."""
    dueling: bool = False
    """Estimate the value of an observation and the advantage of each action apart. It helps where
    many actions have much the same value."""
    normalize_obs: bool = False
    """Normalise each number of an observation to mean 0 and standard deviation 1. It helps where
    their scales differ much; not for images, which are scaled anyway."""
    batch_size: int = 128
    """The transitions of one update. More are steadier and slower; 32 to 512."""
    loss: Literal["huber", "mse"] = "huber"
    """`huber` grows linearly from an error of 1 on, so that outliers pull less; `mse` is plain."""
    target_tau: float = 0.01
    """The share of the online weights in each update of the target network. Higher follows faster
    and less steadily; 0.001 to 0.02 are usual, and 1 copies them."""
    target_every: int = 1
    """Updates of the online network per update of the target network; with a tau of 1, 100 to
    10,000 are usual."""
    max_grad_norm: float | None = None
    """The norm to which a larger gradient is clipped; None leaves it."""
    epsilon_start: float = 1.0
    """The share of random actions at the first env step."""
    epsilon_end: float = 0.1
    """The share of random actions from env step `epsilon_steps` on. Lower collects higher
    returns; too low, and a good policy forgets the states that it no longer visits."""
    epsilon_steps: int = 5_000
    """The env steps in which the share of random actions falls, in a straight line."""
    seed: int = 0
    """Draws the initial weights and the random actions."""

    def __post_init__(self) -> None:
        check_all(
            step_size(lr=self.lr, lr_end=self.lr_end),
            inside(0.0, 1.0, gamma=self.gamma),
            whole(1, n_step=self.n_step, batch_size=self.batch_size),
            [] if self.hidden else ["`hidden` is empty; at least one width was expected"],
            *(whole(1, hidden=width) for width in self.hidden),
            one_of(("huber", "mse"), loss=self.loss),
            one_of(get_args(Activation), activation=self.activation),
            one_of(get_args(TorsoName), torso=self.torso),
            inside(0.0, 1.0, target_tau=self.target_tau) + positive(target_tau=self.target_tau),
            whole(1, target_every=self.target_every, lr_updates=self.lr_updates),
            [] if self.max_grad_norm is None else positive(max_grad_norm=self.max_grad_norm),
            inside(0.0, 1.0, epsilon_start=self.epsilon_start, epsilon_end=self.epsilon_end),
            whole(1, epsilon_steps=self.epsilon_steps),
            whole(0, seed=self.seed),
        )


class DQN(LearnsTogether):
    """Off-policy value learning for discrete actions.

    Args:
        spec: The spec of the environments, `envs.spec`.
        config: The settings.
        device: The device of the networks, as PyTorch names it.

    Raises:
        ConfigError: If the actions are continuous, or there is no such device.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("CartPole-v1", 2)
        >>> DQN(envs.spec).act(envs.obs, explore=False).shape
        (2,)
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: DQNConfig | None = None,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        """Initialise the weights."""
        limit_torch_threads()
        self.spec = spec
        self.device = usable_device(device)
        self.config = config = config or DQNConfig()
        self.env_step = 0
        """Env steps acted with `explore=True`; the policy's own epsilon follows it."""
        self.train_iter = 0
        """Updates done."""
        self.reduce_gradient: Callable[[Tensor], None] | None = None
        """Called with the flat gradient before a step along it, to change it in place: learners
        that share their updates average theirs here."""

        self._num_actions = discrete_actions(spec, policy="DQN")
        self._rng = make_rng(config.seed, "dqn")
        self._epsilon = linear(config.epsilon_start, config.epsilon_end, steps=config.epsilon_steps)
        self._q_net, self._target_net = self._make_network(), self._make_network()
        draw_weights(self._q_net.weights, self._rng)
        self._target_net.weights.flat.copy_(self._q_net.weights.flat)
        self._norm = make_norm(self.spec, normalize_obs=self.config.normalize_obs)
        self._loss = huber if config.loss == "huber" else squared
        self._lr = _step_size(config)
        self._adam = FlatAdam(self._q_net.weights.flat, lr=config.lr)

    def _make_network(self) -> QNetwork:
        config, spec = self.config, self.spec
        convs = torso_for(config.torso, spec.obs_shape, env_id=spec.env_id)
        return make_q_network(
            spec.obs_shape,
            convs,
            config.hidden,
            num_actions=self._num_actions,
            dueling=config.dueling,
            activation=config.activation,
            device=self.device,
        )

    @property
    def n_step(self) -> int:
        """The env steps that one of its transitions spans, unless the episode ends."""
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
            obs: [N, ...].
            explore: Without it every action is the best one, and nothing random is drawn.
            epsilon: The share of random actions; the config's schedule if None.

        Returns:
            Actions, [N] int64.

        Raises:
            ShapeError: If the observations are not those of the environment it was made for.
        """
        greedy_N: NumpyArray = self.q_values(obs).argmax(axis=1)
        if not explore:
            return greedy_N
        epsilon = self._epsilon(self.env_step) if epsilon is None else epsilon
        self.env_step += len(obs)
        return epsilon_greedy(greedy_N, epsilon, num_actions=self._num_actions, rng=self._rng)

    def q_values(self, obs: NumpyArray) -> FloatArray:
        """Estimate the return of each action.

        Args:
            obs: [N, ...].

        Returns:
            Values, [N, A].

        Raises:
            ShapeError: If the observations are not those of the environment it was made for.
        """
        check_obs(obs, self.spec)
        obs = np.asarray(obs, dtype=self.spec.obs_dtype)
        return self._q_net.values(obs if self._norm is None else self._norm(obs))

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite raises instead
    def learn(self, batch: Transitions) -> dict[str, float | NumpyArray]:
        """Do one update: one step of Adam along the loss, then move the target network.

        The target of a transition that spans k env steps and leads to x' is
        reward + gamma^k (1 - terminated) Q_target(x', argmax_a Q(x', a)); without `double`
        both are the target network. A truncated transition is bootstrapped like any other.

        Args:
            batch: B transitions, tensors or arrays. What a prioritized replay gave is learned
                from with its importance weights.

        Returns:
            `loss`, and `q_mean`, the mean value of the actions taken; `lr` too, where it falls;
            of prioritized transitions also `td_error`, [B]: how far each value was from its
            target.

        Raises:
            NonFiniteError: If the loss is NaN or infinite. The weights are as before then.
            ShapeError: If the observations are not those of the environment it was made for.
        """
        obs, next_obs = self._observations(batch)
        row_B, action_B = np.arange(len(batch)), to_numpy(batch.action)
        weight_B = to_numpy(batch.weight) if isinstance(batch, PrioritizedTransitions) else None

        q_BA, saved, next_q_B = self._evaluate(obs, next_obs, row_B)
        target_B = bootstrapped_targets(
            to_numpy(batch.reward),
            to_numpy(batch.terminated),
            to_numpy(batch.num_steps),
            next_q_B,
            gamma=self.config.gamma,
        )
        q_B = q_BA[row_B, action_B]
        error_B = q_B - target_B
        loss, grad_B = self._loss(error_B, weight_B)
        self.check_loss(loss)

        grad_BA = np.zeros_like(q_BA)
        grad_BA[row_B, action_B] = grad_B
        self._q_net.backward(saved, torch.from_numpy(grad_BA))
        self._improve()
        metrics: dict[str, float | NumpyArray] = {
            "loss": loss,
            "q_mean": float(q_B.sum()) / len(batch),
        }
        if self.config.lr_end is not None:
            metrics["lr"] = self.lr
        if weight_B is not None:
            metrics["td_error"] = np.abs(error_B)
        return metrics

    def check_loss(self, loss: float) -> None:
        """Raise if a loss is not finite.

        Raises:
            NonFiniteError: It is NaN or infinite.
        """
        if not math.isfinite(loss):
            raise NonFiniteError(
                f"The loss of DQN's update {self.train_iter + 1} is {loss}; a finite number was "
                f"expected. The weights are as they were before it. A lower `lr` (now "
                f"{self.config.lr}) or a `max_grad_norm` helps when values have blown up."
            )

    def _observations(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Return the observations and next observations of transitions, normalised."""
        check_obs(batch.obs, self.spec)
        check_obs(batch.next_obs, self.spec)
        if self._norm is None:
            return torch.as_tensor(batch.obs), torch.as_tensor(batch.next_obs)
        obs_BI, next_obs_BI = to_numpy(batch.obs), to_numpy(batch.next_obs)
        self._norm.update(obs_BI)
        return torch.from_numpy(self._norm(obs_BI)), torch.from_numpy(self._norm(next_obs_BI))

    def _evaluate(
        self, obs: Tensor, next_obs: Tensor, row_B: NumpyArray
    ) -> tuple[FloatArray, Any, FloatArray]:
        """Return Q(x, .), the activations that its backward needs, and the value of x'."""
        next_target_BA = self._target_net.forward(next_obs).cpu().numpy()
        if not self.config.double:
            q_BA, saved = self._q_net.forward_saving(obs)
            return q_BA.cpu().numpy(), saved, next_target_BA.max(axis=1)

        q_BA, saved, next_q_BA = self._q_net.forward_pair(obs, next_obs)
        best_B = next_q_BA.cpu().numpy().argmax(axis=1)
        return q_BA.cpu().numpy(), saved, next_target_BA[row_B, best_B]

    def _improve(self) -> None:
        """Apply the gradient that `backward` wrote."""
        grad_P = self._q_net.grads.flat
        if self.reduce_gradient is not None:
            self.reduce_gradient(grad_P)
        self.step(grad_P, self._q_net.weights.flat, self._target_net.weights.flat)

    def step(self, grad_P: Tensor, weights_P: Tensor, target_P: Tensor) -> None:
        """Step along a gradient, then move the target network.

        Args:
            grad_P: The flat gradient; it is shortened in place where it is too long.
            weights_P: The flat weights, its own or a copy of them that stands for them.
            target_P: Those of the target network likewise.
        """
        limit = self.config.max_grad_norm
        if limit is not None:
            norm = float(torch.linalg.vector_norm(grad_P))
            if norm > limit:
                grad_P.mul_(limit / norm)
        self._adam.lr = self._lr(self.train_iter)
        self._adam.step(grad_P, weights_P)

        self.train_iter += 1
        if self.train_iter % self.config.target_every == 0:
            target_P.lerp_(weights_P, self.config.target_tau)

    @property
    def lr(self) -> float:
        """The step size of its last update."""
        return self._adam.lr

    @property
    def flat_weights(self) -> tuple[FlatWeights, FlatWeights]:
        """The weights of the network and of its target, themselves and not copies."""
        return self._q_net.weights, self._target_net.weights

    def weights(self) -> dict[str, Tensor]:
        """Copy the weights that a collector acts by: those of the online network, on the CPU."""
        return with_norm(self._q_net.weights.snapshot(), self._norm)

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights that another DQN's `weights` returned.

        Args:
            weights: Tensors or arrays by name.

        Raises:
            ShapeError: If a name or a shape is not this network's. Nothing is changed then.
        """
        norm, of_network = read_norm(weights, self.spec, normalize_obs=self._norm is not None)
        self._q_net.weights.load(of_network)
        self._norm = norm

    def state_dict(self) -> dict[str, Any]:
        """Copy everything that an exact resume needs."""
        return {
            "q_net": self.weights(),
            "target_net": self._target_net.weights.snapshot(),
            "adam": self._adam.state_dict(),
            "rng": rng_state(self._rng),
            "env_step": self.env_step,
            "train_iter": self.train_iter,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        Raises:
            CheckpointError: If it is no state of a DQN.
            ShapeError: If it is of a network of another size.
        """
        expected = {"q_net", "target_net", "adam", "rng", "env_step", "train_iter"}
        check_state_keys(state, expected, policy="DQN")
        self.load_weights(state["q_net"])
        self._target_net.weights.load(state["target_net"])
        self._adam.load_state_dict(state["adam"])
        set_rng_state(self._rng, state["rng"])
        self.env_step = int(state["env_step"])
        self.train_iter = int(state["train_iter"])

    def clone(self) -> Self:
        """Make an independent DQN in exactly this state, random generator included."""
        twin = type(self)(self.spec, self.config, device=self.device)
        twin.load_state_dict(self.state_dict())
        return twin


def _step_size(config: DQNConfig) -> Schedule:
    """Return the step size as a function of the updates done."""
    if config.lr_end is None:
        return constant(config.lr)
    return linear(config.lr, config.lr_end, steps=config.lr_updates)

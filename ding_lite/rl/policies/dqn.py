"""DQN: learn the value of each action, and take the action of the highest value.

The base is Mnih et al. 2015 (doi:10.1038/nature14236), with the double estimate of van Hasselt et
al. 2016 (arXiv:1509.06461), the dueling network of Wang et al. 2016 (arXiv:1511.06581), the
importance weights of prioritized replay (Schaul et al. 2016, arXiv:1511.05952) and n-step returns
(Sutton and Barto 2018, section 7.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.rl.batch import FloatArray, NumpyArray, Transitions, to_numpy
from ding_lite.rl.formulas.exploration import epsilon_greedy
from ding_lite.rl.formulas.q_learning import (
    LOSSES,
    best_values,
    evaluate,
    only_legal,
    q_gradient,
    td_error,
)
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.formulas.schedules import linear
from ding_lite.rl.host_or_device import (
    AnyArray,
    Metrics,
    Number,
    as_tensor,
    computable,
    is_host,
    metrics_of,
    nan_if,
    on,
)
from ding_lite.rl.networks.inputs import make_norm
from ding_lite.rl.networks.modules import without_numbers
from ding_lite.rl.networks.parts import encodes_images, for_inference, inputs_of
from ding_lite.rl.networks.q_nets import QNetwork, draw_weights, make_q_network, recorded_q_networks
from ding_lite.rl.policies.base.config import (
    QLearningConfig,
    StepConfig,
    check_no_description,
    own_config,
)
from ding_lite.rl.policies.base.open_policy import OpenPolicy
from ding_lite.rl.policies.base.spaces import check_choices, discrete_actions, packed
from ding_lite.rl.recorded.network import RecordedQNetwork
from ding_lite.rl.seeding import make_rng
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.compiled import Compile, Inputs, Outputs
from ding_lite.rl.weights.flat import FlatWeights
from ding_lite.rl.weights.flat_module import MakeModule, made_module
from ding_lite.rl.weights.optimizers import MakeOptimizer
from ding_lite.settings.config import suggests
from ding_lite.settings.rules import COUNT, check_all, choice, inside, setting

_COLUMNS = ("action", "reward", "terminated", "num_steps", "weight")
"""The columns of a batch, besides observations, that an update reads; only prioritized batches have
`weight`."""


@suggests
@dataclass(frozen=True, kw_only=True)
class DQNConfig(QLearningConfig, StepConfig):
    """Settings of DQN. The defaults suit small tasks such as CartPole."""

    lr: float = 2e-3
    """Adam's learning rate. Higher learns faster; too high undoes what was learned.
    1e-4 to 3e-3 are usual, and larger networks need lower ones."""
    n_step: int = setting(3, COUNT)
    """The number of rewards summed before bootstrapping; 1 to 5 are usual."""
    dueling: bool = False
    """Estimate the value of an observation and the advantage of each action separately. This helps
    where many actions have similar values."""
    batch_size: int = setting(128, COUNT)
    """The transitions of one update. More are more stable and slower; 32 to 512 are usual."""
    loss: Literal["huber", "mse"] = setting("huber", choice("huber", "mse"))
    """`huber` is linear for errors above 1, so that outliers weigh less; `mse` is quadratic."""


class DQN(OpenPolicy):
    """Off-policy value learning for discrete actions.

    Args:
        spec: The spec of the environments, `envs.spec`.
        config: The settings, or a dict of them.
        network: Your own network instead of the one that the config describes: a module, or a
            function of the spec that makes one. It maps observations, [B, ...], to the value of
            each action, [B, A]. The target network is a copy of it.
        optimizer: An optimiser instead of Adam, such as `torch.optim.RMSprop`: a function of the
            parameters. If it has an argument `lr`, it gets the config's.
        device: The device of the networks, as PyTorch names it.
        compile: `"torch"` compiles the network for updates with `torch.compile`, and a function
            such as `partial(torch.compile, mode="max-autotune")` compiles it with that function.
            `"graph"` captures updates on a GPU as CUDA graphs.

    Raises:
        ConfigError: If the actions are continuous, the device does not exist, or the network or
            the optimiser cannot be used or compiled.
        ShapeError: If the outputs of the network are not [B, A].

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("CartPole-v1", 2)
        >>> DQN(envs.spec).act(envs.obs, explore=False).shape
        (2,)
    """

    config: DQNConfig
    _config_type = DQNConfig
    _saved_networks = ("q_net", "target_net")

    def __init__(
        self,
        spec: EnvSpec,
        config: DQNConfig | Mapping[str, Any] | None = None,
        *,
        network: MakeModule | None = None,
        optimizer: MakeOptimizer | None = None,
        device: str | torch.device = "cpu",
        compile: Compile = None,
    ) -> None:
        config = own_config(config, DQNConfig)
        super().__init__(
            spec, config, network=network, optimizer=optimizer, device=device, compile=compile
        )
        self._num_actions = discrete_actions(spec, policy="DQN")
        self._rng = make_rng(config.seed, "dqn")
        self._epsilon = linear(config.epsilon_start, config.epsilon_end, steps=config.epsilon_steps)
        self._random = TorchRandom(config.seed, "dqn network", device=self.device)
        self._sees_trees = network is not None or encodes_images(spec, config.images)
        self.q_net, self._target_net = self._make_networks(network)
        """The network and its target; internal."""
        self._norm = make_norm(spec, normalize_obs=config.normalize_obs, device=self.device)
        self._loss = LOSSES[config.loss]
        self._optimizer = self._make_optimizer(self.q_net)
        both = (self.q_net, self._target_net)
        self._compile_networks(net.flat for net in both if isinstance(net, RecordedQNetwork))

    def _make_networks(self, network: MakeModule | None) -> tuple[QNetwork, QNetwork]:
        if network is not None:
            check_no_description(self.config)
            module = made_module(network, self.spec, seed=self.config.seed)
            return recorded_q_networks(
                module, self.spec, self._num_actions, random=self._random, device=self.device
            )
        online, target = self._make_network(), self._make_network()
        draw_weights(online.weights, self._rng)
        target.weights.flat.copy_(online.weights.flat)
        return online, target

    def _make_network(self) -> QNetwork:
        config, spec = self.config, self.spec
        with without_numbers():
            inputs = inputs_of(spec, config.images)
        return make_q_network(
            inputs,
            config.hidden,
            num_actions=self._num_actions,
            dueling=config.dueling,
            activation=config.activation,
            unpack=None if inputs.encoder is None else spec.unpack,
            device=self.device,
        )

    @property
    def own_modules(self) -> Mapping[str, Mapping[str, nn.Module]]:
        """The user's network and its target, by the keys and names of their saved tensors."""
        if not self.has_own_network:
            return {}
        return {"q_net": {"": self.q_net.module}, "target_net": {"": self._target_net.module}}

    @property
    def module(self) -> nn.Module:
        """The network as a plain module for inference, with the weights of the policy.

        It maps observations as the environment returns them, [B, ...], to the value of each action,
        [B, A]. With `normalize_obs` it normalises by the present statistics.
        """
        return for_inference(self.q_net.module, self.spec, self._norm, sees_trees=self._sees_trees)

    def act(
        self, obs: NumpyArray, *, explore: bool = True, epsilon: float | None = None
    ) -> NumpyArray:
        """Choose an action for each observation.

        Args:
            obs: [N, ...].
            explore: If false, every action is the best one, and nothing random is drawn.
            epsilon: The share of random actions; the config's schedule if None.

        Returns:
            Actions, [N] int64.

        Raises:
            ConfigError: If `epsilon` does not lie between 0 and 1.
            ShapeError: If the observations are not those of the policy's environment.
        """
        obs = packed(obs, self.spec)
        greedy_N: NumpyArray = self.q_values(obs).argmax(axis=1)
        if not explore:
            return greedy_N
        if epsilon is None:
            epsilon = self._epsilon(self.env_step)
        else:
            check_all(inside(0.0, 1.0, epsilon=epsilon))
        self.env_step += len(obs)
        mask_NA = self.spec.action_mask(obs)
        return epsilon_greedy(
            greedy_N, epsilon, num_actions=self._num_actions, rng=self._rng, mask_NA=mask_NA
        )

    def q_values(self, obs: NumpyArray) -> FloatArray:
        """Estimate the return of each action.

        Args:
            obs: [N, ...].

        Returns:
            Values, [N, A]; minus infinity for actions that are not legal.

        Raises:
            ShapeError: If the observations are not those of the policy's environment.
        """
        inputs = self.as_inputs(obs)
        values_NA: FloatArray = only_legal(
            self.q_net.values(self._for_network(inputs)), self.spec.action_mask(inputs)
        )
        return values_NA

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite raises an error
    def learn(self, batch: Transitions) -> Metrics:
        """Do one update: one step of Adam along the loss, then move the target network.

        The target of a transition that spans k env steps and leads to x' is
        reward + gamma^k (1 - terminated) Q_target(x', argmax_a Q(x', a)); without `double`
        both are the target network. A truncated transition is bootstrapped like any other.

        Args:
            batch: B transitions, tensors or arrays. Transitions of a prioritized replay are
                weighted by their importance weights.

        Returns:
            `loss`; `q_mean`, the mean value of the actions taken; `lr` if the learning rate falls;
            for prioritized transitions also `td_error`, [B], the distance of each value from its
            target.

        Raises:
            NonFiniteError: If the loss is NaN or infinite. The weights are then unchanged.
            ShapeError: If the observations are not those of the policy's environment, or, on a CPU,
                the actions.
        """
        if is_host(self.device):
            check_choices(batch.action, self._num_actions)
        rows = self._rows(batch)  # raises before anything changes
        inputs = {name: getattr(batch, name, None) for name in _COLUMNS}
        self._note(batch.obs)
        inputs["obs"], inputs["next_obs"] = self._observations(batch)
        inputs["mask"] = self._next_mask(batch)
        check = partial(self.check_finite, update=self._present_update)
        self._optimizer.lr = self._lr_at(self.train_iter)
        metrics = self._run_update(inputs, rows=rows, follows=self._follows)
        self.train_iter += 1
        if self.config.lr_end is not None:
            metrics["lr"] = self.lr
        return metrics_of(metrics, check)

    def _update(self, inputs: Inputs, *, rows: Rows, follows: bool) -> Outputs:
        seen: Any = SimpleNamespace(**inputs)
        weight_1B = None if seen.weight is None else rows.fold(seen.weight)
        q_1BA, saved, next_q_1B = evaluate(
            self.q_net,
            self._target_net,
            rows,
            seen.obs,
            seen.next_obs,
            is_double=self.config.double,
            mask_GBA=seen.mask,
        )
        found = q_gradient(rows, seen, q_1BA, next_q_1B, self._loss, weight_1B)
        self.q_net.backward(saved, as_tensor(found.grad_GBA[0]))
        loss, weights_P = found.loss_G[0], self.q_net.weights.flat
        skip = self._move(
            loss, self.q_net.grads.flat, weights_P, self._target_net.weights.flat, follows=follows
        )
        metrics = {"loss": nan_if(skip, loss), "q_mean": found.q_mean_G[0]}
        if weight_1B is not None:
            metrics["td_error"] = abs(found.error_GB[0])
        return metrics

    def td_errors(self, transitions: Transitions) -> FloatArray:
        """Compute the difference of each transition's value from its target, without learning.

        Collectors of Ape-X use it for initial priorities (Horgan et al. 2018, arXiv:1803.00933):
        `mw.add_to(replay, priority=policy.td_errors)`.

        Args:
            transitions: B transitions, arrays or tensors.

        Returns:
            Value minus target, [B] float32, as in `learn`.

        Raises:
            ShapeError: If the observations are not those of the policy's environment.
        """
        if not len(transitions):  # the first steps complete no transition of n steps
            return np.zeros(0, dtype=np.float32)
        obs, next_obs = self._observations(transitions)
        rows, networks = self._rows(transitions), (self.q_net, self._target_net)
        rank_BA, value_BA = (computable(net.forward(next_obs)) for net in networks)
        rank_BA = rank_BA if self.config.double else value_BA
        next_q_1B = best_values(rows, value_BA[None], rank_BA[None], self._next_mask(transitions))
        q_BA = computable(self.q_net.forward(obs))
        q_1B = rows.pick(q_BA[None], rows.fold(transitions.action))
        error_B: FloatArray = to_numpy(td_error(rows, transitions, q_1B, next_q_1B)[0])
        return error_B

    def _observations(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        obs, next_obs = self._placed(batch.obs), self._placed(batch.next_obs)
        return self._for_network(obs), self._for_network(next_obs)

    def _rows(self, batch: Transitions) -> Rows:
        return Rows.of_one(len(batch), self.config.gamma, self.device)

    def _next_mask(self, batch: Transitions) -> AnyArray | None:
        """Return which actions are legal in the next observations; None without action masks."""
        if not self.spec.has_action_mask:
            return None
        return self.spec.action_mask(on(self.device, batch.next_obs))

    def step(self, loss: float, grad_P: Tensor, weights_P: Tensor, target_P: Tensor) -> None:
        """Step along a gradient, then move the target network.

        Args:
            loss: The loss.
            grad_P: Its flat gradient; it is clipped in place.
            weights_P: The flat weights: the policy's own, or a copy that replaces them.
            target_P: The flat weights of the target network, likewise.

        Raises:
            NonFiniteError: If the loss or the gradient is not finite; nothing is changed then.
        """
        self._optimizer.lr = self._lr_at(self.train_iter)
        self._move(loss, grad_P, weights_P, target_P, follows=self._follows)
        self.train_iter += 1

    @property
    def _follows(self) -> bool:
        return (self.train_iter + 1) % self.config.target_every == 0

    def _move(
        self, loss: Number, grad_P: Tensor, weights_P: Tensor, target_P: Tensor, *, follows: bool
    ) -> Tensor | None:
        """Return 1.0 on a device if the step was skipped, else 0.0."""
        limit = self.config.max_grad_norm
        _, skip = self._descend(self._optimizer, loss, grad_P, weights_P, limit=limit)
        if follows:
            tau = self.config.target_tau
            target_P.lerp_(weights_P, tau if skip is None else tau * (1.0 - skip))
            self._target_net.copy_buffers(self.q_net)
        return skip

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights that another policy's `weights` returned, into the target network too.

        Raises:
            ShapeError: If a name or a shape is not this policy's. Then nothing is changed.
        """
        super().load_weights(weights)
        self._target_net.weights.flat.copy_(self.q_net.weights.flat)
        self._target_net.copy_buffers(self.q_net)

    @property
    def lr(self) -> float:
        """The learning rate of the last update."""
        return self._optimizer.lr

    @property
    def flat_weights(self) -> tuple[FlatWeights, FlatWeights]:
        """The weights of the network and of its target, not copied."""
        return self.q_net.weights, self._target_net.weights

    @property
    def _acting_net(self) -> QNetwork:
        return self.q_net

    def _network_state(self) -> dict[str, Any]:
        return {"q_net": self.weights(), "target_net": self._target_net.snapshot()}

    def _load_networks(self, state: Mapping[str, Any]) -> None:
        self.load_weights(state["q_net"])
        self._target_net.load(state["target_net"])

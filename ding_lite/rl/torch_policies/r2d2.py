"""R2D2: DQN with memory, learned from sequences with stored recurrent states.

The base is Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
Learning", with uniform sampling, the double estimate of van Hasselt et al. 2016 (arXiv:1509.06461),
n-step returns within a sequence, and the value rescaling of Pohlen et al. 2018 (arXiv:1805.11593).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ding_lite.errors import ConfigError, ShapeError, kind_of
from ding_lite.rl.batch import NumpyArray, Sequences
from ding_lite.rl.formulas.q_learning import only_legal
from ding_lite.rl.formulas.returns import rescaled, sequence_targets, unscaled
from ding_lite.rl.formulas.schedules import linear
from ding_lite.rl.memory import Memory
from ding_lite.rl.networks.modules import Torso
from ding_lite.rl.networks.parts import inputs_of
from ding_lite.rl.policies.base.config import QLearningConfig, check_no_description
from ding_lite.rl.policies.base.spaces import discrete_actions
from ding_lite.rl.recorded.checks import check_outputs, sample_obs
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_policies.config import TorchPolicyConfig
from ding_lite.rl.torch_policies.torch_policy import ChangeModule, TorchPolicy
from ding_lite.rl.weights.compiled import Compile
from ding_lite.rl.weights.flat_module import MakeModule, acting, made_module
from ding_lite.rl.weights.optimizers import MakeOptimizer
from ding_lite.settings.config import suggests
from ding_lite.settings.rules import COUNT, NATURAL, choice, setting


@suggests
@dataclass(frozen=True, kw_only=True)
class R2D2Config(QLearningConfig, TorchPolicyConfig):
    """Settings of R2D2. The defaults suit small tasks."""

    lr: float = 2e-3
    """The learning rate of Adam; 1e-4 to 3e-3 are usual."""
    n_step: int = 3
    """The number of rewards summed before bootstrapping, within a sequence; 1 to 5 are usual."""
    batch_size: int = 32
    """The sequences of one update; 16 to 64 are usual."""
    sequence_length: int = setting(20, COUNT)
    """The env steps of a sequence that are learned from. Longer sequences teach longer memory."""
    burn_in: int = setting(10, NATURAL)
    """The env steps before these, which update the stored state without being learned from; 0
    uses the stored state. Half of `sequence_length` is usual."""
    memory: Literal["lstm", "gru"] = setting("lstm", choice("lstm", "gru"))
    """The recurrent layer: `gru` takes less time, `lstm` has a cell state separate from its
    output."""
    memory_size: int = setting(64, COUNT)
    """The width of the recurrent layer. Wider layers remember more and take longer."""
    hidden: tuple[int, ...] = (64,)
    """The widths of the layers before it. Images pass through convolutions first."""
    rescale: bool = False
    """Learn values on a scale that grows like a square root. It helps if returns differ by orders
    of magnitude, as in games without reward clipping."""
    max_grad_norm: float | None = 10.0
    """The norm to which a larger gradient is clipped; None does not clip."""


class RecurrentQ(nn.Module):
    """Fully connected layers or convolutions, an LSTM or GRU, and a value for each action.

    Args:
        spec: The spec of the environments.
        config: The settings of the layers.
        num_actions: The number of actions.
    """

    def __init__(self, spec: EnvSpec, config: R2D2Config, *, num_actions: int) -> None:
        super().__init__()
        self._spec = spec
        inputs = inputs_of(spec, config.images)
        self.torso = Torso(inputs, config.hidden, activation=config.activation)
        self._is_lstm = config.memory == "lstm"
        layer = nn.LSTM if self._is_lstm else nn.GRU
        self.memory: nn.Module = layer(config.hidden[-1], config.memory_size, batch_first=True)
        self.head = nn.Linear(config.memory_size, num_actions)
        self.state_size = config.memory_size * (2 if self._is_lstm else 1)
        """The length of the state of one environment: h, or h and c, of each unit.

        The first numbers of a longer state are the state of a narrower layer, because a replay has
        states from before a mutation changed the width.
        """

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute one time step: values, [B, A], and the next states, [B, S]."""
        q_B1A, state = self.unroll(obs[:, None], state)
        return q_B1A[:, 0], state

    def unroll(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute T time steps, [B, T, ...]: values, [B, T, A], and the last states, [B, S]."""
        take = self._spec.inputs if self.torso.encoder is None else self._spec.unpack
        features = self.torso.features(take(obs.flatten(0, 1))).view(*obs.shape[:2], -1)
        before: Any = state[None].contiguous()
        if self._is_lstm:
            before = tuple(part.contiguous() for part in before.unflatten(-1, (-1, 2)).unbind(-1))
        outputs, behind = self.memory(features, before)
        states = torch.stack(behind, dim=-1).flatten(-2) if self._is_lstm else behind
        return self.head(outputs), states[0]


class R2D2(TorchPolicy[R2D2Config]):
    """Off-policy value learning for discrete actions with memory.

    It learns from an `EpisodeBuffer(spec, ..., state_size=policy.state_size)`, which `mw.collect`
    and `mw.add_to` fill. A sequence begins with the state that was stored at its collection.
    `burn_in` steps update that state without gradients, and the other steps are learned from.

    Args:
        spec: The spec of the environments, `envs.spec`.
        config: The settings, or a dict of them.
        network: Your own network instead of the one that the config describes: a module, or a
            function of the spec that makes one. It has a `state_size`, S, and its
            `forward(obs, state)` maps observations, [B, ...], and states, [B, S], to the value of
            each action, [B, A], and the next states, [B, S].
        optimizer: An optimiser instead of Adam: a function of the parameters.
        device: The device of the networks, as PyTorch names it.
        compile: `"torch"` compiles `loss` with `torch.compile`, and a function such as
            `partial(torch.compile, mode="max-autotune")` compiles it with that function.

    Raises:
        ConfigError: If the actions are continuous, the device does not exist, or the network or
            the optimiser cannot be used.
        ShapeError: If the outputs of the network are not [B, A] and [B, S].

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("CartPole-v1", 2)
        >>> policy = R2D2(envs.spec)
        >>> memory = policy.make_memory(2)
        >>> policy.act(envs.obs, memory=memory).shape, memory.state.shape
        ((2,), (2, 128))
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: R2D2Config | Mapping[str, Any] | None = None,
        *,
        network: MakeModule | None = None,
        optimizer: MakeOptimizer | None = None,
        device: str | torch.device = "cpu",
        compile: Compile = None,
    ) -> None:
        self._given = network
        super().__init__(spec, config, optimizer=optimizer, device=device, compile=compile)
        if network is not None:
            self._parts["network"] = network

    def build(self) -> None:
        """Make the network and its target."""
        config = self.config
        self._num_actions = discrete_actions(self.spec, policy="R2D2")
        self._epsilon = linear(config.epsilon_start, config.epsilon_end, steps=config.epsilon_steps)
        self._share = 0.0
        given, self._given = self._given, None
        if given is None:
            self.net: nn.Module = RecurrentQ(self.spec, config, num_actions=self._num_actions)
        else:
            check_no_description(config)
            self.net = made_module(given, self.spec, seed=config.seed)
        self.state_size = _state_size(self.net)
        if given is not None:
            self.net.to(self.device)
            sample = sample_obs(self.spec, device=self.device)
            state = torch.zeros((len(sample), self.state_size), device=self.device)
            inputs = (self.spec.unpack(sample), state)
            expected = [(self._num_actions,), (self.state_size,)]
            check_outputs(self.net, inputs, expected, spec=self.spec, num_states=1)
        self.target = self.follow(self.net, tau=config.target_tau, every=config.target_every)

    @property
    def has_own_network(self) -> bool:
        """Whether the user gave a network, or a subclass has built another."""
        return "network" in self._parts or not isinstance(self.net, RecurrentQ)

    def change_networks(self, change: ChangeModule) -> bool:
        """Replace network and target, as in `TorchPolicy`; the states may become longer."""
        has_changed = super().change_networks(change)
        self.state_size = _state_size(self.net)
        return has_changed

    # -- acting --------------------------------------------------------------------------

    @property
    def module(self) -> nn.Module:
        """The network, from observations and states to values of actions and next states.

        Observations of several parts, and those with an action mask, are packed, as in `envs.obs`.
        Actions that are not legal have the value minus infinity.
        """
        is_plain = self.spec.packing is None and self._norm is None
        return acting(self.net if is_plain else _LegalValues(self))

    @property
    def n_step(self) -> int:
        """Always 1: the buffer stores single env steps, and sequences sum their rewards."""
        return 1

    @property
    def sequence_length(self) -> int:
        """The env steps of a sequence that are learned from."""
        return self.config.sequence_length

    @property
    def burn_in(self) -> int:
        """The env steps before these."""
        return self.config.burn_in

    def make_memory(self, num_envs: int) -> Memory:
        """Make a memory for so many environments."""
        return Memory(num_envs, self.state_size)

    def act(
        self,
        obs: NumpyArray,
        *,
        explore: bool = True,
        epsilon: float | None = None,
        memory: Memory | None = None,
    ) -> NumpyArray:
        """Choose an action for each observation.

        Args:
            obs: [N, ...].
            explore: If false, every action is the best one, and nothing random is drawn.
            epsilon: The share of random actions; the config's schedule if None.
            memory: A result of `make_memory(N)`. Its states are replaced by the next ones.

        Returns:
            Actions, [N] int64.

        Raises:
            ConfigError: If the memory is missing.
            ShapeError: If the observations are not those of the policy's environment.
        """
        self._share = self._epsilon(self.env_step) if epsilon is None else epsilon
        return super().act(obs, explore=explore, memory=memory)

    def choose(self, obs: Tensor, explore: bool, state: Tensor | None = None) -> Any:  # noqa: ANN401
        """Choose epsilon-greedy actions; return them and the next states."""
        q_NA, state = self._one_step(self.net, obs, state)
        greedy_N = self._only_legal(q_NA, obs).argmax(-1)
        if not explore:
            return greedy_N, state
        mask_NA = self.spec.action_mask(obs)
        chance_NA = torch.ones_like(q_NA)
        if mask_NA is not None:  # an observation after which nothing is legal allows any action
            chance_NA = (mask_NA | ~mask_NA.any(-1, keepdim=True)).float()
        random_N = torch.multinomial(chance_NA, 1).squeeze(-1)
        is_random_N = torch.rand(len(q_NA), device=self.device) < self._share
        return torch.where(is_random_N, random_N, greedy_N), state

    # -- learning ------------------------------------------------------------------------

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ANN401 - of tensors
        """Compute the mean Huber loss of the existing steps after the burn-in."""
        start, config = batch.burn_in, self.config
        obs, mask_BT = batch.obs[:, start:], batch.mask[:, start:]
        action_BT = batch.action[:, start:]
        with torch.no_grad():
            target_BTA = self._unroll(self.target, obs, self._burnt_in(self.target, batch))
            state_B = self._burnt_in(self.net, batch)
        q_BTA = self._unroll(self.net, obs, state_B)
        q_BT = q_BTA[:, :-1].gather(-1, action_BT[..., None]).squeeze(-1)

        with torch.no_grad():
            ranked_BTA = self._only_legal(q_BTA if config.double else target_BTA, obs)
            value_BT = target_BTA.gather(-1, ranked_BTA.argmax(-1, keepdim=True)).squeeze(-1)
            goal_BT = sequence_targets(
                batch.reward[:, start:],
                batch.terminated[:, start:],
                mask_BT,
                unscaled(value_BT) if config.rescale else value_BT,
                gamma=config.gamma,
                n_step=config.n_step,
            )
            goal_BT = rescaled(goal_BT) if config.rescale else goal_BT
        loss_BT = F.huber_loss(q_BT, goal_BT, reduction="none")
        count = mask_BT.sum()
        return (loss_BT * mask_BT).sum() / count, {"q_mean": (q_BT * mask_BT).sum() / count}

    def _burnt_in(self, net: nn.Module, batch: Any) -> Tensor:  # noqa: ANN401
        """Return the states after the burn-in; steps that do not exist do not change them."""
        state_B: Tensor = batch.state
        for time in range(batch.burn_in):
            _, next_B = self._one_step(net, batch.obs[:, time], state_B)
            state_B = torch.where(batch.mask[:, time, None], next_B, state_B)
        return state_B

    def _one_step(self, net: nn.Module, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        q_BA, state = net(obs if isinstance(net, RecurrentQ) else self.spec.unpack(obs), state)
        return q_BA, state

    def _unroll(self, net: nn.Module, obs: Tensor, state: Tensor) -> Tensor:
        if isinstance(net, RecurrentQ):
            return net.unroll(obs, state)[0]
        values = []
        for time in range(obs.shape[1]):
            q_BA, state = self._one_step(net, obs[:, time], state)
            values.append(q_BA)
        return torch.stack(values, dim=1)

    def _only_legal(self, values: Tensor, obs: Tensor) -> Tensor:
        legal: Tensor = only_legal(values, self.spec.action_mask(obs))
        return legal

    # -- inputs --------------------------------------------------------------------------

    def _on_device(self, batch: Any) -> Sequences:  # noqa: ANN401 - raises if not sequences
        if not isinstance(batch, Sequences) or batch.state is None:
            found = kind_of(batch) if not isinstance(batch, Sequences) else "no states"
            raise ConfigError(
                f"R2D2 learns from sequences with stored states, and got {found}. Sample them from "
                f"an `EpisodeBuffer(spec, ..., state_size={self.state_size})`."
            )
        missing = self.state_size - batch.state.shape[-1]
        may_grow = not self.has_own_network or hasattr(self.net, "grow")
        if missing and may_grow:  # a mutation has changed the width since
            states = F.pad(torch.as_tensor(batch.state), (0, missing))
            batch = replace(batch, state=states)
        expected = (len(batch), self.state_size)
        if tuple(batch.state.shape) != expected:
            raise ShapeError(
                f"The states of the sequences have shape {tuple(batch.state.shape)}; {expected} "
                f"was expected. Make the EpisodeBuffer with `state_size={self.state_size}`."
            )
        sequences: Sequences = super()._on_device(batch)
        return sequences


class _LegalValues(nn.Module):
    """A policy's network with its preprocessing: normalisation, and masks of legal actions."""

    def __init__(self, policy: R2D2) -> None:
        super().__init__()
        self.net, self._policy = policy.net, policy

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        obs = self._policy._seen(obs)
        q_BA, state = self._policy._one_step(self.net, obs, state)
        return self._policy._only_legal(q_BA, obs), state


def _state_size(net: nn.Module) -> int:
    size = getattr(net, "state_size", None)
    if not isinstance(size, Integral) or size < 1:
        raise ConfigError(
            f"`network` ({type(net).__name__}) has the `state_size` {size!r}; a whole number above "
            f"0 was expected, the length of the recurrent state that `forward(obs, state)` takes."
        )
    return int(size)

"""The base of A2C, PPO and IMPALA: a stochastic actor, a critic, and the gradient of their loss.

A subclass adds how it learns from rollouts. It learns where its network is: on a CPU losses are
computed on arrays, on any other device on tensors there, and the host does not wait for them.

The algorithms are in `a2c.py`, `ppo.py` and `impala.py`: each writes its updates as a generator,
which yields what is to be computed (`rollout_updates.py`). `_answer` computes it for one
policy, `evolution/batched/rollouts.py` for all of a population at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.deprecation import renamed_argument
from ding_lite.rl.batch import FloatArray, NumpyArray, Rollout, to_numpy
from ding_lite.rl.formulas.distributions import legal_logits
from ding_lite.rl.formulas.policy_losses import PolicyLoss, Settings, Steps, actor_critic_loss
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.host_or_device import AnyArray, Metrics, Number, number
from ding_lite.rl.memory import Memory
from ding_lite.rl.networks.actor_critic import ActorCriticNetwork
from ding_lite.rl.networks.inputs import make_norm
from ding_lite.rl.networks.parts import encodes_images, for_inference
from ding_lite.rl.policies.actor_critic_config import ActorCriticConfig, make_network
from ding_lite.rl.policies.base.config import check_no_description, own_config
from ding_lite.rl.policies.base.gradient_policy import GradientPolicy
from ding_lite.rl.policies.rollout_updates import (
    Estimate,
    Forward,
    ForwardResult,
    FoundT,
    Infer,
    Request,
    Updates,
)
from ding_lite.rl.recorded.actor_critic import RecordedActorCritic, Recurrence, RecurrentActorCritic
from ding_lite.rl.replay.rollouts import Minibatch, join_rollouts, merged, on_device
from ding_lite.rl.seeding import make_rng
from ding_lite.rl.spec import EnvSpec, within
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.compiled import Compile, Inputs, Outputs
from ding_lite.rl.weights.flat import FlatWeights
from ding_lite.rl.weights.flat_module import MakeModule
from ding_lite.rl.weights.optimizers import MakeOptimizer

ConfigT = TypeVar("ConfigT", bound=ActorCriticConfig)
_COLUMNS = ("obs", "action", "log_prob_B", "advantage_B", "target_B")
"""The columns of a minibatch that an update reads, besides its sequences."""
_ADAM_EPS = 1e-5
"""Larger than Adam's default, as is usual here: gradients are noisy and may be tiny."""


class ActorCriticPolicy(GradientPolicy, Generic[ConfigT]):
    """Acts and applies gradients; subclasses compute the gradients."""

    config: ConfigT
    _config_type: type[ConfigT]
    _saved_networks = ("network",)

    def __init__(
        self,
        spec: EnvSpec,
        config: ConfigT | Mapping[str, Any] | None = None,
        *,
        network: MakeModule | None = None,
        actor: MakeModule | None = None,
        critic: MakeModule | None = None,
        optimizer: MakeOptimizer | None = None,
        device: str | torch.device = "cpu",
        compile: Compile = None,
    ) -> None:
        """Initialise the weights.

        Args:
            spec: The spec of the environments, `envs.spec`.
            config: The settings, or a dict of them.
            network: A network of one's own in place of the one that the config describes: a
                module, or a function of the spec that makes one. It maps observations, [B, ...],
                to action parameters, [B, D], and values, [B]. The parameters are logits, or for
                boxes of actions means, in units of half the range, with or without as many log
                standard deviations behind them. One with a `state_size` has memory: it maps
                observations and states, [B, S], of one time step to these and the next states,
                [B, S].
            actor: Instead of `network`: a module that returns the action parameters.
            critic: With `actor`: a module that returns the values. Both may share layers.
            optimizer: An optimiser in place of Adam, such as `torch.optim.RMSprop`: a function of
                the parameters. If it takes `lr`, it gets the config's.
            device: The device of the network, as PyTorch names it.
            compile: `"torch"` compiles the network for updates, by `torch.compile`; a function
                such as `partial(torch.compile, mode="max-autotune")` by that. `"graph"` captures
                updates on a GPU as CUDA graphs.

        Raises:
            ConfigError: If there is no such device, a setting does not fit the environment, or the
                network or the optimiser cannot be used, or compiled.
            ShapeError: If the outputs of the network have other shapes.
        """
        config = own_config(config, self._config_type)
        super().__init__(
            spec,
            config,
            network=network,
            actor=actor,
            critic=critic,
            optimizer=optimizer,
            device=device,
            compile=compile,
        )
        if self.has_own_network:
            check_no_description(config)
        self._rng = make_rng(config.seed, type(self).__name__)
        self._sees_trees = self.has_own_network or encodes_images(spec, config.images)
        self._random = TorchRandom(config.seed, "actor-critic network", device=self.device)
        self.net, self.distribution = make_network(
            spec,
            config,
            {"network": network, "actor": actor, "critic": critic},
            rng=self._rng,
            random=self._random,
            device=self.device,
        )
        """The network, and the distribution of its actions; internal."""
        self._settings = Settings([config], self.device)
        self._no_targets = FlatWeights({}, device=self.device)
        self.state_size = int(getattr(self.net, "state_size", 0))
        self._norm = make_norm(self.spec, normalize_obs=self.config.normalize_obs)
        self._optimizer = self._make_optimizer(self.net, eps=_ADAM_EPS)
        own = self.net.flat if isinstance(self.net, RecordedActorCritic) else None
        self._compile_networks([] if own is None else [own])

    @property
    def flat_weights(self) -> tuple[FlatWeights, FlatWeights]:
        """The weights of the network, themselves and not copies, and no target weights."""
        return self.net.weights, self._no_targets

    @property
    def own_modules(self) -> Mapping[str, Mapping[str, nn.Module]]:
        """The modules that the user gave, by where their tensors are saved."""
        if not self.has_own_network:
            return {}
        return {"network": {f"{n}.": part for n, part in self.net.module.named_children()}}

    @property
    def module(self) -> nn.Module:
        """The network as a plain module for inference, on the weights of the policy.

        It maps observations, [B, ...], to action parameters, [B, D], and values, [B]; one with
        memory maps observations and states, [B, S], to these and the next states. With
        `normalize_obs` it normalises by the statistics of now.
        """
        return for_inference(self.net.plain, self.spec, self._norm, sees_trees=self._sees_trees)

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite raises an error
    def learn(self, rollouts: Sequence[Rollout], /) -> Metrics:
        """Do one update, or several, from rollouts of one length.

        On another device than the CPU nothing is copied to the host: metrics are fetched when they
        are read. An update is left out there if its loss or gradient is not finite, and reading the
        metrics raises `NonFiniteError`.

        Args:
            rollouts: All of the same length.

        Returns:
            The metrics of the last update, which the class describes.

        Raises:
            ShapeError: If they are not of the policy's environment.
            NonFiniteError: If a loss is NaN or infinite. That step is not done.
        """
        return self._answered(self.updates(rollouts))

    def updates(self, rollouts: Sequence[Rollout]) -> Updates[Metrics]:
        """Yield the requests of `learn`, which the caller answers, and return metrics; internal."""
        rollout = self._joined(rollouts)
        values = yield from self._learned(self._ready(rollout))
        self._note(merged(rollout.obs))
        return self._metrics(values)

    @abstractmethod
    def _learned(self, rollout: Rollout) -> Updates[dict[str, Number]]:
        """Do the updates of a rollout, and return the metrics of the last one."""

    @abstractmethod
    def _rows(self, rollout: Rollout) -> Updates[tuple[Minibatch, ForwardResult | None]]:
        """Return env steps with advantages and targets, and the network's outputs if known."""

    @staticmethod
    @abstractmethod
    def policy_loss(
        rows: Rows, settings: Settings, steps: Steps, log_prob_GB: AnyArray
    ) -> PolicyLoss:
        """Compute the loss by log-probabilities of the actions of several policies; internal."""

    def _agreed(self, parts: int) -> int:
        """Return the number of minibatches of an epoch that all learners make: the rounded mean."""
        return max(round(self._mean_of_learners(parts)), 1)

    def _mean_of_learners(self, value: float) -> float:
        """Return the mean of a number over all learners; all make the same number of updates."""
        if self._take_mean is None or self.reduce_gradient is None:
            return value
        mean = torch.tensor([value], dtype=torch.float64)
        self._take_mean(mean)
        return mean.item()

    def _stops(self, values: Mapping[str, Number]) -> bool:
        """Return whether these metrics end its updates of a rollout before the step."""
        return False

    def _answered(self, updates: Updates[FoundT]) -> FoundT:
        answer: Any = None
        while True:
            try:
                request = updates.send(answer)
            except StopIteration as end:
                found: FoundT = end.value
                return found
            answer = self._answer(request)

    def _answer(self, request: Request) -> Any:  # noqa: ANN401 - by the request
        if isinstance(request, Infer):
            return self._values(request.obs, request.state_MS)
        if isinstance(request, Estimate):
            return request.by(*request.columns_TN, **request.settings)
        if isinstance(request, Forward):
            kept = self._forward(request.obs, request.recurrence, is_training=request.is_training)
            outputs_BD, value_B, _, behind_TNS = kept
            log_prob_B = None
            if request.action is not None:
                log_prob_B = self.distribution.likelihood(outputs_BD, request.action).log_prob_B
            return ForwardResult(value_B, log_prob_B, behind_TNS, kept)
        if self._graph is not None:
            return self._replay(request.steps)
        rows = self._rows_of(request.steps)
        values = self._write_gradient(rows, request.steps, request.seen)
        self.descend(values)
        return values

    def descend(self, values: dict[str, Number], *at: Tensor) -> None:
        """Answer `Descend`: step along a gradient, unless the metrics end the updates; internal.

        `at` are the flat gradient and weights, by default the policy's own.
        """
        if not self._stops(values):
            values["grad_norm"] = self._improve(values["loss"], *at)

    def _replay(self, steps: Minibatch) -> dict[str, Number]:
        """Answer `Descend` by a captured update, which computes its outputs itself."""
        inputs = {name: getattr(steps, name) for name in _COLUMNS}
        if steps.recurrence is not None:
            inputs |= {"state_NS": steps.recurrence.state_NS, "ended_TN": steps.recurrence.ended_TN}
        self._optimizer.lr = self._lr_at(self.train_iter)
        values = self._run_update(inputs, rows=self._rows_of(steps))
        self._after_step(values.pop("skip"))
        return values

    def _update(self, inputs: Inputs, *, rows: Rows) -> Outputs:
        columns = {name: inputs[name] for name in _COLUMNS}
        has_memory = "state_NS" in inputs
        recurrence = Recurrence(inputs["state_NS"], inputs["ended_TN"]) if has_memory else None
        values = self._write_gradient(rows, Minibatch(**columns, recurrence=recurrence))
        values["grad_norm"], values["skip"] = self._descend(
            self._optimizer, values["loss"], self._grad_P, limit=self.config.max_grad_norm
        )
        return values

    @renamed_argument("unrolls", "rollouts")
    @np.errstate(over="ignore", invalid="ignore")
    def gradients(self, rollouts: Sequence[Rollout]) -> tuple[Tensor, Metrics]:
        """Compute the gradient of all env steps at once, [P], and its metrics; change nothing."""
        with self._keeping_buffers():
            steps, seen = self._answered(self._rows(self._ready(self._joined(rollouts))))
            values = self._write_gradient(self._rows_of(steps), steps, seen)
        return self._grad_P.clone(), self._metrics(values)

    @property
    def n_step(self) -> int:
        """Always 1: it learns from rollouts, not from transitions of n steps."""
        return 1

    def act(
        self, obs: NumpyArray, *, explore: bool = True, memory: Memory | None = None
    ) -> NumpyArray:
        """Choose an action for each observation, within what the environment takes.

        Args:
            obs: [N, ...].
            explore: Without it every action is the likeliest one, and nothing random is drawn.
            memory: Of `make_memory(N)`, for a policy with memory. Its states are replaced by the
                next ones.

        Returns:
            Actions, [N] int64 or [N, ...] float32.

        Raises:
            ConfigError: If a memory is missing, or was given to a policy without one.
            ShapeError: If the observations are not those of the environment it was made for.
        """
        if not explore:
            inputs = self.as_inputs(obs)
            return self.distribution.best(self._outputs(inputs, memory))
        return within(self.spec, self.explore(obs, memory=memory)[0])

    def explore(
        self, obs: NumpyArray, *, memory: Memory | None = None
    ) -> tuple[NumpyArray, FloatArray]:
        """Sample an action for each observation, and return its log-probability.

        Args:
            obs: [N, ...].
            memory: Of `make_memory(N)`, for a policy with memory. Its states are replaced by the
                next ones.

        Returns:
            Actions, [N] int64 or [N, ...] float32, and the logarithms of their probabilities, or
            densities, [N]. Numbers may lie outside of what the environment takes.

        Raises:
            ConfigError: If a memory is missing, or was given to a policy without one.
            ShapeError: If the observations are not those of the environment it was made for.
        """
        inputs = self.as_inputs(obs)
        drawn = self.distribution.draw(self._outputs(inputs, memory), self._rng)
        self.env_step += len(inputs)
        return drawn

    def values(self, obs: NumpyArray, *, memory: Memory | None = None) -> FloatArray:
        """Estimate the return from each observation.

        Args:
            obs: [N, ...].
            memory: Of `make_memory(N)`, for a policy with memory. It stays as it is.

        Returns:
            Values, [N].

        Raises:
            ConfigError: If a memory is missing, or was given to a policy without one.
            ShapeError: If the observations are not those of the environment it was made for.
        """
        inputs = self.as_inputs(obs)
        self._check_memory(memory, len(inputs))
        found: FloatArray = to_numpy(self._values(inputs, None if memory is None else memory.state))
        return found

    @property
    def _acting_net(self) -> ActorCriticNetwork:
        return self.net

    def _network_state(self) -> dict[str, Any]:
        return {"network": self.weights()}

    def _load_networks(self, state: Mapping[str, Any]) -> None:
        self.load_weights(state["network"])

    def _values(self, inputs: AnyArray, state_NS: AnyArray | None = None) -> AnyArray:
        """Compute the values of what `as_inputs` has returned; nothing is recorded."""
        if state_NS is None:
            return self.net.values(self._for_network(inputs))
        return self._recurrent.step(self._for_network(inputs), state_NS)[1]

    def _outputs(self, inputs: NumpyArray, memory: Memory | None) -> FloatArray:
        """Compute the actor's outputs, and the next states; nothing is recorded."""
        self._check_memory(memory, len(inputs))
        if memory is None:
            outputs_ND = self.net.act(self._for_network(inputs))
        else:
            found = self._recurrent.step(self._for_network(inputs), memory.state)
            outputs_ND, _, memory.state[:] = map(to_numpy, found)
        legal_ND: FloatArray = legal_logits(outputs_ND, self.spec.action_mask(inputs))
        return legal_ND

    @property
    def _recurrent(self) -> RecurrentActorCritic:
        return cast(RecurrentActorCritic, self.net)

    def _joined(self, rollouts: Sequence[Rollout]) -> Rollout:
        joined = join_rollouts(rollouts, self.spec, state_size=self.state_size)
        has_unused = joined.state is not None and not self.state_size
        return replace(joined, state=None) if has_unused else joined

    def _ready(self, rollout: Rollout) -> Rollout:
        """Return a rollout as it is learned from: observations normalised, and on the device."""
        return on_device(self._normalized(rollout), self.device)

    def _forward(
        self, inputs: AnyArray, recurrence: Recurrence | None = None, is_training: bool = True
    ) -> tuple[AnyArray, AnyArray, Any, Tensor | None]:
        """Return outputs, values, what `backward` needs, and the states behind each step if any."""
        seen, behind_TNS = self._for_network(inputs), None
        if recurrence is None:
            outputs_BD, *more = self.net.forward(seen)
        else:
            found = self._recurrent.unroll(seen, recurrence, is_training=is_training)
            outputs_BD, *more, behind_TNS = found
        return legal_logits(outputs_BD, self.spec.action_mask(inputs)), *more, behind_TNS

    def _rows_of(self, steps: Minibatch) -> Rows:
        return Rows.of_one(len(steps), self.gamma, self.device)

    def _write_gradient(
        self, rows: Rows, steps: Minibatch, seen: ForwardResult | None = None
    ) -> dict[str, Number]:
        kept = self._forward(steps.obs, steps.recurrence) if seen is None else seen.kept
        outputs_BD, value_B, saved, _ = kept
        values_1, *grads = actor_critic_loss(
            self.policy_loss, rows, self._settings, self.distribution, steps, outputs_BD, value_B
        )
        values = {name: number(value_1[0]) for name, value_1 in values_1.items()}
        if isinstance(values["loss"], float):
            self.check_finite(values["loss"])
        self.net.backward(saved, *grads)
        return values

"""The base of DDPG, TD3 and SAC: an actor for box actions, and critics.

The actor's optimiser also steps further tensors, such as a temperature. Each formula has a leading
axis of G members, which learn as one computation: the policies of a population, or a single policy.
It computes on arrays on a CPU, else on tensors.

Shape letters: E critics, K draws of noise, G members, B rows of each, A numbers of an action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import ConfigError
from ding_lite.rl.batch import FloatArray, NumpyArray, Transitions, to_numpy
from ding_lite.rl.formulas.q_learning import td_error
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.host_or_device import (
    AnyArray,
    Metrics,
    Number,
    as_tensor,
    computable,
    floats,
    metrics_of,
    nan_if,
    placed,
)
from ding_lite.rl.networks.action_values import Critics
from ding_lite.rl.networks.box_actors import BoxActor
from ding_lite.rl.networks.box_networks import BoxForm, BoxNetworks, Networks
from ding_lite.rl.networks.inputs import make_norm, read_norm, with_norm
from ding_lite.rl.networks.parts import encodes_images, for_inference
from ding_lite.rl.policies.base.config import PolicyConfig, check_no_description, own_config
from ding_lite.rl.policies.base.open_policy import OpenPolicy
from ding_lite.rl.policies.base.spaces import BoxActions, packed
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.compiled import Compile, Inputs, Outputs
from ding_lite.rl.weights.flat import FlatWeights, SavedNetwork
from ding_lite.rl.weights.flat_module import MakeModule
from ding_lite.rl.weights.optimizers import MakeOptimizer, Optimizer, make_optimizer
from ding_lite.settings.rules import COUNT, SHARE, STEP_SIZE, positive, setting

_CRITICS, _ACTOR = "critics", "actor"
"""The owners of the two losses, in messages."""


@dataclass(frozen=True, kw_only=True)
class BoxPolicyConfig(PolicyConfig):
    """The settings that DDPG, TD3 and SAC share."""

    actor_lr: float = setting(1e-3, STEP_SIZE)
    """Adam's learning rate for the actor. Higher learns faster; too high gets stuck. 1e-4 to 3e-3
    are usual."""
    critic_lr: float = setting(1e-3, STEP_SIZE)
    """Adam's learning rate for the critics; usually that of the actor or a few times as much."""
    n_step: int = setting(1, COUNT)
    """The number of rewards summed before bootstrapping; 1, or 3 to 5 with many collectors and a
    prioritized replay."""
    hidden: tuple[int, ...] = (64, 64)
    """The widths of the hidden layers of the actor and of each critic. Two layers of 256 are usual
    for robots; smaller ones are faster and suffice for small tasks. Images pass through
    convolutions first; the critics share their convolutions and the first layer after them."""
    batch_size: int = setting(128, COUNT)
    """The transitions of one update. More are more stable and slower; 64 to 256 are usual."""
    target_tau: float = setting(0.01, SHARE, positive)
    """The share of the weights in each update of the target weights. Higher follows faster and less
    stably; 0.001 to 0.02 are usual."""


_COLUMNS = ("reward", "terminated", "num_steps", "weight")
"""The columns of a batch that an update reads as they are; only a prioritized one has weights."""
ActorT = TypeVar("ActorT", bound=BoxActor)
ConfigT = TypeVar("ConfigT", bound=BoxPolicyConfig)


class BoxPolicy(OpenPolicy, ABC, Generic[ActorT, ConfigT]):
    """An actor and critics that learn from replay; subclasses define targets and actor losses."""

    config: ConfigT
    _config_type: type[ConfigT]
    _without_critics_at: int | None = None
    """The `train_iter` at which the weights of an actor alone were loaded."""
    _saved_networks = ("weights", "target")
    form: ClassVar[BoxForm[Any]]
    """The networks of the algorithm."""

    def __init__(
        self,
        spec: EnvSpec,
        config: ConfigT | Mapping[str, Any] | None = None,
        *,
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
            actor: Your own actor instead of the one that the config describes: a module, or a
                function of the spec that makes one. Its outputs depend on the policy.
            critic: Your own critic, likewise. It maps observations, and actions from -1 to 1,
                [B, A], to values, [B] or [B, 1]. If there are two critics, a function is called
                twice, and a module is copied with the layers of the copy initialised anew. Or one
                module returns both values, [B, 2], or an `nn.ModuleList` has a module for each.
            optimizer: An optimiser instead of Adam, such as `torch.optim.RMSprop`: a function of
                the parameters, called for the critics and for the actor. If it has an argument
                `lr`, it gets the config's.
            device: The device of learning, as PyTorch names it.
            compile: `"torch"` compiles your own networks for updates with `torch.compile`, and a
                function such as `partial(torch.compile, mode="max-autotune")` compiles them with
                that function. `"graph"` captures updates on a GPU as CUDA graphs.

        Raises:
            ConfigError: If actions are discrete or unbounded, a network or the optimiser cannot be
                used, or an actor's actions are out of bounds.
            ShapeError: If the outputs of a network have another shape.
        """
        config = own_config(config, self._config_type)
        super().__init__(
            spec,
            config,
            actor=actor,
            critic=critic,
            optimizer=optimizer,
            device=device,
            compile=compile,
        )
        name = type(self).__name__
        self._box = BoxActions(spec, policy=name, device=self.device)
        self._rng = make_rng(config.seed, name.lower())
        self._norm = make_norm(spec, normalize_obs=config.normalize_obs, device=self.device)
        if actor is not None and critic is not None:
            check_no_description(config)
        self._random = TorchRandom(config.seed, f"{name.lower()} networks", device=self.device)
        with self._drawing:
            self._networks: BoxNetworks[ActorT] = BoxNetworks(
                spec,
                config,
                self.form,
                actor=actor,
                critic=critic,
                rng=self._rng,
                device=self.device,
            )
        networks = self._networks
        self._compile_networks(networks.own_modules)
        self._weights, self._grads = networks.weights, networks.grads
        self._target = networks.target
        self._prepare()
        self._actor, border = networks.actor, networks.border
        weights_P, grads_P = self._weights.flat, self._grads.flat
        make = partial(make_optimizer, optimizer, captured=self._graph is not None)
        of_critics, own = partial(networks.parameters, "critics."), networks.own_parameters
        self._critic_optimizer = make(
            weights_P[:border],
            grads_P[:border],
            of_critics,
            views=own("critics."),
            lr=config.critic_lr,
        )
        of_actor = self._parameters_of_actor
        self._actor_optimizer = make(
            weights_P[border:], grads_P[border:], of_actor, views=own("actor."), lr=config.actor_lr
        )

    def _prepare(self) -> None:
        """Initialise further weights."""

    def _parameters_of_actor(self) -> list[nn.Parameter]:
        return self._networks.parameters("actor.")

    @property
    def own_modules(self) -> Mapping[str, Mapping[str, nn.Module]]:
        """The user's own modules and their targets, by the keys and names of saved tensors."""
        return self._networks.own_parts

    @property
    def fixed_weights(self) -> Mapping[str, float]:
        """The values of weights that are settings and are not learned, by name."""
        return {}

    @property
    def module(self) -> nn.Module:
        """The actor as a plain module for inference, with the weights of the policy.

        It maps observations as the environment returns them, [B, ...], to the best actions in the
        units of the environment, [B, ...]. With `normalize_obs` it normalises by the present
        statistics.
        """
        sees_trees = "actor" in self.parts or encodes_images(self.spec, self.config.images)
        return for_inference(self._networks.greedy, self.spec, self._norm, sees_trees=sees_trees)

    def q_values(self, obs: NumpyArray, action: NumpyArray) -> FloatArray:
        """Estimate the return of taking an action and then following the policy.

        Args:
            obs: [N, ...].
            action: One for each observation, [N, ...], in the environment's units.

        Returns:
            The values, [N]: the lowest among the critics.

        Raises:
            ShapeError: If the observations are not those of the policy's environment.
        """
        looked_at = self._placed(packed(obs, self.spec))
        action_1NA = placed(self._box.to_unit(action), self.device).unsqueeze(0)
        with self._drawing:
            q_E1N = self._networks.critics.forward(looked_at, action_1NA)
        lowest_N: FloatArray = q_E1N[:, 0].amin(0).cpu().numpy()
        return lowest_N

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite raises an error
    def learn(self, batch: Transitions, /) -> Metrics:
        """Do one update: a step of Adam for the critics and for the actor, then move the targets.

        The target of a transition that spans k env steps and leads to x' is
        reward + gamma^k (1 - terminated) V(x'), with the V(x') of the policy. A truncated
        transition is bootstrapped like any other.

        Args:
            batch: B transitions, tensors or arrays. For the critics, transitions of a prioritized
                replay are weighted by their importance weights.

        Returns:
            `loss`, that of the critics; `q_mean`, the mean value of the actions taken;
            `actor_loss` in updates of the actor; for prioritized transitions also `td_error`, [B],
            the distance of each transition's values from its target, averaged over the critics.

        Raises:
            NonFiniteError: If a loss is NaN or infinite. The weights that it updates are then
                unchanged. On a device it is raised when the metrics are read.
            ShapeError: If the observations are not those of the policy's environment.
        """
        rows = Rows.of_one(len(batch), self.config.gamma, self.device)
        self._note(batch.obs)
        inputs = {name: getattr(batch, name, None) for name in _COLUMNS}
        inputs["obs"], inputs["next_obs"], inputs["action"] = self._tensors_of(batch)
        inputs["noise"] = self.draw_noise(len(batch))
        checks = [partial(check, update=self._present_update) for check in self._checks]
        values = self._run_update(inputs, rows=rows, improves=self.actor_is_due)
        self.train_iter += 1
        return metrics_of(values, checks[0], actor_loss=checks[1])

    @property
    def _checks(self) -> list[Callable[..., None]]:
        """The checks of the losses of the critics and of the actor."""
        return [partial(self.check_finite, owner=owner) for owner in (_CRITICS, _ACTOR)]

    def _update(self, inputs: Inputs, *, rows: Rows, improves: bool) -> Outputs:
        seen: Any = SimpleNamespace(**inputs)
        weight_1B = None if seen.weight is None else rows.fold(seen.weight)
        noise_K1BA = placed(seen.noise, self.device).unsqueeze(1)
        next_1B = self.next_values([self], self._networks, seen.next_obs, noise_K1BA)
        values_G, error_E1B = update_critics(
            self._networks.critics, rows, seen, seen.obs, seen.action, next_1B, weight_1B
        )
        values = {name: each_G[0] for name, each_G in values_G.items()}
        grad_P, weights_P = self._grads.flat, self._weights.flat
        values["loss"] = self.step_critics(values["loss"], grad_P, weights_P)
        if improves:
            of_actor = self.improve_actors([self], self._networks, rows, seen.obs, noise_K1BA)
            values |= {name: each_G[0] for name, each_G in of_actor.items()}
            # NaN, as on a device the critics' loss is after a skipped step, skips this one, too.
            loss = values["actor_loss"] + 0.0 * values["loss"]
            values["actor_loss"] = self.step_actor(loss, grad_P, weights_P, self._target.flat)
        if weight_1B is not None:
            values["td_error"] = abs(error_E1B[:, 0]).mean(0)
        return values

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights of an actor, as another policy's `weights` returned them.

        Raises:
            ShapeError: If a name or a shape is not this policy's. Then nothing is changed.
        """
        super().load_weights(weights)
        self._without_critics_at = self.train_iter

    def td_errors(self, transitions: Transitions) -> FloatArray:
        """Compute the distance of transitions' values from their targets, without learning.

        `mw.add_to(replay, priority=policy.td_errors)` uses them for initial priorities. Where
        targets are noisy, as in TD3 and SAC, the noise is that of the next update, and the random
        stream does not advance.

        Args:
            transitions: B transitions, arrays or tensors.

        Returns:
            Absolute errors, [B] float32, averaged over the critics, as in `learn`.

        Raises:
            ConfigError: If the policy has loaded the weights of another actor, and has not learned
                since: its critics know nothing of that actor.
            ShapeError: If the observations are not those of the policy's environment.
        """
        if self._without_critics_at == self.train_iter:
            raise ConfigError(
                f"The weights that this {type(self).__name__} has loaded are of an actor, without "
                f"the critics that errors need. Leave `priority` out on collectors: new "
                f"transitions then get the highest priority."
            )
        count = len(transitions)
        if not count:  # the first steps complete no transition of n steps
            return np.zeros(0, dtype=np.float32)
        rows = Rows.of_one(count, self.config.gamma, self.device)
        obs, next_obs, action_1BA = self._tensors_of(transitions)
        before = rng_state(self._rng)
        with self._drawing:
            noise_K1BA = placed(self.draw_noise(count), self.device).unsqueeze(1)
            next_1B = self.next_values([self], self._networks, next_obs, noise_K1BA)
            q_E1B = computable(self._networks.critics.forward(obs, action_1BA))
        set_rng_state(self._rng, before)
        errors_E1B = td_error(rows, transitions, q_E1B, next_1B)
        errors_B: FloatArray = to_numpy(abs(errors_E1B[:, 0]).mean(0))
        return errors_B

    @property
    def _actor_every(self) -> int:
        return 1

    @property
    def actor_is_due(self) -> bool:
        """Whether the present update also updates the actor."""
        return (self.train_iter + 1) % self._actor_every == 0

    @classmethod
    @abstractmethod
    def next_values(
        cls,
        policies: Sequence[Self],
        networks: Networks[ActorT],
        next_obs: Tensor,
        noise_KGBA: Tensor,
    ) -> AnyArray:
        """Estimate the return from the next observations of transitions, [G, B]."""

    @classmethod
    @abstractmethod
    def improve_actors(
        cls,
        policies: Sequence[Self],
        networks: Networks[ActorT],
        rows: Rows,
        obs: Tensor,
        noise_KGBA: Tensor,
    ) -> dict[str, AnyArray]:
        """Write the gradients of actors; return metrics, [G] each, including `actor_loss`."""

    def draw_noise(self, count: int) -> FloatArray:
        """Draw the noise of an update of B transitions, [K, B, A]: K is 0 for DDPG, which has none.

        The first draw is for the next actions of targets, the second for those that improve the
        actor.
        """
        return np.empty((0, count, self._box.size), dtype=np.float32)

    def step_critics(self, loss: Number, grad_P: Tensor, weights_P: Tensor) -> Number:
        """Step along the critics' part of a flat gradient.

        Returns:
            The loss; NaN on a device if the step was skipped, as the loss or the gradient is not
            finite.

        Raises:
            NonFiniteError: On a CPU, if the loss or the gradient is not finite.
        """
        optimizer, border = self._critic_optimizer, self._networks.border
        optimizer.lr = self.config.critic_lr  # a loaded state may have changed it
        parts = grad_P[:border], weights_P[:border]
        _, skip = self._descend(optimizer, loss, *parts, owner=_CRITICS)
        return nan_if(skip, loss)

    def step_actor(
        self, loss: Number, grad_P: Tensor, weights_P: Tensor, target_P: Tensor
    ) -> Number:
        """Step along the actor's part of a flat gradient, then move the targets.

        It returns and raises what `step_critics` does.
        """
        optimizer, border = self._actor_optimizer, self._networks.border
        optimizer.lr = self.config.actor_lr
        parts = grad_P[border:], weights_P[border:]
        _, skip = self._descend(optimizer, loss, *parts, owner=_ACTOR)
        tau = self.config.target_tau
        self._networks.follow(weights_P, target_P, tau if skip is None else tau * (1.0 - skip))
        return nan_if(skip, loss)

    def _tensors_of(self, batch: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        action_1BA = placed(self._box.to_unit(batch.action), self.device).unsqueeze(0)
        return self._placed(batch.obs), self._placed(batch.next_obs), action_1BA

    @property
    def flat_weights(self) -> tuple[FlatWeights, FlatWeights]:
        """All weights, and the target weights, not copied."""
        return self._weights, self._target

    @property
    def _acting_net(self) -> SavedNetwork:
        return self._networks.acting

    @property
    def _optimizers(self) -> Mapping[str, Optimizer]:
        return {"critic_": self._critic_optimizer, "actor_": self._actor_optimizer}

    def _network_state(self) -> dict[str, Any]:
        state = self._networks.state_dict()
        return {**state, "weights": with_norm(state["weights"], self._norm)}

    def _load_networks(self, state: Mapping[str, Any]) -> None:
        norm, weights = read_norm(state["weights"], self.spec, self._norm)
        self._networks.load_state_dict({"weights": weights, "target": state["target"]})
        self._norm, self._without_critics_at = norm, None


def update_critics(
    critics: Critics,
    rows: Rows,
    batch: Transitions,
    obs: Tensor,
    action_GBA: Tensor,
    next_value_GB: AnyArray,
    weight_GB: AnyArray | None = None,
) -> tuple[dict[str, AnyArray], AnyArray]:
    """Write the gradient of the mean squared errors of all critics, which share their targets.

    The rows of `batch` are ordered by member, and actions are from -1 to 1. Weights are 1 if None.

    Returns:
        `loss`, the sum over the critics, and `q_mean`, [G] each; values minus targets, [E, G, B].
    """
    q, saved = critics.forward_saving(obs, action_GBA)
    q_EGB = computable(q)
    error_EGB = td_error(rows, batch, q_EGB, next_value_GB)
    weighted_EGB = error_EGB if weight_GB is None else error_EGB * floats(weight_GB)
    critics.backward(saved, as_tensor(rows.per_size(2.0 * weighted_EGB)))
    loss_G, q_mean_G = rows.mean(weighted_EGB * error_EGB).sum(0), rows.mean(q_EGB).sum(0)
    return {"loss": loss_G, "q_mean": q_mean_G / len(q_EGB)}, error_EGB

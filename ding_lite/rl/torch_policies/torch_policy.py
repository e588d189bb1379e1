"""The base for algorithms in plain PyTorch that learn from transitions.

A subclass makes its networks in `build`, chooses actions in `choose` and defines its `loss`. It
inherits acting in batches, flat weights, Adam, target networks, publishing, averaging of gradients,
importance weights, checkpoints with exact resume, and support for populations.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from typing import Any, ClassVar, Generic, Self, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import ConfigError, ShapeError, kind_of
from ding_lite.nest import leaves
from ding_lite.rl.batch import Array, NumpyArray, Sequences, Transitions
from ding_lite.rl.host_or_device import Metrics, as_tensor, computable, number, placed
from ding_lite.rl.memory import Memory
from ding_lite.rl.networks.inputs import make_norm
from ding_lite.rl.policies.base.config import own_config
from ding_lite.rl.policies.base.gradient_policy import GradientPolicy
from ding_lite.rl.policies.base.open_policy import Learners
from ding_lite.rl.policies.base.spaces import check_obs, has_illegal, packed
from ding_lite.rl.seeding import spawn_seeds
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_policies.attributes import Attributes, run_build
from ding_lite.rl.torch_policies.config import ConfigT, config_type
from ding_lite.rl.torch_policies.losses import (
    LossMetrics,
    checked,
    loss_and_metrics,
    mean_loss,
    read_metrics,
)
from ding_lite.rl.torch_policies.networks import Follower, find_networks
from ding_lite.rl.torch_random import TorchRandom, to_words
from ding_lite.rl.weights.compiled import Compile
from ding_lite.rl.weights.flat import FlatWeights
from ding_lite.rl.weights.flat_module import FlatModule, acting, check_held
from ding_lite.rl.weights.optimizers import MakeOptimizer
from ding_lite.settings.rules import check_all, inside, positive, whole

logger = logging.getLogger(__name__)

_ON_HOST = {"serial", "burn_in", "replay_id"}
"""The fields of a batch that stay on the host."""
ChangeModule: TypeAlias = Callable[[nn.Module], nn.Module | None]


class TorchPolicy(GradientPolicy, Generic[ConfigT]):
    """Learns from transitions by the gradient of a loss in plain PyTorch.

    A subclass names its config, as in `class QRDQN(TorchPolicy[QRDQNConfig])`; without a name it is
    the class `QRDQNConfig` of the same module, or else `TorchPolicyConfig`. Modules and parameters
    that `build` sets as attributes are learned. Tensors, arrays, numbers, texts and None that
    `build` sets, also in lists and dicts, and that `loss` or `choose` change, are saved but not
    published: values that collectors need must be buffers of a module. So are generators of NumPy
    and PyTorch, and objects with `state_dict` and `load_state_dict`, such as optimisers; other
    objects are not saved. PyTorch's random numbers in `build`, `choose` and `loss` come from the
    policy's own stream, so that fixed seeds give the same weights.

    Args:
        spec: The spec of the environments, `envs.spec`.
        config: The settings, or a dict of them.
        optimizer: An optimiser instead of Adam, such as `torch.optim.RMSprop`: a function of the
            parameters. If it has an argument `lr`, it gets the config's.
        device: The device of the networks, as PyTorch names it.
        compile: `"torch"` compiles `loss` with `torch.compile`, and a function such as
            `partial(torch.compile, mode="max-autotune")` compiles it with that function.

    Raises:
        ConfigError: If `build` makes no network, or one that cannot be learned.

    Example:
        >>> from ding_lite.rl import TorchPolicyConfig, make_envs
        >>> class Linear(TorchPolicy[TorchPolicyConfig]):
        ...     def build(self):
        ...         self.net = nn.Linear(4, 2)
        ...
        ...     def choose(self, obs, explore):
        ...         return self.net(obs).argmax(-1)
        ...
        ...     def loss(self, batch):
        ...         q = self.net(batch.obs).gather(1, batch.action[:, None])[:, 0]
        ...         return (q - batch.reward) ** 2, {"q_mean": q.mean()}
        >>> envs = make_envs("CartPole-v1", 3)
        >>> Linear(envs.spec).act(envs.obs).shape
        (3,)
    """

    config: ConfigT
    _saved_networks = ("weights", "targets", "attributes")
    _flat: FlatModule
    generator: torch.Generator
    """Draws random numbers on `device`; its state is saved."""
    _compiled_loss: Callable[[Any], tuple[Tensor, LossMetrics]] | None = None
    _used: Sequence[bool] | None = None
    """Which parameters the loss of this update depends on; None if the gradient comes from
    elsewhere."""
    _is_checked: bool = False
    """Whether an update has shown that the loss depends on no parameters but the policy's."""
    _has_warned: bool = False
    """Whether a warning has told of an action that is not legal."""
    _chosen: ClassVar[tuple[str, ...]] = ("actions",)
    """The values that `choose` returns before the next states."""
    changes: tuple[ChangeModule, ...] = ()
    """The changes by `change_networks` since `build`."""
    state_size: int = 0
    """The length of the recurrent state of one environment; `build` sets it for a policy with
    memory. `choose` then gets the states, [N, S], as a third argument, and also returns the next
    states."""

    def __init__(
        self,
        spec: EnvSpec,
        config: ConfigT | Mapping[str, Any] | None = None,
        *,
        optimizer: MakeOptimizer | None = None,
        device: str | torch.device = "cpu",
        compile: Compile = None,
    ) -> None:
        own = {*vars(self)}
        config = cast(ConfigT, own_config(config, self._settings_type()))
        super().__init__(spec, config, optimizer=optimizer, device=device, compile=compile)
        name = type(self).__name__.lower()
        self._random = TorchRandom(config.seed, name, device=self.device)
        draws_there = self.device.type != "meta"  # a device without data has no generator
        self.generator = torch.Generator(self.device if draws_there else "cpu")
        self.generator.manual_seed(spawn_seeds(config.seed, f"{name} generator", count=1)[0])
        self._norm = make_norm(spec, normalize_obs=config.normalize_obs, device=self.device)
        self._followers: list[Follower] = []
        with TorchRandom(config.seed, f"{name} networks"):
            self._attributes = Attributes(self, run_build(self, own))
        self._flatten()

    def _flatten(self) -> None:
        networks = find_networks(self, self._followers)
        self._flat = FlatModule(networks, device=self.device, name=type(self).__name__)
        for follower in self._followers:
            follower.attach(self._flat)
        self._optimizer = self._make_optimizer(self._flat)

    # -- methods of a subclass -----------------------------------------------------------

    @abstractmethod
    def build(self) -> None:
        """Make the networks, as attributes: modules and parameters that are learned.

        Make the target networks too, by `follow`. The spec, the config and the device are already
        set; modules are moved to the device afterwards.
        """

    @abstractmethod
    def choose(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - see below
        """Choose an action for each observation, as `choose(obs, explore)`, without autograd.

        `obs` are observations on the device, [N, ...], as the environment returns them, or
        normalised with `normalize_obs`. Observations of several parts are packed:
        `self.spec.unpack(obs)` returns the parts and `self.spec.action_mask(obs)` the legal
        actions. With `explore` actions should explore, otherwise they should be the best ones. With
        a `state_size` the states, [N, S], are a third argument.

        Returns:
            A tensor of actions, [N] or [N, ...], in the environment's units; with a `state_size` a
            tuple of actions and next states.
        """

    @abstractmethod
    def loss(self, batch: Any) -> tuple[Tensor, LossMetrics]:  # noqa: ANN401 - Transitions, by default
        """Compute the loss of each transition, recorded by autograd.

        Args:
            batch: B transitions, tensors on the device.

        Returns:
            The loss of each transition, [B], and metrics, single numbers. The update steps along
            the gradient of the mean loss, with the importance weights of a prioritized replay. A
            loss of a single number is used directly, without such weights. With prioritized
            transitions the metrics include `td_error`, [B], which sets their priorities.
        """

    # -- methods for a subclass ----------------------------------------------------------

    def follow(self, network: nn.Module, *, tau: float, every: int = 1) -> nn.Module:
        """Return a copy of a network that follows it, as a target network; for use in `build`.

        Args:
            network: A network that this policy learns.
            tau: The share of the learned weights in each update of the copy; 1 copies them.
            every: The number of updates of the policy per update of the copy.
        """
        check_all(inside(0.0, 1.0, tau=tau), positive(tau=tau), whole(1, every=every))
        follower = Follower(network, tau=tau, every=every, device=self.device)
        self._followers.append(follower)
        return follower.module

    @contextmanager
    def frozen(self, *networks: nn.Module) -> Iterator[None]:
        """Let gradients pass through networks to their inputs, but not to their weights.

        For example an actor's loss uses the values that a frozen critic gives to its actions.
        """
        learned = [p for network in networks for p in network.parameters() if p.requires_grad]
        for parameter in learned:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in learned:
                parameter.requires_grad_(True)

    # -- the policy ----------------------------------------------------------------------

    @classmethod
    def _settings_type(cls) -> type[Any]:
        return config_type(cls)

    @property
    def has_own_network(self) -> bool:
        """Whether the user gave a network, which is always so."""
        return True

    @contextmanager
    def changing_weights(self) -> Iterator[FlatWeights]:
        """Yield the weights by name, to change them in place; targets change by the same amounts.

        A mutation uses this. The optimiser's state does not change.
        """
        with ExitStack() as stack:
            for follower in self._followers:
                stack.enter_context(follower.moving_along())
            yield self._flat.weights

    @property
    def own_modules(self) -> Mapping[str, Mapping[str, nn.Module]]:
        """The learned networks, by the keys and names of their saved tensors."""
        return {"weights": {"": self._flat.module}}

    def change_networks(self, change: ChangeModule) -> bool:
        """Replace networks that are attributes, and their targets; return whether any changed.

        A mutation uses this. Policies made by `like` get the same changes. The optimiser starts
        anew. Nothing changes if networks share parameters. A network stays unchanged if a further
        optimiser holds its parameters, or if it, or a part of it, has a target and one of the two
        is not an attribute.

        Args:
            change: A function of a network or target that returns its replacement, or None to keep
                it.
        """
        found = dict.fromkeys(v for v in vars(self).values() if isinstance(v, nn.Module))
        parameters = [id(p) for module in found for p in module.parameters()]
        if len(set(parameters)) < len(parameters):
            return False
        optimizers = [v for _, v in leaves(vars(self)) if isinstance(v, torch.optim.Optimizer)]
        held = {p for o in optimizers for group in o.param_groups for p in group["params"]}
        found = {module: None for module in found if held.isdisjoint(module.parameters())}
        pairs = [(follower.network, follower.module) for follower in self._followers]
        stuck = {part for pair in pairs if not found.keys() >= {*pair} for part in pair}
        new = {}
        for module in found:
            changed = None if stuck & {*module.modules()} else change(module)
            if changed is not None:
                new[module] = changed
        for name, value in [*vars(self).items()]:
            if isinstance(value, nn.Module) and value in new:
                setattr(self, name, new[value])
        for follower, (network, copy) in zip(self._followers, pairs, strict=True):
            follower.replace(new.get(network, network), new.get(copy, copy))
        if new:
            self.changes = (*self.changes, change)
            self._compiled_loss = None
            for parameter in self._flat.module.parameters():  # detach from the former flat tensor
                parameter.data, parameter.grad = parameter.data.clone(), None
            self._flatten()
        return bool(new)

    def like(self, config: Any = None, **replaced: object) -> Self:  # noqa: ANN401 - as in the base
        """Make another policy of the same kind, with the same parts and the same `changes`."""
        twin = self._remade(config, **replaced)
        for change in self.changes:
            twin.change_networks(change)
        twin._freeze_as(self)
        return twin

    @property
    def module(self) -> nn.Module:
        """A plain module for inference, from observations, [B, ...], to the best actions.

        With a `state_size` it also takes states, [B, S], and returns the next states after actions.
        """
        return acting(_Greedy(self, self._flat.module))

    def act(
        self, obs: NumpyArray, *, explore: bool = True, memory: Memory | None = None
    ) -> NumpyArray:
        """Choose an action for each observation.

        Args:
            obs: [N, ...].
            explore: Whether actions should explore.
            memory: A result of `make_memory(N)`, for a policy with memory. Its states are replaced
                by the next ones.

        Returns:
            Actions, [N] int64 or [N, ...].

        Raises:
            ConfigError: If a memory is missing, or is given to a policy without memory.
            ShapeError: If the observations are not those of the policy's environment, or `choose`
                returns values of another form.
        """
        obs = packed(obs, self.spec)
        action, *_ = self._choose(obs, explore, memory)
        return self._as_actions(action, obs, explore=explore)

    def learn(self, batch: Any, /) -> Metrics:  # noqa: ANN401 - Transitions, by default
        """Do one update: a step of the optimiser along the gradient, then move the targets.

        Args:
            batch: B transitions, tensors or arrays. Transitions of a prioritized replay are
                weighted by their importance weights.

        Returns:
            `loss` and the metrics of the loss; `lr` if the learning rate falls.

        Raises:
            NonFiniteError: If the loss is NaN or infinite. The weights are then unchanged. On a
                device other than the CPU it is raised when the metrics are read, so that the host
                need not wait.
            ShapeError: If the observations are not those of the policy's environment, or the loss
                does not have the shape [B].
        """
        moved = self._on_device(batch)
        if self._norm is not None:
            is_sequence = isinstance(batch, Sequences)
            self._norm.update(batch.obs[:, :-1][batch.mask] if is_sequence else batch.obs)
        values = self._write_gradient(self._normalized(moved))
        self._improve(values["loss"])
        if self.config.lr_end is not None:
            values["lr"] = self._optimizer.lr
        return self._metrics(values)

    def td_errors(self, transitions: Transitions) -> NumpyArray:
        """Compute the `td_error` that `loss` reports, [B], without learning.

        Collectors of Ape-X use it for initial priorities:
        `mw.add_to(replay, priority=policy.td_errors)`.

        Args:
            transitions: B transitions, arrays or tensors.

        Raises:
            ConfigError: If `loss` reports no `td_error`, or learns by an optimiser of its own.
        """
        if not len(transitions):  # the first steps complete no transition of n steps
            return np.zeros(0, dtype=np.float32)
        batch = self._normalized(self._on_device(transitions))
        with self._acting():
            try:
                _, metrics = loss_and_metrics(self.loss(batch), type(self).__name__)
            except RuntimeError as error:
                if not self._attributes.optimizers:
                    raise
                raise ConfigError(
                    f"`td_errors` calls `loss` of {type(self).__name__} without gradients, and it "
                    f"raised {type(error).__name__}: {error}. Let `loss` step further optimisers "
                    f"only `if torch.is_grad_enabled():`."
                ) from error
        if "td_error" not in metrics:
            raise ConfigError(
                f"`loss` of {type(self).__name__} reports no `td_error`. Return it among the "
                f'metrics, [B]: `{{"td_error": error.abs()}}`.'
            )
        errors: NumpyArray = cast(Tensor, metrics["td_error"]).abs().cpu().numpy()
        return errors

    def gradients(self, batch: Any) -> tuple[Tensor, Metrics]:  # noqa: ANN401 - as `learn`
        """Compute the gradient of one update, [P], and its metrics, without learning.

        Raises:
            ConfigError: If running means, such as those of BatchNorm, change, or an attribute is a
                further optimiser: a gradient that is sent to another node does not contain that.
        """
        self._check_only_loss_learns()
        with self._keeping_buffers():
            values = self._write_gradient(self._normalized(self._on_device(batch)))
        self._used = None
        return self._grad_P.clone(), self._metrics(values)

    def _check_only_loss_learns(self) -> None:
        if names := self._attributes.optimizers:
            raise ConfigError(
                f"A gradient that is sent to another node does not contain the steps of "
                f"{', '.join(f'`self.{name}`' for name in names)}. Add the loss of what it learns "
                f"to the one that `loss` returns, or let learners average their gradients: "
                f"`policy.data_parallel(learners)`."
            )

    @property
    def _acting_net(self) -> FlatModule:
        return self._flat

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights that another policy's `weights` returned, into the targets too.

        Raises:
            ShapeError: If a name or a shape is not this policy's. Then nothing is changed.
        """
        super().load_weights(weights)
        for follower in self._followers:
            follower.copy()

    def _network_state(self) -> dict[str, Any]:
        return {
            "weights": self.weights(),
            "targets": {str(k): f.flat.snapshot() for k, f in enumerate(self._followers)},
            "attributes": self._attributes.changed(),
        }

    def _load_networks(self, state: Mapping[str, Any]) -> None:
        self.load_weights(state["weights"])
        for k, follower in enumerate(self._followers):
            follower.flat.load(state["targets"][str(k)])
        self._attributes.load(state["attributes"])

    def data_parallel(self, learners: Learners) -> None:
        """Average gradients with the same policy on other nodes, as in the base class.

        Optimisers that are attributes use the mean of the gradients, too. All learners must call
        their `step` equally often.
        """
        is_first = self._take_mean is None
        super().data_parallel(learners)
        if is_first and self._take_mean is not None:
            self._attributes.average(lambda tensor: cast(Any, self._take_mean)(tensor))

    def _with_own_random(self, state: Mapping[str, Any]) -> dict[str, Any]:
        attributes = {**state["attributes"], **self._attributes.generators()}
        return {**super()._with_own_random(state), "attributes": attributes}

    def _random_state(self) -> dict[str, Any]:
        return {"rng": {**self._random.state_dict(), "generator": self.generator.get_state()}}

    def _load_random_state(self, state: Mapping[str, Any]) -> None:
        self._random.load_state_dict(state["rng"])
        words = to_words(state["rng"]["generator"])
        if words.shape == self.generator.get_state().shape:  # else it is of another kind of device
            self.generator.set_state(words)

    def reseed(self, seed: int) -> None:
        """Continue with the random numbers of another seed."""
        self._random.reseed(seed)
        self.generator.manual_seed(spawn_seeds(seed, "generator", count=1)[0])
        self._attributes.reseed(seed)

    # -- helpers -------------------------------------------------------------------------

    @contextmanager
    def _acting(self) -> Iterator[None]:
        with self._random, torch.no_grad():
            self._flat.train(False)
            yield

    def _choose(self, obs: NumpyArray, explore: bool, memory: Memory | None) -> tuple[Any, ...]:
        """Return what `choose` returned, one value for each of `_chosen`; keep the next states."""
        inputs = self._placed(np.asarray(obs, dtype=self.spec.obs_dtype))
        self._check_memory(memory, len(obs))
        states = [] if memory is None else [as_tensor(memory.state).to(self.device)]
        with self._acting():
            found = self.choose(inputs, explore, *states)
        values = tuple(found) if isinstance(found, tuple | list) else (found,)
        expected = (*self._chosen, *("next states" for _ in states))
        if len(values) != len(expected):
            raise ShapeError(
                f"`choose` of {type(self).__name__} returned {kind_of(found)}"
                f"{f' of {len(values)}' if isinstance(found, tuple | list) else ''}; "
                f"{', '.join(expected)} were expected."
            )
        if memory is not None:
            what = f"`choose` of {type(self).__name__} returned the next states"
            memory.state[:] = checked(values[-1], memory.state.shape, what=what).cpu().numpy()
        return values[: len(self._chosen)]

    def _as_actions(self, chosen: Tensor, obs: NumpyArray, *, explore: bool) -> NumpyArray:
        what = f"`choose` of {type(self).__name__} returned the actions"
        checked(chosen, (len(obs), *self.spec.action_shape), what=what)
        if self.spec.action_dtype is np.int64 and chosen.is_floating_point():
            raise ShapeError(f"{what} as {chosen.dtype}; whole numbers were expected.")
        if explore:
            self.env_step += len(obs)
        actions: NumpyArray = chosen.cpu().numpy().astype(self.spec.action_dtype, copy=False)
        if self.spec.has_action_mask and not self._has_warned:
            self._has_warned = has_illegal(actions, obs, self.spec)
            if self._has_warned:
                logger.warning(
                    "`choose` of %s returned an action that `action_mask` of %s excludes. "
                    "`self.spec.action_mask(obs)` returns the legal ones",
                    type(self).__name__,
                    self.spec.env_id,
                )
        return actions

    def _on_device(self, batch: Transitions | Sequences) -> Any:  # noqa: ANN401 - of the type of the batch
        if isinstance(batch, Sequences):
            check_obs(batch.obs[:, 0], self.spec)
        else:
            check_obs(batch.obs, self.spec)
            check_obs(batch.next_obs, self.spec)
        if isinstance(batch.obs, Tensor) and batch.obs.device == self.device:
            return batch
        values = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name not in _ON_HOST}
        extra = values.pop("extra", {})
        moved: Any = {n: self._to_device(v) for n, v in values.items() if v is not None}
        if extra:
            moved["extra"] = {name: self._to_device(value) for name, value in extra.items()}
        return replace(batch, **moved)

    def _to_device(self, value: Array) -> Tensor:
        return placed(value if isinstance(value, Tensor) else np.asarray(value), self.device)

    def _write_gradient(self, batch: Any) -> dict[str, Any]:  # noqa: ANN401 - what `loss` takes
        self._check_not_replaced()
        if self._compiler is not None and self._compiled_loss is None:
            self._compiled_loss = self._compiler(self.loss)
        kind = type(self).__name__
        with self._random, torch.enable_grad():
            self._flat.train(True)
            found = (self._compiled_loss or self.loss)(batch)
            loss_B, metrics = loss_and_metrics(found, kind)
            loss = self._mean(loss_B, batch) if loss_B.requires_grad else loss_B
        if not loss_B.requires_grad:
            raise ConfigError(
                f"The loss of {kind} has no gradient, so that nothing can be "
                f"learned from it. Does `loss` use `torch.no_grad()`, `detach()` or numpy for all "
                f"that it computes, or is every network frozen?"
            )
        if not self._is_checked:
            check_held([loss], self._flat.module, name=f"The loss of {kind}")
            self._is_checked = True
        value = number(computable(loss))
        if isinstance(value, float):
            self.check_finite(value)
        self._used = self._flat.backward(loss)
        return {"loss": value, **read_metrics(metrics, batch, kind)}

    def _check_not_replaced(self) -> None:
        for name, network in self._flat.module.named_children():
            found = getattr(self, name, None)
            if found is network:
                continue
            learned = set(network.parameters())  # a compiled network has the same ones
            if not isinstance(found, nn.Module) or not learned.issuperset(found.parameters()):
                raise ConfigError(
                    f"`self.{name}` of {type(self).__name__} was replaced after `build`, so that "
                    f"it would not be learned. Make it in `build`, and load weights into it: "
                    f"`self.{name}.load_state_dict(...)`."
                )

    def _mean(self, loss_B: Tensor, batch: Any) -> Tensor:  # noqa: ANN401 - what `loss` takes
        return mean_loss(loss_B, batch, type(self).__name__)

    def _used_parameters(self) -> Sequence[bool]:
        used, self._used = self._used, None
        if used is None or self.reduce_gradient is not None:  # it is of other nodes, too
            used = self._flat.are_used()
        return used

    def _after_step(self, skip: Tensor | None = None) -> None:
        super()._after_step(skip)
        for follower in self._followers:
            follower.follow(self.train_iter, skip=skip)


class _Greedy(nn.Module):
    def __init__(self, policy: TorchPolicy[Any], networks: nn.Module) -> None:
        super().__init__()
        self.networks = networks
        self._policy = policy

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return self._policy.clone().module

    def __reduce__(self) -> tuple[Any, ...]:  # `torch.save`: `choose` is a method of the policy
        policy = self._policy
        parts = {name: part for name, part in policy._parts.items() if name != "optimizer"}
        made_of = policy.spec, policy.config, parts, policy.changes
        return _loaded_module, (type(policy), *made_of, policy._network_state())

    def forward(self, obs: Any, state: Tensor | None = None) -> Any:  # noqa: ANN401 - a tensor or two
        choose: Callable[..., Any] = self._policy.choose
        obs = self._policy._seen(obs)
        if state is not None:
            action, *_, state = choose(obs, False, state)
            return action, state
        found = choose(obs, False)
        return found[0] if isinstance(found, (tuple, list)) else found


def _loaded_module(
    kind: Callable[..., TorchPolicy[Any]],
    spec: EnvSpec,
    config: object,
    parts: Mapping[str, Any],
    changes: tuple[ChangeModule, ...],
    state: Mapping[str, Any],
) -> nn.Module:
    policy = kind(spec, config, **parts)
    for change in changes:
        policy.change_networks(change)
    policy._load_networks(state)
    return policy.module

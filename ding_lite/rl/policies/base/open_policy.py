"""The base of all policies: a user's own parts, copies, and data-parallel learning."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import (
    CheckpointError,
    ConfigError,
    NonFiniteError,
    did_you_mean,
    kind_of,
)
from ding_lite.rl.batch import Array, NumpyArray
from ding_lite.rl.envs.actions import ActionForm
from ding_lite.rl.formulas.schedules import Schedule, linear
from ding_lite.rl.host_or_device import AnyArray, Number, on, placed, usable_device
from ding_lite.rl.memory import Memory
from ding_lite.rl.networks.inputs import RunningNorm, read_norm, with_norm
from ding_lite.rl.packing import ArrayT, Tree, batch_of_one
from ding_lite.rl.policies.base.spaces import check_obs, packed
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.rl.spec import EnvSpec, check_spec
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.compiled import (
    CapturedUpdate,
    Compile,
    CudaRecorder,
    Inputs,
    Outputs,
    check_captures,
    compiler_of,
)
from ding_lite.rl.weights.flat import LearnedNetwork, SavedNetwork, clip_norm
from ding_lite.rl.weights.flat_module import FlatModule, copied
from ding_lite.rl.weights.optimizers import Optimizer, TorchOptimizer, make_optimizer
from ding_lite.rl.wrong_calls import ELSEWHERE, Elsewhere, explained


class Learners(Protocol):
    """The group of learners, such as a `Group`."""

    @property
    def rank(self) -> int:
        """The rank of this node in the group, from 0."""
        ...

    def broadcast(self, value: object, /) -> Any:  # noqa: ANN401 - of any type, as it was given
        """Return the value that rank 0 passed."""
        ...

    def averager(self) -> Callable[[Tensor], None]:
        """Return a collective function that replaces a tensor by the mean over the group."""
        ...


class OpenPolicy(ABC):
    """A policy with networks and an optimiser that a user may replace."""

    config: Any
    _config_type: type[Any]
    _saved_networks: ClassVar[tuple[str, ...]]
    """The keys of the networks in the state."""
    _optimizer: Optimizer
    _rng: np.random.Generator
    _random: TorchRandom
    """The stream that a user's networks draw from."""
    _lr_at: Schedule
    """The learning rate as a function of the number of updates done."""
    _norm: RunningNorm | None
    """The statistics by which observations are normalised."""
    _sees_trees: bool
    """Whether the network unpacks observations of several parts by itself."""
    _update: Callable[..., Outputs]
    """Does an update without the counts, which the host keeps. Only policies with updates that can
    be captured have it."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in {"__init__", "act", "learn"} & vars(cls).keys():
            setattr(cls, name, explained(vars(cls)[name]))

    def __init__(
        self,
        spec: EnvSpec,
        config: object,
        *,
        device: str | torch.device,
        compile: Compile = None,
        **parts: Any,  # noqa: ANN401 - modules, and what makes them
    ) -> None:
        check_spec(spec)
        if torch.get_default_dtype() is not torch.float32:
            raise ConfigError(
                f"PyTorch's default type is {torch.get_default_dtype()}, and weights are "
                f"torch.float32. Call `torch.set_default_dtype(torch.float32)`, and convert where "
                f"your own code needs the other type."
            )
        if torch.is_inference_mode_enabled():
            raise ConfigError(
                f"A {type(self).__name__} made within `torch.inference_mode()` cannot learn. Make "
                f"it outside; `act` computes no gradients anyway."
            )
        self.spec = spec
        self._config = config
        self.device = usable_device(device)
        """The device of the weights."""
        self.env_step = 0
        """The env steps acted with `explore=True`."""
        self.train_iter = 0
        """The number of updates done."""
        self.reduce_gradient: Callable[[Tensor], None] | None = None
        """Called with each flat gradient before the step, to change it in place. `data_parallel`
        averages the gradients of learners here, and lets them make equally many updates."""
        self._take_mean: Callable[[Tensor], None] | None = None
        """Replaces a tensor by its mean over the learners; None for one that learns alone."""
        self._compile = compile
        self._compiler = compiler_of(compile)
        self._parts: dict[str, Any] = {
            name: part for name, part in parts.items() if part is not None
        }
        self._graph = self._captured() if compile == "graph" else None
        """The captured update; None if updates are not captured."""

    if not TYPE_CHECKING:  # a type checker refuses unknown names by itself
        load = Elsewhere()  # of the class, where `__getattr__` is not asked

        @property
        def config(self) -> object:
            """The settings."""
            return self._config

        @config.setter
        def config(self, config: object) -> None:
            if not isinstance(config, Mapping | type(self._config)):  # of a subclass, for itself
                self._config = config
                return
            raise ConfigError(
                f"The config of a {type(self).__name__} cannot be replaced: its networks and "
                f"optimisers are made from it. Make another policy: `twin = policy.like("
                f"dataclasses.replace(policy.config, lr=1e-4))`, with the same weights: "
                f"`twin.load_weights(policy.weights())`. `lr_end` and `lr_updates` decrease the "
                f"learning rate of a policy that has them."
            )

        def __getattr__(self, name: str) -> object:
            if name in ELSEWHERE:
                raise AttributeError(f"{type(self).__name__} has no `{name}`. {ELSEWHERE[name]}.")
            return object.__getattribute__(self, name)  # raises as without this method

    @property
    @abstractmethod
    def module(self) -> nn.Module:
        """The network that acts, as a plain module for inference."""

    @property
    @abstractmethod
    def _acting_net(self) -> SavedNetwork:
        """The network that collectors act by."""

    @classmethod
    def _settings_type(cls) -> type[Any]:
        return cls._config_type

    @explained
    def predict(
        self,
        obs: Tree,
        *,
        action_mask: NumpyArray | Sequence[NumpyArray] | None = None,
        memory: Memory | None = None,
    ) -> Any:  # noqa: ANN401 - of the action space
        """Return the best action for one observation, both in the form of the environment.

        It is for programs that step an environment of gymnasium themselves. Observations of `Envs`
        are already in the form of policies, which `act` takes.

        Args:
            obs: An observation of the environment's observation space, without a batch axis.
            action_mask: `info["action_mask"]`; all actions are legal if it is not given.
            memory: A result of `make_memory(1)`, for a policy with memory. Its states are replaced
                by the next ones.

        Returns:
            An action of the environment's action space: an int for Discrete, else an array.

        Raises:
            ConfigError: If the environment stacks frames, which `make_envs` does, or a memory is
                missing or given to a policy without memory.
            ShapeError: If the observation is not of the observation space.
        """
        if self.spec.frame_stack > 1:
            raise ConfigError(
                f"`predict` takes one frame, and {type(self).__name__} was trained on "
                f"{self.spec.frame_stack} stacked ones. Step `make_envs(..., "
                f"frame_stack={self.spec.frame_stack})` with `act`."
            )
        mask_1A = None
        if action_mask is not None:  # of several choices an array each, or all in one
            parts = action_mask if isinstance(action_mask, Sequence) else [action_mask]
            mask_1A = np.concatenate([np.ravel(part) for part in parts])[None]
        obs_1 = self.spec.pack(batch_of_one(self.spec.obs_space, obs), action_mask=mask_1A)
        policy: Any = self
        more = {} if memory is None else {"memory": memory}
        return self._action_form.of_each(policy.act(obs_1, explore=False, **more))[0]

    @cached_property
    def _action_form(self) -> ActionForm:
        return ActionForm(self.spec)

    @property
    def n_step(self) -> int:
        """The env steps that a transition spans, unless the episode ends earlier."""
        return int(self.config.n_step)

    @property
    def gamma(self) -> float:
        """The discount of one env step."""
        return float(self.config.gamma)

    def weights(self) -> dict[str, Tensor]:
        """Copy the weights that a collector acts by: tensors by name, on the CPU."""
        return with_norm(self._acting_net.snapshot(), self._norm)

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights that another policy's `weights` returned.

        Args:
            weights: Tensors or arrays by name.

        Raises:
            ShapeError: If a name or a shape is not this policy's. Then nothing is changed.
        """
        norm, of_network = read_norm(weights, self.spec, self._norm)
        self._acting_net.load(of_network)
        self._norm = norm

    def as_inputs(self, obs: Any, /) -> Any:  # noqa: ANN401 - an array, or a tree of them
        """Return observations packed, checked, of the spec's dtype, and normalised."""
        obs = packed(obs, self.spec)
        check_obs(obs, self.spec)
        return self._seen(np.asarray(obs, dtype=self.spec.obs_dtype))

    def _seen(self, obs: AnyArray) -> AnyArray:
        return obs if self._norm is None else self._norm(obs)

    def _normalized(self, batch: Any) -> Any:  # noqa: ANN401 - of the type of the batch
        if self._norm is None:
            return batch
        names = {"obs", "next_obs", "last_obs", "cut_obs"} & {f.name for f in fields(batch)}
        return replace(batch, **{name: self._norm(getattr(batch, name)) for name in names})

    def _placed(self, obs: Array) -> Tensor:
        """Return the observations of a batch, checked and normalised, on the device.

        Bytes are unchanged, all others become float32.
        """
        check_obs(obs, self.spec)
        seen = placed(obs if self._norm is None else self._norm(on(self.device, obs)), self.device)
        return seen if seen.dtype == torch.uint8 else seen.float()

    def _for_network(self, obs: ArrayT) -> ArrayT:
        return obs if self._sees_trees else self.spec.inputs(obs)

    def _note(self, obs: Array) -> None:
        """Add the observations of a batch to the statistics by which they are normalised."""
        if self._norm is not None:
            check_obs(obs, self.spec)
            self._norm.update(obs)

    @property
    def norm(self) -> RunningNorm | None:
        """The statistics by which observations are normalised; None without `normalize_obs`."""
        return self._norm

    def _progress(self) -> dict[str, Any]:
        counts = {"env_step": self.env_step, "train_iter": self.train_iter}
        return {**self._random_state(), **counts}

    def _random_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"rng": rng_state(self._rng)}
        if self.has_own_network:
            state["network_rng"] = self._random.state_dict()
        return state

    def _load_random_state(self, state: Mapping[str, Any]) -> None:
        if self.has_own_network:
            self._random.load_state_dict(state["network_rng"])
        set_rng_state(self._rng, state["rng"])

    def state_dict(self) -> dict[str, Any]:
        """Copy everything that an exact resume needs."""
        optimizers = {key: each.state_dict() for key, each in self._saved_optimizers().items()}
        return {**self._network_state(), **optimizers, **self._progress()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        On another kind of device PyTorch's streams of random numbers start anew.

        Raises:
            CheckpointError: If it is not the state of such a policy.
            ShapeError: If it is of networks of another size.
        """
        optimizers = self._saved_optimizers()
        expected = {*self._saved_networks, *optimizers, *self._progress()}
        _check_state_keys(state, expected, policy=type(self).__name__)
        self._load_networks(state)
        for key, optimizer in optimizers.items():
            optimizer.load_state_dict(state[key])
        self._load_random_state(state)
        self.env_step = int(state["env_step"])
        self.train_iter = int(state["train_iter"])

    @abstractmethod
    def _network_state(self) -> dict[str, Any]:
        """Copy the networks, and what is saved with them, by the keys of `_saved_networks`."""

    @abstractmethod
    def _load_networks(self, state: Mapping[str, Any]) -> None:
        """Load what `_network_state` returned."""

    @property
    def _optimizers(self) -> Mapping[str, Optimizer]:
        """The optimisers, by the beginnings of their keys in the state."""
        return {"": self._optimizer}

    def _saved_optimizers(self) -> dict[str, Optimizer]:
        kind = "optimizer" if self.has_own_optimizer else "adam"
        return {beginning + kind: each for beginning, each in self._optimizers.items()}

    def data_parallel(self, learners: Learners) -> None:
        """Average gradients with the same policy on other nodes, all of which call this method.

        All learners begin with the state of rank 0. From then on each update uses the mean of their
        gradients, so that their weights stay equal, and waits for the slowest learner. Random
        numbers and the running means of `normalize_obs` are not shared.

        Args:
            learners: `World.current().group("learner")`, with this node as a member.

        Raises:
            ConfigError: If this node is not a member, or `learners` is no group.
            DeadlineExceeded: If another node does not join in time.
            PeerLost: Later, in an update, if a member has died, left, or hangs.
        """
        if not callable(getattr(learners, "averager", None)):
            raise ConfigError(
                f"`learners` is {kind_of(learners)}; a group of nodes was expected, such as "
                f'`World.current().group("learner")`.'
            )
        first = learners.broadcast(self.state_dict() if learners.rank == 0 else None)
        if learners.rank > 0:
            self.load_state_dict(self._with_own_random(first))
        self.reduce_gradient = self._take_mean = learners.averager()

    def _with_own_random(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of another policy with the random numbers of this one."""
        return {**state, **self._random_state()}

    @property
    def has_own_network(self) -> bool:
        """Whether the user gave a network."""
        return bool(self._parts.keys() - {"optimizer"})

    @property
    def has_own_optimizer(self) -> bool:
        """Whether the user gave an optimiser."""
        return "optimizer" in self._parts

    @property
    def _drawing(self) -> AbstractContextManager[None]:
        """The random stream of own modules, which replaces PyTorch's while they compute."""
        return self._random if self.has_own_network else nullcontext()

    @property
    def parts(self) -> Mapping[str, object]:
        """The user's own parts, by the name of their argument."""
        return self._parts

    @property
    def own_modules(self) -> Mapping[str, Mapping[str, nn.Module]]:
        """The user's own modules and their target networks.

        The keys are those of `state_dict`, and then the prefixes of the tensors' names there.
        """
        return {}

    def like(self, config: Any = None, **replaced: object) -> Self:  # noqa: ANN401 - the policy's own dataclass
        """Make another policy of the same kind, with the same parts.

        A module is copied with its weights; a function is called again. Layers of the same name
        that the user has frozen or unfrozen are so there too.

        Args:
            config: The settings; those of this policy if None.
            **replaced: Parts that replace this policy's.
        """
        twin = self._remade(config, **replaced)
        twin._freeze_as(self)
        return twin

    def _remade(self, config: Any, **replaced: object) -> Self:  # noqa: ANN401 - as in `like`
        given = {**self._parts, **replaced}
        modules = {name: part for name, part in given.items() if isinstance(part, nn.Module)}
        originals = nn.ModuleDict(modules)
        copies: Any = copied(originals)  # together, as they may share layers
        # An optimiser is made of the layers that learn then; the user may freeze some afterwards.
        optimizers = self._optimizers.values()
        learned = {id(p) for o in optimizers if isinstance(o, TorchOptimizer) for p in o.learned}
        for parameter, its_copy in zip(originals.parameters(), copies.parameters(), strict=True):
            if id(parameter) in learned:
                its_copy.requires_grad_(True)
        parts = given | {name: copies[name] for name in modules}
        make: Any = type(self)
        if self._compile:
            parts["compile"] = self._compile
        twin: Self = make(self.spec, config or self.config, device=self.device, **parts)
        return twin

    def _freeze_as(self, other: OpenPolicy) -> None:
        for key, modules in other.own_modules.items():
            for name, module in modules.items():
                own = dict(self.own_modules[key][name].named_parameters())
                for path, parameter in module.named_parameters():
                    if path in own:  # a grown network may have other parameters
                        own[path].requires_grad_(parameter.requires_grad)

    def _compile_networks(self, networks: Iterable[FlatModule]) -> None:
        if self._compiler is None:
            return
        found = list(networks)
        if not found:
            raise ConfigError(
                f"`compile` compiles networks that autograd goes through, and those of this "
                f"{type(self).__name__} have a backward that is written out, which takes less "
                f"time. Leave it out, or give a network of your own."
            )
        for flat in found:
            flat.run = self._compiler(flat.run)

    def _captured(self) -> CapturedUpdate:
        if not hasattr(self, "_update"):
            raise ConfigError(
                f'`compile="graph"` captures the updates of policies of this package, and those of '
                f'{type(self).__name__} cannot be captured. Take `compile="torch"`, or leave it '
                f"out."
            )
        check_captures(self.device, optimizer=self._parts.get("optimizer"))
        return CapturedUpdate(self._update, CudaRecorder(self.device), device=self.device)

    def _run_update(self, inputs: Inputs, **form: Hashable) -> Outputs:
        if self._graph is None:
            with self._drawing:  # once per update: it takes longer than a small layer
                return self._update(inputs, **form)
        if self.reduce_gradient is not None:
            raise ConfigError(
                '`compile="graph"` captures updates of one learner, and this one averages its '
                'gradients with others. Leave `compile` out, or take `compile="torch"`.'
            )
        with self._random:  # a graph cannot contain the change of generators
            return self._graph(inputs, **form)

    def clone(self) -> Self:
        """Make an independent policy in exactly this state, random generators included."""
        twin = self.like()
        twin.load_state_dict(self.state_dict())
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    def __reduce__(self) -> NoReturn:
        # Its compiled updates refer to the memory of this object's weights.
        raise ConfigError(
            f"{type(self).__name__} cannot be pickled or shallowly copied. `clone()` copies it. "
            f"For another process or a file take its `state_dict()`, which a policy made there "
            f"with the same arguments loads: `load_state_dict(state)`."
        )

    def reseed(self, seed: int) -> None:
        """Continue with the random numbers of another seed."""
        set_rng_state(self._rng, rng_state(make_rng(seed, "offspring")))
        self._random.reseed(seed)

    def _descend(
        self,
        optimizer: Optimizer,
        loss: Number,
        grad_P: Tensor,
        weights_P: Tensor | None = None,
        *,
        limit: float | None = None,
        used: Callable[[], Sequence[bool]] = tuple,
        owner: str = "",
    ) -> tuple[Number, Tensor | None]:
        """Step along the gradient of a loss if both are finite.

        Args:
            optimizer: The optimiser.
            loss: The loss: a number on a CPU, a tensor on a device.
            grad_P: Its flat gradient. It is averaged over the learners, and clipped in place.
            weights_P: The flat weights; the optimiser's own if None.
            limit: The norm to which the gradient is clipped.
            used: Returns which parameters are changed, given the mean gradient; () for all.
            owner: What the loss trains, if a policy has several losses.

        Returns:
            The norm of the gradient before it was clipped. On a device, for which the host does not
            wait, also 1.0 if the step was skipped, else 0.0.

        Raises:
            NonFiniteError: On a CPU, or with other learners, if the loss or the gradient is not
                finite.
        """
        waits = not isinstance(loss, Tensor) or self.reduce_gradient is not None
        if waits:  # before other learners use its gradient
            self.check_finite(float(loss), owner=owner)
        if self.reduce_gradient is not None:
            self.reduce_gradient(grad_P)
        norm = clip_norm(grad_P, limit)
        skip = None
        if waits:
            self.check_finite(float(norm), "length of the gradient", owner=owner)
        else:
            skip = (~torch.isfinite(loss + norm)).float()  # the sum is finite if both are
        optimizer.step(grad_P, weights_P, skip=skip, used=used())
        return norm, skip

    @property
    def _present_update(self) -> str:
        return f"{type(self).__name__}'s update {self.train_iter + 1}"

    def check_finite(
        self, value: float, what: str = "loss", *, owner: str = "", update: str = ""
    ) -> None:
        """Raise NonFiniteError if a number of an update, by default the present one, is not finite.

        Args:
            value: The number.
            what: Its name in the message.
            owner: What it trains, if a policy has several losses.
            update: The name of the update in the message.
        """
        if math.isfinite(value):
            return
        of_owner = f" of the {owner}" if owner else ""
        of = update or self._present_update
        names = ("lr", "critic_lr", "actor_lr", "max_grad_norm")
        now = [f"`{n}` (now {getattr(self.config, n)})" for n in names if hasattr(self.config, n)]
        raise NonFiniteError(
            f"The {what}{of_owner} of {of} is {value}; a finite number was expected. The "
            f"weights{of_owner} are as they were before it. A lower {' or '.join(now)}, or rewards "
            f"scaled down, helps when values have blown up."
        )

    def _make_optimizer(self, network: LearnedNetwork, *, eps: float = 1e-8) -> Optimizer:
        config = self.config
        lr_end = config.lr if config.lr_end is None else config.lr_end
        self._lr_at = linear(config.lr, lr_end, steps=config.lr_updates)
        flat = getattr(network, "flat", network)
        return make_optimizer(
            self._parts.get("optimizer"),
            network.weights.flat,
            network.grads.flat,
            lambda: [*network.module.parameters()],
            views=flat.parameters if isinstance(flat, FlatModule) else (),
            lr=config.lr,
            lr_end=config.lr_end,
            eps=eps,
            captured=self._graph is not None,
        )


def _check_state_keys(state: Mapping[str, Any], expected: set[str], *, policy: str) -> None:
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"This is no state of a {policy}, but {kind_of(state)}. `policy.state_dict()` returns "
            f"one, and `load_checkpoint(folder).state` reads it from a checkpoint."
        )
    missing, unknown = expected - state.keys(), state.keys() - expected
    if missing or unknown:
        hint = "".join(did_you_mean(str(key), expected) for key in sorted(unknown)[:1])
        if "policy" in unknown:
            hint = ' It is a state of several parts: take `state["policy"]`.'
        raise CheckpointError(
            f"This is no state of a {policy}: missing {sorted(missing) or 'nothing'}, "
            f"unknown {sorted(unknown) or 'nothing'}.{hint}"
        )

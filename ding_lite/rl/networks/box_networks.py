"""The actor, critics and target networks of a policy for box actions, on flat weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import ConfigError
from ding_lite.rl.networks.action_values import ActionValues, Critics
from ding_lite.rl.networks.box_actors import ActorBody, BoxActor, GreedyActor, MLPBody, OwnActor
from ding_lite.rl.networks.layers import Members, one_member
from ding_lite.rl.networks.modules import ImageActor, ImageCritics, Inputs, without_numbers
from ding_lite.rl.networks.parts import encodes_images, inputs_of
from ding_lite.rl.networks.q_nets import draw_weights
from ding_lite.rl.packing import as_floats
from ding_lite.rl.recorded.box import (
    RecordedActor,
    RecordedCritics,
    check_range,
    made_actor,
    made_critics,
)
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.weights.flat import FlatWeights, load_all
from ding_lite.rl.weights.flat_module import FlatModule, MakeModule, bind, copied

ActorT = TypeVar("ActorT", bound=BoxActor)
Parts = dict[str, FlatModule]
"""A user's modules by the prefix of their weights."""


@dataclass(frozen=True, kw_only=True)
class BoxForm(Generic[ActorT]):
    """The networks of an algorithm for box actions."""

    actor_type: type[ActorT]
    num_critics: int
    has_target_actor: bool
    """Whether the next actions of targets come from a target actor."""
    num_followed: int | None = None
    """The number of critics that the actor maximises, from the first on; all if None."""
    more_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of further tensors that are learned with the actor."""


@dataclass(eq=False)
class Networks(Generic[ActorT]):
    """The networks of all members: the policies of a population, or a single policy."""

    actor: ActorT
    target_actor: ActorT
    """The actor that chooses next actions; `actor` itself without a target actor."""
    critics: Critics
    followed: Critics
    """The critics with the values that the actor maximises."""
    target_critics: Critics
    of_members: Members
    """All tensors to learn, by name."""
    grads_of_members: Members


class BoxNetworks(Networks[ActorT]):
    """An actor and critics with their targets: networks of this package, or a user's modules.

    All weights lie in one flat tensor: first the critics', then the actor's, then further ones. The
    targets' weights lie in the same order in another.
    """

    def __init__(
        self,
        spec: EnvSpec,
        settings: Any,  # noqa: ANN401 - the config of any box policy
        form: BoxForm[ActorT],
        *,
        actor: MakeModule | None,
        critic: MakeModule | None,
        rng: np.random.Generator,
        device: torch.device,
    ) -> None:
        self._spec, self._form, self._device = spec, form, device
        self._sizes = (int(np.prod(spec.input_shape)), *settings.hidden)
        self._activation = settings.activation
        self._num_actions = int(np.prod(spec.action_shape))
        self._see: Callable[[Any], Any] = as_floats if spec.packing is None else self._joined
        self._modules = self._made_modules(settings, actor, critic)
        with without_numbers():
            self._plain = self._actor_module(Inputs(self._sizes[:1]), squashes=False)
        of_critics, of_actor = self._shapes("critics."), self._shapes("actor.")
        followed = of_critics | of_actor if form.has_target_actor else of_critics
        self.weights = FlatWeights({**of_critics, **of_actor, **form.more_shapes}, device=device)
        self.grads = self.weights.zeros_like()
        self.target = FlatWeights(followed, device=device)
        self._own = self._flat_modules(self._modules, self.weights)
        targets = {prefix: copied(module) for prefix, module in self._modules.items()}
        if not form.has_target_actor:
            targets.pop("actor.", None)
        self._own_targets = self._flat_modules(targets, self.target)
        for prefix, first_input in (("critics.", 2), ("actor.", 1)):
            if prefix not in self._own:
                draw_weights(self.weights.part(prefix), rng, first_input=first_input)
        self.target.flat.copy_(self.weights.flat[: len(self.target.flat)])
        self.border = len(self.weights.part("critics.").flat)
        """The index of the first weight that is not a critic's."""
        learned, has_target = self._actor_on(self.weights, self._own), form.has_target_actor
        super().__init__(
            actor=learned,
            target_actor=self._actor_on(self.target, self._own_targets) if has_target else learned,
            critics=self._critics_on(self.weights, self._own),
            followed=self._critics_on(self.weights, self._own, first=form.num_followed),
            target_critics=self._critics_on(self.target, self._own_targets),
            of_members=one_member(self.weights),
            grads_of_members=one_member(self.grads),
        )

    def _made_modules(
        self,
        settings: Any,  # noqa: ANN401 - the config of any box policy
        actor: MakeModule | None,
        critic: MakeModule | None,
    ) -> dict[str, nn.Module]:
        """Make the modules by the prefix of their weights: a user's, and those for images."""
        spec, form = self._spec, self._form
        made: dict[str, nn.Module] = {}
        if spec.is_image or encodes_images(spec, settings.images):
            squashes = form.actor_type.outputs_per_action == 1
            inputs = partial(inputs_of, spec, settings.images)
            actor = actor or (lambda _: self._actor_module(inputs(), squashes=squashes))
            critic = critic or (
                lambda _: ImageCritics(
                    inputs(),
                    settings.hidden,
                    num_actions=self._num_actions,
                    num_critics=form.num_critics,
                    activation=self._activation,
                )
            )
        how: Any = {"seed": settings.seed, "device": self._device}
        if critic is not None:
            made["critics."] = made_critics(critic, spec, num_critics=form.num_critics, **how)
        if actor is not None:
            per_action = form.actor_type.outputs_per_action
            made["actor."] = made_actor(actor, spec, num_outputs=per_action, **how)
        _check_apart(*made.values())
        return made

    def _shapes(self, prefix: str) -> dict[str, tuple[int, ...]]:
        module = self._modules.get(prefix, self._plain if prefix == "actor." else None)
        if module is None:
            num_inputs, *hidden = self._sizes
            sizes = (num_inputs + self._num_actions, *hidden)
            return ActionValues.shapes(self._form.num_critics, sizes, prefix=prefix)
        return {prefix + name: tuple(each.shape) for name, each in module.named_parameters()}

    def _joined(self, obs: Any) -> Any:  # noqa: ANN401 - an array or a tensor
        return as_floats(self._spec.inputs(obs))

    def _actor_module(self, inputs: Inputs, *, squashes: bool) -> ImageActor:
        num_outputs = self._form.actor_type.outputs_per_action * self._num_actions
        how: Any = {"activation": self._activation, "squashes": squashes}
        return ImageActor(inputs, self._sizes[1:], num_outputs, **how)

    def _flat_modules(self, modules: Mapping[str, nn.Module], weights: FlatWeights) -> Parts:
        return {
            prefix: FlatModule(
                module,
                device=self._device,
                name="actor" if prefix == "actor." else "critic",
                memory=(weights.part(prefix), self.grads.part(prefix)),
            )
            for prefix, module in modules.items()
        }

    def _critics_on(self, weights: FlatWeights, own: Parts, *, first: int | None = None) -> Critics:
        if "critics." in own:
            return RecordedCritics(own["critics."], unpack=self._spec.unpack, first=first)
        part, grads = weights.part("critics."), self.grads.part("critics.")
        return ActionValues(
            part,
            grads,
            depth=len(self._sizes),
            num_actions=self._num_actions,
            first=first,
            activation=self._activation,
            see=self._see,
        )

    def _actor_on(self, weights: FlatWeights, own: Parts) -> ActorT:
        """Make an actor on these weights; all actors write gradients to the same memory."""
        body: ActorBody
        if "actor." in own:
            body = RecordedActor(own["actor."], unpack=self._spec.unpack)
            if self._form.actor_type.outputs_per_action > 1:
                return self._form.actor_type(body)
            if not isinstance(own["actor."].module, ImageActor):  # which ends with tanh
                check_range(body.forward, self._spec, device=self._device)
            return cast(ActorT, OwnActor(body, self._spec))
        part, grads = weights.part("actor."), self.grads.part("actor.")
        depth = len(self._sizes) - 1
        body = MLPBody(part, grads, depth=depth, activation=self._activation, see=self._see)
        return self._form.actor_type(body)

    @cached_property
    def greedy(self) -> nn.Module:
        """The actor as a plain module that maps its inputs to the best actions."""
        own = self._own.get("actor.")
        if own is not None:
            squashes = self._form.actor_type.outputs_per_action > 1
            return GreedyActor(own.module, self._spec, squashes=squashes)
        bind(self._plain, self.weights.part("actor."), self.grads.part("actor."))
        return GreedyActor(self._plain, self._spec, squashes=True)

    @property
    def own_modules(self) -> list[FlatModule]:
        return [*self._own.values(), *self._own_targets.values()]

    @property
    def own_parts(self) -> dict[str, dict[str, nn.Module]]:
        """A user's modules, each critic separately, by the keys and names of `state_dict`."""
        return {"weights": _apart(self._own), "target": _apart(self._own_targets)}

    def own_parameters(self, prefix: str) -> list[nn.Parameter]:
        """Return the parameters of a part's own module, in the order of the flat weights."""
        return self._own[prefix].parameters if prefix in self._own else []

    def parameters(self, prefix: str) -> list[nn.Parameter]:
        """Return a part's parameters, with gradients: those of an own module, or flat weights."""
        own = self._own.get(prefix)
        if own is not None:
            return [*own.module.parameters()]
        made = []
        for name in self.weights.shapes:
            if name.startswith(prefix):
                parameter = nn.Parameter(self.weights[name])
                parameter.grad = self.grads[name]
                made.append(parameter)
        return made

    def follow(self, weights_P: Tensor, target_P: Tensor, share: float | Tensor) -> None:
        target_P.lerp_(weights_P[: len(target_P)], share)
        for prefix, follower in self._own_targets.items():
            follower.copy_buffers(self._own[prefix])

    @property
    def acting(self) -> FlatModule | FlatWeights:
        return self._own.get("actor.") or self.weights.part("actor.")

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        return {
            "weights": _snapshot(self.weights, self._own),
            "target": _snapshot(self.target, self._own_targets),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned; a state that does not fit changes nothing."""
        load_all(
            ({**self.weights.views, **_buffers(self._own)}, state["weights"]),
            ({**self.target.views, **_buffers(self._own_targets)}, state["target"]),
        )


def _buffers(own: Parts) -> dict[str, Tensor]:
    return {
        prefix + name: buffer
        for prefix, flat in own.items()
        for name, buffer in flat.buffers.items()
    }


def _apart(own: Parts) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {}
    for prefix, flat in own.items():
        if prefix == "critics.":
            found |= {f"{prefix}{k}.": critic for k, critic in flat.module.named_children()}
        else:
            found[prefix] = flat.module
    return found


def _snapshot(weights: FlatWeights, own: Parts) -> dict[str, Tensor]:
    of_buffers = {name: b.detach().to("cpu", copy=True) for name, b in _buffers(own).items()}
    return {**weights.snapshot(), **of_buffers}


def _check_apart(*modules: nn.Module) -> None:
    seen: set[int] = set()
    for module in modules:
        found = {id(parameter): name for name, parameter in module.named_parameters()}
        for shared in seen & found.keys():
            raise ConfigError(
                f"`actor` and `critic` share the parameter {found[shared]!r}, but each has an "
                f"optimiser and copies of its own. Give each its own layers."
            )
        seen |= found.keys()

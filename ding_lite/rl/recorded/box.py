"""Users' modules as actors and critics for box actions, with gradients by autograd.

The networks of this package have a written-out backward behind the same methods. Forwards that are
learned from run in the mode of `Module.train`. Targets, actions, and the values that an actor
maximises are computed in the mode of `Module.eval`, for example without Dropout.

Outputs have an axis of members as those of written-out networks do, of length 1 here.
Shape letters: E critics, B rows, O outputs of an actor, A numbers of an action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn

from ding_lite.errors import ConfigError, kind_of
from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.packing import Tree, leaf_spaces
from ding_lite.rl.recorded.checks import (
    are_floats,
    check_learning,
    listed,
    run_once,
    sample_obs,
    wrong_outputs,
)
from ding_lite.rl.recorded.network import Recorded
from ding_lite.rl.seeding import spawn_seeds
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.flat_module import FlatModule, MakeModule, copied, made_module

_NUM_PROBES = 64
"""The number of observations by which the range of an actor's outputs is checked."""


class RecordedActor(Recorded):
    """A module that maps observations to the numbers of a distribution, or to actions.

    Several outputs, [B, A] each, are joined side by side.
    """

    def forward(self, obs: Tensor) -> Tensor:
        return joined(self._estimate(obs)).unsqueeze(0)

    def forward_saving(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            raw_1BO = joined(self._record(obs)).unsqueeze(0)
        return raw_1BO.detach(), raw_1BO

    def backward(self, saved: Tensor, grad_1BO: Tensor) -> None:
        self._backward([saved], [grad_1BO])

    def infer(self, obs: NumpyArray) -> FloatArray:
        found_NO: FloatArray = joined(self._infer(obs)).cpu().numpy()
        return found_NO


class CriticList(nn.ModuleList):
    """Critics: one module for each, or one module for all of them."""

    def forward(self, obs: Tree, action_BA: Tensor, first: int | None = None) -> Tensor:
        """Compute the values, [E, B], of all critics or of the `first` ones."""
        columns = chain.from_iterable(_columns(critic(obs, action_BA)) for critic in self)
        return torch.stack([*islice(columns, first)])


class RecordedCritics(Recorded):
    """Modules that estimate the return of an action: all, or the `first` ones."""

    def __init__(
        self,
        flat: FlatModule,
        *,
        unpack: Callable[[Tensor], Any] | None = None,
        first: int | None = None,
    ) -> None:
        super().__init__(flat, unpack=unpack)
        self._first = first

    def forward(self, obs: Tensor, action_1BA: Tensor) -> Tensor:
        q_EB: Tensor = self._estimate(obs, action_1BA[0], self._first)
        return q_EB.unsqueeze(1)

    def forward_saving(self, obs: Tensor, action_1BA: Tensor) -> tuple[Tensor, Tensor]:
        q_EB: Tensor = self._record(obs, action_1BA[0], self._first)
        return q_EB.detach().unsqueeze(1), q_EB

    def forward_action(
        self, obs: Tensor, action_1BA: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        self.flat.train(False)
        action_BA = action_1BA[0].detach().requires_grad_()
        with torch.enable_grad():
            q_EB: Tensor = self.flat.run(self._inputs(obs), action_BA, self._first)
        return q_EB.detach().unsqueeze(1), (action_BA, q_EB)

    def backward(self, saved: Tensor, grad_E1B: Tensor) -> None:
        self._backward([saved], [grad_E1B.squeeze(1)])

    def backward_action(self, saved: tuple[Tensor, Tensor], grad_E1B: Tensor) -> Tensor:
        return action_gradient(*saved, grad_E1B.squeeze(1)).unsqueeze(0)


def action_gradient(action: Tensor, q: Tensor, grad: Tensor) -> Tensor:
    found = None
    if q.requires_grad:
        (found,) = torch.autograd.grad([q], [action], [grad], allow_unused=True)
    if found is None:
        raise ConfigError(
            "The values that `critic` gives do not depend on the action, so that the actor "
            "has nothing to follow. Let `forward(self, obs, action)` use both."
        )
    return found


def made_actor(
    make: MakeModule, spec: EnvSpec, *, seed: int, num_outputs: int, device: torch.device
) -> nn.Module:
    module = made_module(make, spec, seed=seed, name="actor").to(device)
    size = int(np.prod(spec.action_shape))
    inputs = [spec.unpack(sample_obs(spec, device=device))]
    outputs = run_once(module, inputs, spec=spec, name="actor")
    whole, halves = (2, num_outputs * size), [(2, size)] * num_outputs
    if not are_floats(outputs, [whole]) and not are_floats(outputs, halves):
        expectation = f"float32 {whole}" + num_outputs // 2 * (
            f", the means and then the logarithms of the standard deviations, or a tuple of "
            f"both, float32 {halves[0]} each,"
        )
        raise wrong_outputs(module, outputs, expectation, spec=spec, name="actor")
    check_learning(module, inputs, outputs, spec=spec, name="actor")
    return module


def made_critics(
    make: MakeModule, spec: EnvSpec, *, seed: int, num_critics: int, device: torch.device
) -> CriticList:
    """Make a user's critics, and check them.

    A function of the spec is called for each critic. A module that returns the values of all
    critics is used for all of them. A module that returns a single value is copied, and the layers
    of the copies are initialised anew, because equal critics would stay equal. An `nn.ModuleList`
    holds one module for each critic.
    """
    if isinstance(make, list | tuple):
        raise ConfigError(
            f"`critic` is {kind_of(make)}; one nn.Module was expected. Several are an "
            f"`nn.ModuleList`."
        )
    seeds = spawn_seeds(seed, "critic", count=num_critics)
    modules = [made_module(make, spec, seed=seeds[0], name="critic").to(device)]
    if isinstance(modules[0], nn.ModuleList) and type(modules[0]).forward is nn.Module.forward:
        modules = _checked_list(modules[0], spec, num_critics, device=device)
    elif _num_values(modules[0], spec, num_critics, device=device) == 1:
        for other in seeds[1:]:
            module = (
                modules[0]
                if isinstance(make, nn.Module)
                else made_module(make, spec, seed=other, name="critic")
            )
            if module is modules[0]:
                module = _initialised(module, seed=other)
            modules.append(module.to(device))
            _num_values(modules[-1], spec, 1, device=device)
            _check_different(modules[0], modules[-1])
    critics = CriticList(modules)
    critics.train()
    return critics


def check_range(actor: Callable[[Tensor], Tensor], spec: EnvSpec, *, device: torch.device) -> None:
    """Raise unless an actor keeps its actions within -1 to 1, also for unusual observations."""
    for obs in _probes(spec, device=device):
        check_actions(actor(obs), spec)


def check_actions(action_BA: Tensor, spec: EnvSpec) -> None:
    largest = float(action_BA.abs().amax()) if action_BA.numel() else 0.0
    if largest > 1.0001:
        low, high = (getattr(spec.action_space, name) for name in ("low", "high"))
        raise ConfigError(
            f"`actor` gave an action of {largest:.3g}, or minus that; numbers from -1 to 1 were "
            f"expected, which the policy scales to the bounds of {spec.env_id}, {low.tolist()} to "
            f"{high.tolist()}. End `forward` with `torch.tanh(...)`, and scale no further."
        )


def joined(found: Any) -> Tensor:  # noqa: ANN401 - a tensor, or several
    return found if isinstance(found, Tensor) else torch.cat([*found], dim=-1)


def _num_values(module: nn.Module, spec: EnvSpec, num_critics: int, *, device: torch.device) -> int:
    """Return how many critics a module computes: one, or all."""
    action_BA = torch.zeros((2, int(np.prod(spec.action_shape))), device=device)
    inputs = [spec.unpack(sample_obs(spec, device=device)), action_BA]
    outputs = run_once(module, inputs, spec=spec, name="critic")
    alone = ([(2,)], [(2, 1)])
    joint = ([(2, num_critics)], num_critics * [(2,)], num_critics * [(2, 1)])
    for count, forms in ((1, alone), (num_critics, joint)):
        if any(are_floats(outputs, shapes) for shapes in forms):
            check_learning(module, inputs, outputs, spec=spec, name="critic")
            return count
    expectation = "float32 (2,) or (2, 1), a value for each,"
    if num_critics > 1:
        expectation += f" or float32 {joint[0][0]}, those of {num_critics} critics,"
    raise wrong_outputs(module, outputs, expectation, spec=spec, name="critic")


def _checked_list(
    critics: nn.ModuleList, spec: EnvSpec, num_critics: int, *, device: torch.device
) -> list[nn.Module]:
    if len(critics) != num_critics:
        raise ConfigError(
            f"`critic` is a ModuleList of length {len(critics)}; a length of {num_critics} was "
            f"expected, a module for each critic."
        )
    for critic in critics:
        _num_values(critic, spec, 1, device=device)
    for critic in critics[1:]:
        _check_different(critics[0], critic)
    return [*critics]


def _columns(found: Any) -> Iterator[Tensor]:  # noqa: ANN401 - a tensor, or several
    for values in listed(found):
        if values.dim() == 1:
            yield values
        else:
            yield from values.unbind(1)


def _initialised(module: nn.Module, *, seed: int) -> nn.Module:
    """Return a copy with its learned layers initialised anew; raise if it stays equal in a part."""
    copy = copied(module)
    with TorchRandom(seed, "critic"):
        for part in copy.modules():
            names = ("reset_parameters", "_reset_parameters")
            resets = [reset for name in names if (reset := getattr(part, name, None)) is not None]
            if resets and any(p.requires_grad for p in part.parameters(recurse=False)):
                resets[0]()
    for (name, mine), theirs in zip(module.named_parameters(), copy.parameters(), strict=True):
        is_constant = bool((mine == mine.flatten()[:1]).all())  # as the zeros of a bias
        if mine.requires_grad and not is_constant and torch.equal(mine, theirs):
            raise ConfigError(
                f"The parameter {name!r} of `critic` ({type(module).__name__}) cannot be drawn "
                f"anew for the second critic, as its layer has no `reset_parameters` that changes "
                f"it. Give a function of the spec that makes a new module at each call, or an "
                f"`nn.ModuleList` of both critics."
            )
    return copy


def _check_different(one: nn.Module, other: nn.Module) -> None:
    pairs = zip(one.parameters(), other.parameters(), strict=False)
    if all(bool(torch.equal(mine.cpu(), theirs.cpu())) for mine, theirs in pairs):
        raise ConfigError(
            f"The critics made of `critic` ({type(one).__name__}) have equal weights, and would "
            f"stay equal. Give a function of the spec that makes a new module at each call, or a "
            f"module that returns the values of all critics, [B, 2]."
        )


def _probes(spec: EnvSpec, *, device: torch.device) -> Iterator[Tensor]:
    """Yield observations of the space, and far larger ones if it has real numbers alone."""
    several = batch_space(spec.obs_space, _NUM_PROBES)
    several.seed(0)
    frames = torch.from_numpy(replace(spec, frame_stack=1).pack(several.sample()))
    obs = torch.cat([frames] * spec.frame_stack, dim=1).to(device)
    yield obs
    if all(part.dtype.kind == "f" for _, part in leaf_spaces(spec.obs_space)):
        yield from (10.0 * obs, 1000.0 * obs)

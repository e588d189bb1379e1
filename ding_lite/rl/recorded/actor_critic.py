"""Any module as an actor-critic network, with gradients by autograd.

A user's modules get observations as the environment returns them: bytes are not scaled, and
observations of several parts are a tree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from ding_lite.errors import ConfigError
from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.host_or_device import AnyArray, as_tensor, computable, namespace, placed
from ding_lite.rl.recorded.checks import check_outputs, sample_obs
from ding_lite.rl.recorded.network import Recorded
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.flat_module import FlatModule, MakeModule, made_module
from ding_lite.settings.rules import check_all, whole

logger = logging.getLogger(__name__)

LOG_STD = "actor.log_std"
"""The name of the learned standard deviations in the networks of this package."""
_OWN_LOG_STD = "log_std"

_HINT = (
    "Leave sampling to the policy: it draws actions of action parameters, such as logits, and "
    "computes log-probabilities and entropies."
)
_BOX_HINT = (
    "Return means, and the policy learns the standard deviations; or means and their logarithms in "
    "one tensor, `torch.cat((mean, log_std), dim=-1)`. The policy draws the actions."
)

Parts: TypeAlias = Mapping[str, MakeModule | None]


class OwnActorCritic(nn.Module):
    """A user's module, or separate actor and critic modules, as one module.

    Args:
        network: Returns action parameters, [B, D], and values, [B] or [B, 1]; with a state as its
            second input also the next states, [B, S].
    """

    def __init__(
        self,
        network: nn.Module | None = None,
        actor: nn.Module | None = None,
        critic: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.network: Any = network
        self.actor: Any = actor
        self.critic: Any = critic
        self.state_size = int(getattr(network, "state_size", 0))
        """The length of the recurrent state; 0 without memory."""

    def forward(self, obs: Any, *state: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401 - a tree
        """Compute action parameters, [B, D], values, [B], and next states if it has memory."""
        if self.network is not None:
            outputs_BD, value, *states = self.network(obs, *state)
        else:
            outputs_BD, value, states = self.actor(obs), self.critic(obs), []
        return outputs_BD, value.reshape(len(outputs_BD)), *states


class RecordedActorCritic(Recorded):
    """A module that maps observations to action parameters and values, as an `ActorCriticNetwork`.

    `plain` is the module for inference, if it is not the whole one.
    """

    def __init__(
        self,
        flat: FlatModule,
        *,
        plain: nn.Module | None = None,
        **how: Any,  # noqa: ANN401 - of `Recorded`
    ) -> None:
        super().__init__(flat, **how)
        self.plain = flat.module if plain is None else plain
        self.state_size = int(getattr(flat.module, "state_size", 0))

    def act(self, obs: NumpyArray) -> FloatArray:
        outputs_ND: FloatArray = self._infer(obs)[0].cpu().numpy()
        return outputs_ND

    def values(self, obs: AnyArray) -> AnyArray:
        return computable(self._infer(obs)[1])

    def forward(self, obs: AnyArray) -> tuple[AnyArray, AnyArray, list[Tensor]]:
        outputs_BD, value_B = self._record(obs)
        return computable(outputs_BD), computable(value_B), [outputs_BD, value_B]

    def backward(
        self, saved: list[Tensor], outputs_grad_BD: AnyArray, value_grad_B: AnyArray
    ) -> None:
        self._backward(saved, [as_tensor(outputs_grad_BD), as_tensor(value_grad_B)])


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The initial states and the ends of episodes of the sequences that a network computes."""

    state_NS: AnyArray
    """The states before the first step."""
    ended_TN: AnyArray
    """Whether the episode ended with the step, so that the next state is zeros."""

    def take(self, envs_M: AnyArray) -> Recurrence:
        return Recurrence(self.state_NS[envs_M], self.ended_TN[:, envs_M])


class RecurrentActorCritic(RecordedActorCritic):
    """A module that maps observations and states to action parameters, values and next states.

    It may have `encode(obs)`, the part of its `forward` that needs no state, and
    `recur(features, state)`, the rest. Then the observations of all steps are encoded at once.
    """

    def step(self, obs: AnyArray, state_NS: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
        """Compute outputs, [N, D], values, [N], and next states, [N, S], without autograd."""
        outputs_ND, value_N, behind_NS = self._infer(obs, placed(state_NS, self._device))
        return computable(outputs_ND), computable(value_N), computable(behind_NS)

    def unroll(
        self, obs: AnyArray, recurrence: Recurrence, *, is_training: bool
    ) -> tuple[AnyArray, AnyArray, list[Tensor], Tensor]:
        """Compute sequences, as `forward` does, in the order of `merged`.

        Return also the states after each step, [T, N, S], not yet set to zeros at the ends of
        episodes.
        """
        with torch.set_grad_enabled(is_training), self._drawing:
            self.flat.train(is_training)
            *saved, behind_TNS = self._unroll(obs, recurrence, is_training=is_training)
        return computable(saved[0]), computable(saved[1]), saved, behind_TNS

    def _unroll(
        self, obs: AnyArray, recurrence: Recurrence, *, is_training: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        module, num_envs = self.flat.module, len(recurrence.state_NS)
        plain = getattr(module, "recur", module)
        recur: Callable[..., tuple[Tensor, ...]] = self.flat.run if is_training else plain
        inputs: Sequence[Any]
        if plain is module:
            inputs = list(map(self._inputs, torch.split(placed(obs, self._device), num_envs)))
        else:
            inputs = torch.split(cast(Any, module).encode(self._inputs(obs)), num_envs)
        state = placed(recurrence.state_NS, self._device)
        goes_on_TN1 = placed(~recurrence.ended_TN[..., None], self._device)
        outputs, values, behind = [], [], []
        for input_N, goes_on_N1 in zip(inputs, goes_on_TN1, strict=True):
            outputs_ND, value_N, state = recur(input_N, state)
            outputs.append(outputs_ND)
            values.append(value_N)
            behind.append(state.detach())
            state = torch.where(goes_on_N1, state, 0.0)
        return torch.cat(outputs), torch.cat(values), torch.stack(behind)


def unseen_states(
    behind_TNS: Tensor, ended_TN: AnyArray, cut_time: AnyArray, cut_env: AnyArray
) -> AnyArray:
    """Return the states before the observations of `unseen_obs`, [N + K, S].

    For a truncated episode it is the state after its last step, not yet set to 0.
    """
    behind = computable(behind_TNS)
    last_NS = behind[-1] * ~ended_TN[-1][:, None]
    return namespace(behind).concatenate((last_NS, behind[cut_time, cut_env]))


def make_own_actor_critic(
    parts: Parts,
    spec: EnvSpec,
    *,
    num_outputs: int,
    num_means: int,
    seed: int,
    random: TorchRandom,
    device: str | torch.device,
) -> tuple[RecordedActorCritic, bool]:
    """Make the network of a user's modules; return also whether it computes log-stds."""
    _check_parts(parts)
    made = {
        name: made_module(make, spec, seed=seed, name=name).to(device)
        for name, make in parts.items()
        if make is not None
    }
    _check_memory(made)
    own = OwnActorCritic(**made)
    wanted: list[tuple[int, ...]] = [(num_outputs,)]
    if num_means:
        wanted = [(num_means,), (2 * num_means,)]
    hint = _BOX_HINT if num_means else _HINT
    outputs = _checked_outputs(made, wanted, spec, own.state_size, hint=hint, device=device)
    if not (num_means or outputs.is_meta):
        _warn_of_probabilities(outputs, name="network" if "network" in made else "actor")
    has_spread = bool(num_means) and outputs.shape[1] == 2 * num_means
    num_apart = 0
    if num_means and not has_spread:
        num_apart = num_means
        own.register_parameter(_OWN_LOG_STD, nn.Parameter(torch.zeros(num_means, device=device)))
    network = (RecurrentActorCritic if own.state_size else RecordedActorCritic)(
        FlatModule(own, device=device, last=_OWN_LOG_STD),
        random=random,
        unpack=spec.unpack,
        num_apart=num_apart,
        plain=made.get("network"),
    )
    return network, has_spread


def _checked_outputs(
    made: Mapping[str, nn.Module],
    wanted: list[tuple[int, ...]],
    spec: EnvSpec,
    state_size: int,
    *,
    hint: str,
    device: str | torch.device,
) -> Tensor:
    """Return the actor's outputs for a few observations; raise if a module's are not as wanted."""
    sample = sample_obs(spec, device=device)
    obs = spec.unpack(sample)
    values: list[tuple[int, ...]] = [(), (1,)]
    if "network" not in made:
        how: Any = {"spec": spec, "name": "actor", "hint": hint}
        (outputs,) = check_outputs(made["actor"], [obs], [wanted], **how)
        check_outputs(made["critic"], [obs], [values], spec=spec, name="critic")
        return outputs
    inputs: list[Any] = [obs]
    expected: list[Any] = [wanted, values]
    if state_size:
        inputs.append(torch.zeros((len(sample), state_size), device=device))
        expected.append([(state_size,)])
    outputs, *_ = check_outputs(
        made["network"], inputs, expected, spec=spec, num_states=len(inputs) - 1, hint=hint
    )
    return outputs


def log_std_name(network: object) -> str:
    is_own = isinstance(getattr(network, "module", None), OwnActorCritic)
    return _OWN_LOG_STD if is_own else LOG_STD


def _warn_of_probabilities(logit_BA: Tensor, *, name: str) -> None:
    if bool((logit_BA >= 0).all()) and torch.allclose(logit_BA.sum(-1), logit_BA.new_ones(())):
        logger.warning(
            "the outputs of `%s` are probabilities, as each row sums to 1, but are used as logits: "
            "no action could become likely. Leave the softmax out",
            name,
        )


def _check_parts(parts: Parts) -> None:
    given = [name for name, part in parts.items() if part is not None]
    if given not in (["network"], ["actor", "critic"]):
        found = " and ".join(f"`{name}`" for name in given)
        raise ConfigError(
            f"{found} {'was' if len(given) == 1 else 'were'} given. Give `network`, a module "
            f"that returns action parameters and values, or `actor` and `critic` apart."
        )


def _check_memory(made: Mapping[str, nn.Module]) -> None:
    state_size: Any = getattr(made.get("network"), "state_size", 0)
    check_all(whole(0, state_size=state_size))
    for name in ("actor", "critic"):
        if getattr(made.get(name), "state_size", 0):
            raise ConfigError(
                f"`{name}` has a `state_size`, so it has memory. Give one `network` that returns "
                f"action parameters, values and the next states."
            )

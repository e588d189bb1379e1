"""Mutations of offspring.

One mutation is drawn for each agent: none, architecture, weights, activation, or one
hyperparameter. Actor, critics and targets change together, and the optimiser keeps its moments. A
further kind of mutation needs one method here and one entry in `KINDS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, cast, get_args

import numpy as np

from ding_lite.errors import ConfigError
from ding_lite.evolution.agent import Agent, made_from, made_like
from ding_lite.evolution.growth import convolutions
from ding_lite.evolution.growth.layers import IDENTITIES, deepen, resize, resize_memory, shorten
from ding_lite.evolution.growth.modules import check_growth, grow_policy, has_own_network, shake
from ding_lite.evolution.growth.parameter_layout import ParameterLayout, layout_of
from ding_lite.evolution.search import LEARN_EVERY, Search, Value, accepts, check_search
from ding_lite.rl.networks.activations import Activation
from ding_lite.rl.policies.base.open_policy import OpenPolicy
from ding_lite.rl.protocols import Policy
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.rl.torch_policies.torch_policy import TorchPolicy
from ding_lite.settings.rules import at_least, check_all, finite, inside, whole

_CONVS_PROB = 0.5
"""The probability that an architecture mutation of an image network changes a convolution."""
_KERNEL_PROB = 0.3
"""The probability that such a mutation changes a kernel, unless it changes a layer."""
_MAX_KERNEL = 9
"""The largest size of a kernel after growth, in pixels."""

_TRIES = 8
"""The number of values that are drawn until the settings accept one."""

KINDS = ("none", "architecture", "weights", "activation", "hyperparameters")


class Mutation:
    """Mutates agents, reproducibly at random.

    The first five settings are relative probabilities of the kinds of mutation.

    Args:
        search: The hyperparameters that may change; None for none.
        none: No change.
        architecture: A hidden layer, or units of one, are added or removed.
        weights: Noise is added to all weights.
        activation: The activation of the hidden layers becomes another function.
        hyperparameters: One of the searched hyperparameters takes another value.
        new_layer_prob: The probability that an architecture mutation changes a whole layer.
        remove_prob: The probability that an architecture mutation removes instead of adding.
            Adding preserves the network's function; removing does not.
        mutation_sd: The standard deviation of the noise, relative to the root mean square of a
            tensor.
        num_nodes: The maximum number of units added or removed at a time.
        max_nodes: The maximum width of a hidden layer. Layers that are wider stay, and a new layer
            may be as wide as the one before it.
        min_nodes: The minimum width of a hidden layer.
        max_layers: The maximum number of hidden layers.
        min_layers: The minimum number of hidden layers.
        mutate_elite: Whether the elite of the tournament is mutated, too.
        seed: Seed of all random choices.

    Raises:
        ConfigError: A setting is out of range.

    Example:
        >>> from ding_lite.evolution import log_uniform
        >>> from ding_lite.rl import DQN, make_envs
        >>> agent = Agent(DQN(make_envs("CartPole-v1", 1).spec), searched=("lr",))
        >>> search = Search(lr=log_uniform(1e-4, 1e-2, grow=2.0, shrink=0.5))
        >>> mutation = Mutation(search, none=0.0, architecture=0.0, weights=0.0)
        >>> mutation.mutate(agent) in ("lr 0.002 -> 0.004", "lr 0.002 -> 0.001")
        True
    """

    def __init__(  # noqa: PLR0913 - all by name, and few at a time
        self,
        search: Search | None = None,
        *,
        none: float = 0.4,
        architecture: float = 0.2,
        weights: float = 0.2,
        activation: float = 0.0,
        hyperparameters: float = 0.2,
        new_layer_prob: float = 0.2,
        remove_prob: float = 0.25,
        mutation_sd: float = 0.1,
        num_nodes: tuple[int, ...] = (8, 16, 32),
        max_nodes: int = 256,
        min_nodes: int = 8,
        max_layers: int = 3,
        min_layers: int = 1,
        mutate_elite: bool = False,
        seed: int = 0,
    ) -> None:
        several: object = num_nodes
        check_all(
            [] if search is None else check_search(search),
            [f"`num_nodes` is {several}; `({several},)` was expected, one number or more"]
            if isinstance(several, int)
            else [],
        )
        self.search = search or Search()
        self.mutate_elite = mutate_elite
        odds = (none, architecture, weights, activation, hyperparameters)
        self._odds = dict(zip(KINDS, odds, strict=True))
        check_all(
            at_least(0.0, **self._odds, mutation_sd=mutation_sd),
            finite(**self._odds, mutation_sd=mutation_sd),
            inside(0.0, 1.0, new_layer_prob=new_layer_prob, remove_prob=remove_prob),
            *(whole(1, num_nodes=count) for count in num_nodes),
            [] if num_nodes else ["`num_nodes` is empty; at least one number was expected"],
            whole(1, min_nodes=min_nodes, min_layers=min_layers),
            whole(min_nodes, max_nodes=max_nodes),
            whole(min_layers, max_layers=max_layers),
        )
        if not self.search.parameters:
            self._odds["hyperparameters"] = 0.0
        if sum(self._odds.values()) <= 0.0:
            raise ConfigError(
                f"No kind of mutation can be drawn: the probabilities of {', '.join(KINDS)} are "
                f"{', '.join(f'{odd:g}' for odd in odds)}"
                f"{'' if self.search.parameters else ', and there is no `search`'}. Raise one of "
                f"them; `none=1.0` changes nothing."
            )
        self._new_layer_prob, self._remove_prob = new_layer_prob, remove_prob
        self._spread = mutation_sd
        self._num_nodes = num_nodes
        self._nodes, self._layers = (min_nodes, max_nodes), (min_layers, max_layers)
        self._rng = make_rng(seed, "mutation")

    def check(self, policy: Policy) -> None:
        """Raise if a mutation does not apply to a policy.

        Raises:
            ConfigError: The policy lacks a setting, its parameter layout is unknown, or a `grow` of
                its networks takes no generator.
        """
        self.search.check(policy.config)
        if not has_own_network(policy) and (self._odds["architecture"] or self._odds["weights"]):
            layout_of(policy)
        if self._odds["architecture"]:
            check_growth(policy)
        if self._odds["activation"]:
            _check_has_activation(policy)

    def mutate(self, agent: Agent) -> str:
        """Apply one random mutation to an agent; return its description in a few words."""
        odds = np.array([*self._odds.values()])
        kind = KINDS[int(self._rng.choice(len(KINDS), p=odds / odds.sum()))]
        kinds = {
            "architecture": self._mutate_architecture,
            "weights": self._mutate_weights,
            "activation": self._mutate_activation,
            "hyperparameters": self._mutate_hyperparameter,
        }
        return kinds[kind](agent) if kind in kinds else "none"

    def state_dict(self) -> dict[str, Any]:
        """Copy the state that an exact resume needs."""
        return {"rng": rng_state(self._rng)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned."""
        set_rng_state(self._rng, state["rng"])

    def _mutate_architecture(self, agent: Agent) -> str:
        """Add or remove a layer if one was drawn and this is possible, else some units.

        A user's network grows by its `grow`, and stays unchanged without it.
        """
        if has_own_network(agent.policy):
            return _grow(agent, seed=int(self._rng.integers(2**63)))
        is_layer = bool(self._rng.random() < self._new_layer_prob)
        removes = bool(self._rng.random() < self._remove_prob)
        if layout_of(agent.policy).images[0] and self._rng.random() < _CONVS_PROB:
            described = self._change_convs(agent, is_layer=is_layer, removes=removes)
            if described is not None:
                return described
        changed = self._change_layers(agent, removes=removes) if is_layer else None
        return changed or self._change_nodes(agent, removes=removes) or "none"

    def _change_layers(self, agent: Agent, *, removes: bool) -> str | None:
        layout, hidden = layout_of(agent.policy), tuple(agent.config.hidden)
        before, fixed = layout.chains(len(hidden)), layout.num_fixed
        # A split layer cannot be removed, and no layer can be added behind it.
        choices = len(hidden) - any(chain.read_in_halves for chain in before) - fixed
        low, high = self._layers
        is_possible = len(hidden) > max(low, fixed + 1) if removes else len(hidden) < high
        if choices < 1 or not is_possible:
            return None

        layer = fixed + int(self._rng.integers(choices))
        new = hidden[layer] * len(IDENTITIES[layout.activation].weight)
        if not removes and new > max(self._nodes[1], hidden[layer]):
            return None  # it would be twice as wide
        kept = () if removes else (hidden[layer], new)
        changed = (*hidden[:layer], *kept, *hidden[layer + 1 :])
        after = layout.chains(len(changed))
        opened, change = _Opened(agent, layout), shorten if removes else deepen
        for old, grown in zip(before, after, strict=True):
            if old.has(layer):
                place = layer - old.first
                change(opened.tensors, old, grown, place, activation=layout.activation)
        opened.close(hidden=changed)
        return f"hidden {hidden} -> {changed}"

    def _change_convs(self, agent: Agent, *, is_layer: bool, removes: bool) -> str | None:
        """Add or remove a convolution, channels of one, or the border of its kernels."""
        layout, (low, high) = layout_of(agent.policy), self._layers
        convs, images = layout.images
        layer = int(self._rng.integers(len(convs)))
        conv = convs[layer]
        count = self._draw_count(conv.channels, removes=removes)
        is_kernel = bool(self._rng.random() < _KERNEL_PROB)
        change: convolutions.ChangeConvs
        if is_layer and removes and len(convs) > low and convolutions.is_removable(conv):
            change = convolutions.remove_convolution
        elif is_layer and not removes and len(convs) < high:
            change = convolutions.add_convolution
        elif is_kernel and removes and conv.padding and conv.kernel > 2:
            change = convolutions.shrink_kernel
        elif is_kernel and not removes and conv.kernel + 2 <= _MAX_KERNEL:
            change = convolutions.grow_kernel
        elif count:
            change = partial(convolutions.resize_channels, count=count, rng=self._rng)
        else:
            return None
        opened = _Opened(agent, layout)
        changed = convolutions.change_convs(opened.tensors, images, convs, layer, change)
        opened.close(convs=changed)
        return f"convs {_format_convs(convs)} -> {_format_convs(changed)}"

    def _change_nodes(self, agent: Agent, *, removes: bool) -> str | None:
        layout, hidden = layout_of(agent.policy), tuple(agent.config.hidden)
        widths = [*hidden, *([agent.config.memory_size] if layout.memories else [])]
        layer = int(self._rng.integers(len(widths)))
        count = self._draw_count(widths[layer], removes=removes)
        if not count:
            return None

        width, opened = widths[layer] + count, _Opened(agent, layout)
        if layer == len(hidden):
            for memory in layout.memories:
                resize_memory(opened.tensors, memory, count=count, rng=self._rng)
            opened.close(memory_size=width)
            return f"memory {widths[layer]} -> {width}"
        for chain in layout.chains(len(hidden)):
            if chain.has(layer):
                resize(opened.tensors, chain, layer - chain.first, count=count, rng=self._rng)
        changed = (*hidden[:layer], width, *hidden[layer + 1 :])
        opened.close(hidden=changed)
        return f"hidden {hidden} -> {changed}"

    def _draw_count(self, width: int, *, removes: bool) -> int:
        """Draw how many units to add or, below 0, to remove."""
        wanted = self._num_nodes[int(self._rng.integers(len(self._num_nodes)))]
        low, high = self._nodes
        room = width - low if removes else high - width
        return max(min(wanted, room), 0) * (-1 if removes else 1)

    def _mutate_weights(self, agent: Agent) -> str:
        shaken = shake(agent.policy, spread=self._spread, rng=self._rng)
        return f"weights {self._spread:g}" if shaken else "none"

    def _mutate_activation(self, agent: Agent) -> str:
        _check_has_activation(agent.policy)
        layout = layout_of(agent.policy)
        others = [name for name in get_args(Activation) if name != layout.activation]
        chosen = others[int(self._rng.integers(len(others)))]
        return _change(agent, layout.activation_name, layout.activation, chosen)

    def _mutate_hyperparameter(self, agent: Agent) -> str:
        values = agent.hyperparameters
        for _ in range(_TRIES):
            drawn = self.search.mutate(values, self._rng)
            if drawn is None:
                break
            name, value = drawn
            if name == LEARN_EVERY or accepts(agent.config, {name: value}):
                return _change(agent, name, values[name], value)
        return "none"


class _Opened:
    """The tensors of an agent's networks and optimisers, to change their architecture."""

    def __init__(self, agent: Agent, layout: ParameterLayout) -> None:
        self._agent, self._layout = agent, layout
        self._state = agent.policy.state_dict()
        self.tensors = layout.open(self._state)

    def close(self, **changes: object) -> None:
        """Give the agent a policy with these tensors and changed settings."""
        config: Any = self._agent.config
        policy = made_like(self._agent.policy, dataclasses.replace(config, **changes))
        state = self._layout.close(self.tensors, self._state, policy.state_dict())
        policy.load_state_dict(state)
        self._agent.replace_policy(policy)


def _grow(agent: Agent, *, seed: int) -> str:
    policy = grow_policy(agent.policy, seed)
    if policy is None:
        return "none"
    before, after = (_num_weights(one) for one in (agent.policy, policy))
    agent.replace_policy(policy)
    return f"parameters {before} -> {after}"


def _num_weights(policy: Policy) -> int:
    """Return the number of weights in a user's networks, without targets."""
    learned, *_ = cast(OpenPolicy, policy).own_modules.values()
    return sum(t.numel() for module in learned.values() for t in module.state_dict().values())


def _format_convs(convs: convolutions.Convs) -> str:
    return " ".join(f"{conv.channels}@{conv.kernel}/{conv.stride}" for conv in convs)


def _change(agent: Agent, name: str, before: Value, after: Value) -> str:
    if name == LEARN_EVERY:
        agent.learn_every = None if after is None else int(after)
    else:
        config = dataclasses.replace(agent.config, **{name: after})
        agent.replace_policy(made_from(agent.policy, config))
    return f"{name} {_format(before)} -> {_format(after)}"


def _check_has_activation(policy: Policy) -> None:
    if has_own_network(policy):
        is_built = isinstance(policy, TorchPolicy) and "network" not in policy.parts
        of = "networks that its `build` makes" if is_built else "a network of its user"
        raise ConfigError(
            f"`activation` of the mutation is above 0, but this {type(policy).__name__} has {of}, "
            f"and activations of those stay as they are. Leave it at 0."
        )
    layout_of(policy)  # raises for networks that are unknown here


def _format(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)

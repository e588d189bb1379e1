"""A population: agents that learn side by side, generation after generation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import nn

from ding_lite.errors import CheckpointError, ConfigError, ShapeError, kind_of
from ding_lite.evolution.agent import Agent, Birth, made_from, made_like, make_agent
from ding_lite.evolution.growth.modules import has_own_network
from ding_lite.evolution.growth.parameter_layout import convs_of
from ding_lite.evolution.mutation import Mutation
from ding_lite.evolution.search import (
    LEARN_EVERY,
    Search,
    Value,
    accepts,
    as_dataclass,
    check_search,
    with_values,
)
from ding_lite.evolution.tournament import Tournament
from ding_lite.io.memory import check_fits
from ding_lite.rl.networks.conv import Conv
from ding_lite.rl.policies.base.config import own_config
from ding_lite.rl.protocols import Policy
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state, spawn_seeds
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.weights.flat_module import MakeModule, copied
from ding_lite.rl.weights.optimizers import MakeOptimizer, unused_settings
from ding_lite.rl.wrong_calls import takes
from ding_lite.settings.config import as_config
from ding_lite.settings.rules import check_all, whole

_COPIES_THAT_LEARN = 4
"""The least copies of its weights that an agent holds: weights, gradient, two moments of Adam."""
_BYTES_OF_OBJECTS = 16_384
"""The least memory of an agent in addition to its weights, in bytes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Life:
    """The record of one agent in one generation: a line of `lineage.jsonl`."""

    generation: int
    """The generation, from 0."""
    place: int
    """Its place in the population."""
    id: int
    """The agent's id, which stays as long as the agent is not changed."""
    parent: int | None
    """The id of the agent that it was copied from or mutated from."""
    mutation: str
    """The mutation that changed it."""
    fitness: float | None
    """The mean return of its last evaluation in this generation."""
    hyperparameters: dict[str, Value]
    """Its values of the hyperparameters that are searched."""
    hidden: tuple[int, ...] | None = None
    """The widths of its hidden layers."""
    convs: tuple[Conv, ...] | None = None
    """Its convolutions, if it sees images."""


class Population:
    """Agents by place. Made by `Population.of`.

    Args:
        agents: Agents with policies of one kind, made for the same environment.
        seed: Seed of the seeds of offspring.

    Raises:
        ConfigError: There are no agents, or their places are not 0, 1, 2, and so on.

    Example:
        >>> from ding_lite.evolution import integer, log_uniform
        >>> from ding_lite.rl import DQN, make_envs
        >>> spec = make_envs("CartPole-v1", 1).spec
        >>> search = Search(lr=log_uniform(1e-4, 1e-2), batch_size=integer(8, 64))
        >>> population = Population.of(DQN, spec, search, size=6, seed=0)
        >>> len(population), sorted(population[0].hyperparameters)
        (6, ['batch_size', 'lr'])
    """

    def __init__(self, agents: list[Agent], *, seed: int = 0) -> None:
        if not agents:
            raise ConfigError("A population needs agents; `Population.of` makes them.")
        _check_places(agents)
        self.agents = tuple(agents)
        """All agents, by place. The objects stay; their policies are replaced."""
        self.generation = 0
        """The number of the current generation, from 0."""
        self.search: Search | None = None
        """The hyperparameters that `Population.of` was given to search."""
        self.lives: list[Life] = []
        """The records of all agents in all finished generations."""
        self._next_id = 1 + max(agent.birth.id for agent in agents)
        self._rng = make_rng(seed, "population")

    @classmethod
    def of(  # noqa: PLR0913 - all but three by name, and few at a time
        cls,
        policy: Callable[..., Policy],
        spec: EnvSpec,
        search: Search | None = None,
        *,
        size: int = 6,
        seed: int = 0,
        config: object = None,
        network: MakeModule | None = None,
        actor: MakeModule | None = None,
        critic: MakeModule | None = None,
        optimizer: MakeOptimizer | None = None,
    ) -> Self:
        """Make agents that differ in their initial weights and searched hyperparameters.

        Args:
            policy: The kind of policy, such as `DQN`, or a function of the spec, and a config if it
                takes one, that makes a policy. If that is trained, all agents continue it.
            spec: The spec of the environments, `envs.spec`.
            search: The hyperparameters to search, with their bounds; none by default.
            size: The number of agents. More agents search more settings at a time, at proportional
                cost; 4 to 10 are usual.
            seed: Seed of the initial weights and hyperparameters.
            config: The settings that all share, as the policy takes them, or as a dict; the
                defaults of the policy by default.
            network: A user's network, as the policy takes it. A function of the spec makes one for
                each agent, with its seed; a module is copied with its weights.
            actor: A user's actor, likewise.
            critic: A user's critic, likewise.
            optimizer: A user's optimiser, as the policy takes it.

        Raises:
            ConfigError: A setting to search is not one of the policy's, a number is out of range,
                settings change the networks of a trained policy, or the machine has too little
                memory for so many agents.
        """
        search = search or Search()
        check_all(
            [] if callable(policy) else [f"`policy` is {kind_of(policy)}; its class was expected"],
            check_search(search),
            whole(1, size=size),
            whole(0, seed=seed),
        )
        given = {"network": network, "actor": actor, "critic": critic, "optimizer": optimizer}
        parts = {name: part for name, part in given.items() if part is not None}
        base = _base_config(policy, spec, config, parts)
        search.check(base)
        if unused := unused_settings(optimizer) & search.parameters.keys():
            raise ConfigError(
                f"`{min(unused)}` cannot be searched, as `optimizer` takes no `lr` and keeps its "
                f"own learning rate. Write for example "
                f"`lambda params, lr: torch.optim.SGD(params, lr=lr)`, or leave `{min(unused)}` "
                f"out of the search."
            )

        def make(place: int, own_seed: int) -> Agent:
            drawn = search.draw(make_rng(own_seed, "search"))
            learn_every = drawn.pop(LEARN_EVERY, None)
            own = dataclasses.replace(with_values(base, drawn), seed=own_seed)
            return make_agent(
                _make_policy(policy, spec, own, parts, searched=(*drawn, "seed")),
                place=place,
                searched=tuple(search.parameters),
                learn_every=None if learn_every is None else int(learn_every),
            )

        first = make(0, *spawn_seeds(seed, "population", count=1))
        _check_fits(first, size)
        _check_shapes(first, search)
        seeds = spawn_seeds(seed, "population", count=size)
        others = [make(place, own_seed) for place, own_seed in enumerate(seeds) if place]
        population = cls([first, *others], seed=seed)
        population.search = search
        return population

    def __len__(self) -> int:
        return len(self.agents)

    def __iter__(self) -> Iterator[Agent]:
        return iter(self.agents)

    def __getitem__(self, place: int) -> Agent:
        return self.agents[place]

    @property
    def spec(self) -> EnvSpec:
        """The spec of the environments of all agents."""
        return self.agents[0].spec

    @property
    def best(self) -> Agent:
        """The agent with the best last evaluation; the oldest of several equally good ones.

        Offspring inherit the evaluations of their parents, and are younger.
        """
        return max(self.agents, key=lambda agent: (agent.mean_fitness(1), -agent.birth.id))

    def evolve(self, tournament: Tournament, mutation: Mutation) -> None:
        """Begin the next generation: select, copy, mutate.

        Args:
            tournament: Selects the parents.
            mutation: Mutates all agents but the elite, or all with `mutate_elite`.

        Raises:
            ConfigError: An agent was not evaluated in this generation, all agents have a fault, or
                a policy cannot be mutated in this way.
        """
        self._check_evaluated()
        check_applies(tournament, mutation, self)
        selection = tournament.select(self.agents)
        self.lives += self.lives_now()
        self.generation += 1
        ids = [agent.birth.id for agent in self.agents]
        for place, parent in enumerate(selection.parents):  # before anything is mutated
            if parent != place:
                seed = int(self._rng.integers(2**63))
                self.agents[place].inherit(self.agents[parent], seed=seed)
        for agent, parent in zip(self.agents, selection.parents, strict=True):
            is_elite = agent.place == selection.elite
            kind = "none" if is_elite and not mutation.mutate_elite else mutation.mutate(agent)
            birth = agent.birth
            if kind != "none" or parent != agent.place:
                kind = "copy" if kind == "none" else kind
                birth = Birth(
                    id=self._next_id, parent=ids[parent], generation=self.generation, mutation=kind
                )
                self._next_id += 1
            agent.begin_generation(birth)

    def lives_now(self) -> list[Life]:
        """Return the record of each agent in this generation so far."""
        return [
            Life(
                generation=self.generation,
                place=agent.place,
                id=agent.birth.id,
                parent=agent.birth.parent,
                mutation=agent.birth.mutation,
                fitness=agent.fitness if agent.num_new_evaluations else None,
                hyperparameters={**agent.hyperparameters},
                **_architecture(agent),
            )
            for agent in self.agents
        ]

    def state_dict(self) -> dict[str, Any]:
        """Copy the state that an exact resume needs."""
        return {
            "agents": [agent.state_dict() for agent in self.agents],
            "generation": self.generation,
            "lives": [dataclasses.asdict(life) for life in self.lives],
            "next_id": self._next_id,
            "rng": rng_state(self._rng),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict` exactly, even if networks have grown since.

        Raises:
            CheckpointError: The state is not that of a population, or of one of another size.
        """
        if set(state) != {"agents", "generation", "lives", "next_id", "rng"}:
            raise CheckpointError(f"This is no state of a population: it has {sorted(state)}.")
        if len(state["agents"]) != len(self):
            raise CheckpointError(
                f"The saved population has {len(state['agents'])} agents, this one {len(self)}. "
                f"Make one of the same size to go on exactly."
            )
        for agent, saved in zip(self.agents, state["agents"], strict=True):
            agent.load_state_dict(saved)
        self.generation = int(state["generation"])
        self.lives = [as_config(Life, life) for life in state["lives"]]
        self._next_id = int(state["next_id"])
        set_rng_state(self._rng, state["rng"])

    def clone(self) -> Self:
        """Make an independent population in exactly this state."""
        twin = type(self)([agent.clone() for agent in self.agents])
        twin.search = self.search
        twin.load_state_dict(self.state_dict())
        return twin

    def _check_evaluated(self) -> None:
        for agent in self.agents:
            if not agent.num_new_evaluations and agent.fault is None:
                raise ConfigError(
                    f"Agent {agent.place} was not evaluated in generation {self.generation}, so "
                    f"its fitness is unknown. Put `evaluate` before `evolve`, "
                    f"with an `every` that is not longer."
                )
        if all(agent.fault is not None for agent in self.agents):
            raise ConfigError(
                f"No agent can learn any more: {self.agents[0].fault} Search lower learning "
                f"rates, or give `max_grad_norm`."
            )


def check_applies(tournament: Tournament, mutation: Mutation, population: Population) -> None:
    """Raise if a tournament or a mutation does not apply to the agents of a population.

    Raises:
        ConfigError: The tournament is larger than the population, a policy cannot be mutated in
            this way or has a `reduce_gradient`, or the mutation searches other settings than the
            agents, or within other bounds.
    """
    agents = population.agents
    if isinstance(tournament, Tournament):  # one of your own may be of any size
        tournament.check(agents)
    mutation.check(agents[0].policy)
    averaging = [a.place for a in agents if getattr(a.policy, "reduce_gradient", None) is not None]
    if averaging:
        raise ConfigError(
            f"The policies of the agents {averaging} have a `reduce_gradient`, such as that of "
            f"`data_parallel`, which offspring do not inherit. Leave it out: agents learn alone, "
            f"and several nodes train other agents each."
        )
    search: object = getattr(mutation, "search", None)  # one of your own may have none
    mutated = search.parameters if isinstance(search, Search) else {}
    search = getattr(population, "search", None)  # and so may a population
    drawn = search.parameters if isinstance(search, Search) else {}
    for name, parameter in mutated.items():
        if name not in agents[0].searched:
            found = f"`{name}`, and the agents search {', '.join(agents[0].searched) or 'nothing'}"
        elif drawn.get(name, parameter) != parameter:
            found = f"`{name}` in {parameter}, and the agents in {drawn[name]}"
        else:
            continue
        raise ConfigError(
            f"The mutation searches {found}. Give both the same search: "
            f"`Population.of(policy, spec, search)` and `Mutation(search)`."
        )


def _check_places(agents: Sequence[Agent]) -> None:
    given: Sequence[object] = agents
    strange = [kind_of(agent) for agent in given if not isinstance(agent, Agent)]
    if strange:
        raise ConfigError(
            f"`agents` has {strange[0]}; agents were expected, such as "
            f"`[Agent(policy, place=0), Agent(policy, place=1)]`."
        )
    places = [agent.place for agent in agents]
    if places != list(range(len(agents))):
        raise ConfigError(
            f"The agents have the places {places}; {list(range(len(agents)))} was expected. Give "
            f"each its own: `Agent(policy, place=1)`."
        )


def _architecture(agent: Agent) -> dict[str, Any]:
    if has_own_network(agent.policy):
        return {}
    convs = convs_of(agent.policy) or None
    return {"hidden": getattr(agent.config, "hidden", None), "convs": convs}


def _check_fits(agent: Agent, size: int) -> None:
    weights = sum(tensor.nbytes for tensor in agent.policy.weights().values())
    needed = size * (_COPIES_THAT_LEARN * weights + _BYTES_OF_OBJECTS)
    check_fits(needed, what="Evolution", population=size)


def _check_shapes(agent: Agent, search: Search) -> None:
    """Refuse a setting that changes the shapes of networks, which a mutation could not keep."""
    shapes = _shapes(agent.policy)
    for name, parameter in search.without({LEARN_EVERY}).parameters.items():
        for value in parameter.examples():
            if not accepts(agent.config, {name: value}):  # beside what it has drawn
                continue
            other = made_like(agent.policy, dataclasses.replace(agent.config, **{name: value}))
            if _shapes(other) != shapes:
                raise ConfigError(
                    f"`{name}` cannot be searched: with {value!r} the networks of "
                    f"{type(agent.policy).__name__} have other shapes, so that a mutation would "
                    f"lose what they have learned. Give networks a `grow(rng)` instead, for "
                    f"mutations of the architecture."
                )


def _shapes(policy: Policy) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in policy.weights().items()}


def _copied(parts: Mapping[str, object]) -> dict[str, Any]:
    modules = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    copies: Any = copied(nn.ModuleDict(modules))  # together, as they may share layers
    return {**parts, **copies}


def _make_policy(
    policy: Callable[..., Policy],
    spec: EnvSpec,
    config: Any,  # noqa: ANN401 - a dataclass of the policy's own
    parts: Mapping[str, object],
    *,
    searched: Sequence[str],
) -> Policy:
    """Make the policy of an agent with its own settings, also if a function does not use them.

    A trained policy continues, with random numbers of its own.
    """
    given = (spec, config) if takes(policy, spec, config, **parts) else (spec,)
    made = policy(*given, **_copied(parts))
    is_own = all(getattr(made.config, name) == getattr(config, name) for name in searched)
    if not (getattr(made, "train_iter", 0) or (not is_own and _has_other_weights(made))):
        return made if is_own else made_like(made, config)
    try:
        own = made if is_own else made_from(made, config)
    except (CheckpointError, ShapeError) as error:
        raise ConfigError(
            f"The function given as `policy` makes a trained {type(made).__name__}, and with the "
            f"settings of the population its networks are others: {error} Leave those settings "
            f"out."
        ) from error
    make_agent(own).reseed(config.seed)
    return own


def _has_other_weights(policy: Policy) -> bool:
    """Return whether the weights are others than those of each new policy of the same settings."""
    new, again = (made_like(policy, policy.config).weights() for _ in range(2))
    is_repeated = all(torch.equal(new[name], again[name]) for name in new)
    weights = policy.weights()
    return is_repeated and any(not torch.equal(weights[name], new[name]) for name in new)


def _base_config(
    policy: Callable[..., Policy], spec: EnvSpec, config: object, parts: Mapping[str, object]
) -> Any:  # noqa: ANN401 - a dataclass of the policy's own
    """Return the settings that all agents share, of the policy's own class."""
    if not takes(policy, spec, **parts) and takes(policy, spec, config, **parts):
        raise ConfigError(
            f"`{getattr(policy, '__name__', 'policy')}` is first called with the spec alone, for "
            f"the defaults of its settings, and needs a second argument. Give that a default: "
            f"def make(spec, config=DQNConfig())."
        )
    made: object = policy(spec, **_copied(parts))
    if isinstance(made, Agent) or not isinstance(made, Policy):
        raise ConfigError(
            f"The function given as `policy` returned {kind_of(made)}; a policy was expected, such "
            f"as a DQN, or the `policy` of an Agent."
        )
    own = as_dataclass(made.config)
    return own if config is None else own_config(config, type(own))

"""Distributed evolution: one node owns and evolves a population, and others train its members.

A learner takes members, trains and evaluates them for a generation, and gives them back. When all
are back the first node of the server's group, the owner, evolves the next generation and hands it
out. It keeps the states that it has handed out until then: members that are lost with their node
begin the generation again, on the learner that asks first, which may be that node restarted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self

from ding_lite.clock import Deadline
from ding_lite.distributed.server import Server, check_methods
from ding_lite.errors import ConfigError, DeadlineExceeded
from ding_lite.parallel.router.group import Group, check_group
from ding_lite.rl.replay.storage import check_keys
from ding_lite.settings.rules import check_all, positive

COUNTERS = ("env_step", "train_iter", "eval_steps")
"""Counters of learners that the server adds up."""


class Members(Protocol):
    """The population of a `PopulationServer`."""

    generation: int

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Any: ...  # noqa: ANN401 - a member, with a state

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def clone(self) -> Self: ...


@dataclass
class TakenMembers:
    """The members that a learner has taken."""

    incarnation: int
    """The incarnation of the server that has handed them out."""
    generation: int
    states: dict[int, Any]
    """The state of each member at the beginning of the generation, by place."""
    since: dict[str, int] = field(default_factory=dict)
    """The learner's counters when it took them."""


class PopulationServer:
    """Hands the members of a population out to learners, and takes them back.

    Every node makes one, with the same arguments. On the first node of the group, the owner, it
    holds a clone of the population, and its state can be part of a checkpoint. Methods for the
    owner raise ConfigError on other nodes.

    Args:
        group: Its first node is the owner.
        learners: The nodes that train; in an elastic job also nodes with these labels that join
            later, from the next generation on. They must be connected to it.
        population: The population to train; the same on every node.
        name: Distinguishes this server from others of the same nodes.
        timeout: Seconds that a learner waits for a lost server, and the server for a learner that
            trains lost members, from when no connected learner has members of its own.

    Raises:
        ConfigError: A setting is out of range or of another kind, or there are more learners than
            members.
    """

    def __init__(
        self,
        group: Group,
        learners: Group,
        population: Members,
        *,
        name: str = "population",
        timeout: float = 60.0,
    ) -> None:
        check_all(positive(timeout=timeout))
        check_group(learners, "learners")
        expected = "a Population was expected, such as `Population.of(DQN, spec, search)`"
        check_methods(population, "population", "clone", "__len__", expected=expected)
        if len(learners) > len(population):
            raise ConfigError(
                f"There are {len(learners)} learners for a population of {len(population)}, so "
                f"that some would have nothing to train. Take fewer, or a larger population."
            )
        self.num_restored = 0
        """On the owner: how many members were lost with their node and trained again."""
        self.counts = dict.fromkeys(COUNTERS, 0)
        """On the owner: the sums of the learners' counters, for members that are back."""
        self.held: TakenMembers | None = None
        """On a learner: the members that it has taken and not yet given back."""
        self._learners = learners
        self._server = server = Server(
            group, f"ding_lite.population_server.{name}", timeout=timeout
        )
        self._num_turns = 0
        self._topic = f"ding_lite/population/{name}"
        self._turns = server.router.subscribe(self._topic)
        """Changes when there are members for a learner that got none."""
        self._given = population
        self._own: Members | None = None
        self._lock = threading.Lock()
        """Guards all below, and `counts`: handlers run on the router's threads."""
        self._holder: dict[int, int] = {}
        """On the owner: the learner of each place that is out."""
        self._taken: set[int] = set()
        """The places out that a learner has taken."""
        self._back: dict[int, Any] = {}
        """The states that have come back, by place."""
        if server.is_owner:
            self._own = population.clone()
            self._plan([*learners.members])
            server.register("take", self._answer_take)
            server.register("give", self._answer_give)

    # -- on a learner --------------------------------------------------------------------------

    def take(self, *, until: Callable[[], bool] = lambda: False) -> TakenMembers | None:
        """Wait for members to train; return None if `until` or the end of the job ended the wait.

        Raises:
            DeadlineExceeded: The server's node is lost, or does not answer, for too long.
            RemoteError: The node is connected, and has not made the server in time.
        """
        server = self._server
        while server.wait_for_node(server.owner, until) and not server.has_ended(until):
            seen = self._turns.newest
            share = server.call(server.owner, "take", server.router.node_id, until=until)
            if share:
                self.held = TakenMembers(*share)
                return self.held
            if share is not None:  # None: the owner was lost, and its next incarnation is asked
                self._turns.wait(partial(self._may_ask, seen), until=until)
        return None

    def _may_ask(self, seen: Mapping[str, Any], newest: Mapping[str, Any]) -> bool:
        return newest is not seen or not self._server.is_connected(self._server.owner)

    def give(
        self,
        states: Mapping[int, Any],
        counted: Mapping[str, int],
        *,
        until: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Give back members after training and evaluation.

        Args:
            states: The members' states, by place.
            counted: The learner's counters for them, by the names in `COUNTERS`. If another learner
                has taken over some of them meanwhile, those of the others are their equal share.
            until: Ends the wait for a lost server.

        Returns:
            Whether they were accepted: a server that was restarted, or has given the same members
            to another learner meanwhile, does not accept them.

        Raises:
            ConfigError: No members were taken, or an argument is no dict.
            DeadlineExceeded: The server's node is lost for too long.
        """
        if self.held is None:
            raise ConfigError("There is nothing to give back, as nothing was taken.")
        expected = "a dict was expected, of states by place and of counters by name"
        check_methods(states, "states", "items", expected=expected)
        check_methods(counted, "counted", "items", expected=expected)
        share, self.held = self.held, None
        server = self._server
        is_accepted = server.call(
            server.owner,
            "give",
            server.router.node_id,
            share.incarnation,
            share.generation,
            dict(states),
            dict(counted),
            until=until,
            awaits_server=False,
        )
        return bool(is_accepted)

    # -- on the owner --------------------------------------------------------------------------

    @property
    def population(self) -> Any:  # noqa: ANN401 - of the kind that was given
        """On the owner: its population, complete once all members are back.

        On other nodes the given population, so that a program may use it on all nodes.
        """
        return self._given if self._own is None else self._own

    def gather(self, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Wait until all members are back, and load their states.

        Returns:
            Whether all are back; False if `until` or the end of the job ended the wait.

        Raises:
            DeadlineExceeded: No learner was connected for too long to train lost members.
        """
        own = self._owned()
        while not self._is_complete() and not self._server.has_ended(until):
            unassigned, is_busy = self._unassigned()
            if unassigned:
                self._let_learners_ask()
            self._wait_for_change(unassigned, is_busy, until)
        if not self._is_complete():
            return False
        for place, state in self._back.items():
            own[place].load_state_dict(state)
        return True

    def hand_out(self) -> None:
        """Hand out the current members for the next generation."""
        self._owned()
        connected = [*filter(self._server.is_connected, self._learners.members_now)]
        with self._lock:
            self._plan(connected or [*self._learners.members])
        self._let_learners_ask()

    def state_dict(self) -> dict[str, Any]:
        """Copy the state of the owner: its population and its counters."""
        return {"population": self._owned().state_dict(), "counts": dict(self.counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned, on the owner.

        Members that learners have taken before are no longer accepted.

        Raises:
            CheckpointError: It is no state of a server, or of a population of another size.
        """
        own = self._owned()
        check_keys(state, self.state_dict(), "a PopulationServer")
        own.load_state_dict(state["population"])
        self.counts = {name: int(state["counts"][name]) for name in COUNTERS}
        self._server.renew()
        self.hand_out()
        self._server.notify()

    def _wait_for_change(
        self, unassigned: list[int], is_busy: bool, until: Callable[[], bool]
    ) -> None:
        """Wait until all members are back, or `_unassigned` returns something else."""
        # There is no time limit for a connected learner with members; it trains the others later.
        deadline = Deadline.after(self._server.timeout if unassigned and not is_busy else None)

        def is_news() -> bool:
            return self._is_complete() or self._unassigned() != (unassigned, is_busy)

        if not self._server.wait(is_news, deadline, until):
            raise DeadlineExceeded(
                f"The members {unassigned} were lost with their nodes, and no learner has been "
                f"free to train them for {self._server.timeout:g} s. Connected are the nodes "
                f"{[*self._server.router.peers]}, learners are {[*self._learners.members_now]}. "
                f"Start the nodes that are gone again; `auto_recover=True` does so by itself."
            )

    def _plan(self, learners: list[int]) -> None:
        """Assign places to learners; the same learners get the same places."""
        places = range(len(self._owned()))
        self._holder = {place: learners[place % len(learners)] for place in places}
        self._taken, self._back = set(), {}

    def _let_learners_ask(self) -> None:
        self._num_turns += 1
        self._server.router.publish(self._topic, self._num_turns)

    def _answer_take(self, node: int) -> list[Any]:
        """Return the learner's own members, also taken ones, or else some without a learner."""
        with self._lock:
            own = self._owned()
            places = self._places_for(node)
            self.num_restored += sum(place in self._taken for place in places)
            self._holder |= dict.fromkeys(places, node)
            self._taken |= {*places}
            states = {place: own[place].state_dict() for place in places}
            return [self._server.incarnation, own.generation, states] if places else []

    def _answer_give(
        self,
        node: int,
        incarnation: int,
        generation: int,
        states: dict[int, Any],
        counted: dict[str, int],
    ) -> bool:
        with self._lock:
            is_known = (
                incarnation == self._server.incarnation and generation == self._owned().generation
            )
            new = {p: s for p, s in states.items() if is_known and self._holder.get(p) == node}
            for name in COUNTERS if new else ():
                self.counts[name] += int(counted.get(name, 0)) * len(new) // len(states)
            for place, state in new.items():
                self._back[place] = state
                self._taken.discard(place)
                del self._holder[place]  # last: `gather` reads it without the lock
        self._server.notify()
        return bool(new)

    def _places_for(self, node: int) -> list[int]:
        mine = [place for place, holder in self._holder.items() if holder == node]
        if mine:
            return mine
        lost = self._lost()
        free = sum(map(self._server.is_connected, self._learners.members_now))
        return lost[: -(-len(lost) // max(1, free))]

    def _lost(self) -> list[int]:
        return [
            place for place, holder in self._holder.items() if not self._server.is_connected(holder)
        ]

    def _unassigned(self) -> tuple[list[int], bool]:
        """Return the members without a connected learner, and whether a learner trains others."""
        with self._lock:
            lost = self._lost()
            return lost, not self._taken <= {*lost}

    def _is_complete(self) -> bool:
        return not self._holder

    def _owned(self) -> Members:
        if self._own is None:
            raise ConfigError(
                f"Node {self._server.router.node_id} does not keep the population of this server; "
                f"node {self._server.owner} does. Let `gather_members` run there only."
            )
        return self._own

"""The population server: members are handed out, given back, and never lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, TimeoutError as FutureTimeout

import numpy as np
import pytest
import torch

from ding_lite.distributed import PopulationServer
from ding_lite.distributed.population_server import TakenMembers
from ding_lite.errors import ConfigError, DeadlineExceeded
from ding_lite.evolution import Mutation, Population, Search, Tournament, log_uniform
from ding_lite.parallel.router.group import Group, World
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.rl import DQN, make_envs
from ding_lite.runtime.messaging.router import use_router
from ding_lite.testing import Cluster
from tests.nodes import found_at_the_end

SPEC = make_envs("CartPole-v1", 1).spec
SEARCH = Search(lr=log_uniform(1e-4, 1e-2))
COUNTED = {"env_step": 10, "train_iter": 5, "eval_steps": 2}


def make_population(size: int = 5) -> Population:
    return Population.of(DQN, SPEC, SEARCH, size=size, config={"hidden": (4,)})


class Job:
    """A breeder and some learners in one process, on a network that can be cut."""

    def __init__(self, *, timeout: float = 30.0, size: int = 5, learners: int = 2) -> None:
        self.size, self.timeout = size, timeout
        self.cluster = Cluster(1 + learners, "star", roles=["breeder", *["learner"] * learners])
        self.owner, *self.learners = map(self.make, range(1 + learners))

    def make(self, node: int) -> PopulationServer:
        router = self.cluster.routers[node]
        with use_router(router):
            world = World(router)
            groups = world.group("breeder"), world.group("learner")
            return PopulationServer(*groups, make_population(self.size), timeout=self.timeout)

    def lose(self, node: int) -> None:
        self.cluster.network.remove(node)
        self.cluster.routers[node].close(good_bye=False)

    def restart(self, node: int) -> None:
        self.cluster.restart(node)
        self.learners[node - 1] = self.make(node)


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    yield job
    job.cluster.close()


def taken(server: PopulationServer) -> TakenMembers:
    share = server.take()
    assert share is not None
    return share


def train(server: PopulationServer, value: float = 1.0) -> None:
    """Give back the members, each with an evaluation and a weight of its learner."""
    assert server.held is not None
    population, share = make_population(len(server.population)), server.held
    for place, state in share.states.items():
        population[place].load_state_dict(state)
        population[place].note_evaluation(value + place)
        weights = population[place].weights()
        weights["head.bias"][:] = value + place
        population[place].load_weights(weights)
    states = {place: population[place].state_dict() for place in share.states}
    assert server.give(states, COUNTED)


def test_members_are_handed_out_given_back_and_evolved(job: Job) -> None:
    first, second = job.learners
    assert [[*taken(learner).states] for learner in (first, second)] == [[0, 2, 4], [1, 3]]
    train(first)
    train(second, 100.0)
    assert job.owner.gather()
    population = job.owner.population
    assert [agent.fitness for agent in population] == [1.0, 101.0, 3.0, 103.0, 5.0]
    assert [float(agent.weights()["head.bias"][0]) for agent in population] == [1, 101, 3, 103, 5]
    assert job.owner.counts == {"env_step": 20, "train_iter": 10, "eval_steps": 4}

    population.evolve(Tournament(), Mutation(SEARCH))
    job.owner.hand_out()
    share = taken(second)
    assert share.generation == 1
    born = population[3].weights()["head.bias"]
    assert torch.equal(torch.as_tensor(share.states[3]["policy"]["q_net"]["head.bias"]), born)


def test_a_learner_that_has_joined_takes_its_share_of_the_next_generation() -> None:
    def make(router: NodeRouter) -> PopulationServer:
        with use_router(router):
            learners = Group(router, (1,), lambda: (1, 2))
            return PopulationServer(World(router).group(0), learners, make_population())

    with Cluster(3, "star") as cluster:
        owner, first, joined = map(make, cluster.routers)
        first.take()
        train(first)
        assert owner.gather()
        owner.hand_out()
        assert [[*taken(learner).states] for learner in (first, joined)] == [[0, 2, 4], [1, 3]]


def test_members_of_a_lost_node_begin_their_generation_again_elsewhere(job: Job) -> None:
    first, second = job.learners
    first.take()
    before = taken(second)
    train(first)

    job.lose(2)

    def take_over() -> TakenMembers:
        share = taken(first)
        train(first, 50.0)
        return share

    with ThreadPoolExecutor(thread_name_prefix="ding_lite-test") as pool:
        taking_over = pool.submit(take_over)
        assert job.owner.gather()
        share = taking_over.result()
    assert [*share.states] == [1, 3]
    for place, state in share.states.items():  # as they were when the generation began
        for name, weight in state["policy"]["q_net"].items():
            np.testing.assert_array_equal(weight, before.states[place]["policy"]["q_net"][name])
    assert [agent.fitness for agent in job.owner.population] == [1.0, 51.0, 3.0, 53.0, 5.0]
    assert job.owner.num_restored == 2


def test_members_that_another_learner_has_taken_over_are_not_accepted_of_the_first(
    job: Job,
) -> None:
    first, second = job.learners
    assert second.take() is not None
    first.take()
    train(first)
    job.cluster.network.cut(0, 2)
    assert first.take() is not None  # as soon as the other one counts as lost
    job.cluster.network.mend(0, 2)
    job.cluster.routers[0].wait_ready(10.0)
    assert second.held is not None
    assert not second.give(second.held.states, COUNTED)
    train(first)
    assert job.owner.gather()
    assert job.owner.counts["env_step"] == 2 * COUNTED["env_step"]


def test_members_of_which_some_were_taken_over_count_once() -> None:
    job = Job(size=6, learners=3)
    with job.cluster:
        first, second, third = job.learners
        assert [[*taken(learner).states] for learner in job.learners] == [[0, 3], [1, 4], [2, 5]]
        train(second)
        train(third)
        job.cluster.network.cut(0, 1)
        assert [*taken(second).states] == [0]
        job.cluster.network.mend(0, 1)
        job.cluster.routers[0].wait_ready(10.0)
        train(first)
        assert job.owner.counts == {"env_step": 25, "train_iter": 12, "eval_steps": 5}
        train(second, 50.0)
        assert job.owner.gather()
        assert [agent.fitness for agent in job.owner.population] == [50, 2, 3, 4, 5, 6]
        assert job.owner.counts["env_step"] == 35


def test_a_wait_for_members_of_other_nodes_ends_with_the_job(job: Job) -> None:
    assert found_at_the_end(job.cluster.routers[0], job.owner.gather) is False


def test_a_learner_s_wait_for_members_ends_with_the_job(job: Job) -> None:
    learner = job.learners[0]
    taken(learner)
    train(learner)
    assert found_at_the_end(job.cluster.routers[1], learner.take) is None


def test_members_are_gathered_only_once_all_of_them_are_counted(job: Job) -> None:
    gathered = []

    class Counts(dict[str, int]):
        def __setitem__(self, name: str, value: int) -> None:
            gathered.append(job.owner.gather(until=lambda: True))
            super().__setitem__(name, value)

    job.owner.counts = Counts(job.owner.counts)
    for learner in job.learners:
        learner.take()
        train(learner)
    assert gathered == [False] * 6
    assert job.owner.gather()


def test_a_restarted_node_gets_its_members_again(job: Job) -> None:
    first, second = job.learners
    first.take()
    before = taken(second)
    train(first)
    job.restart(2)
    assert [*taken(job.learners[1]).states] == [*before.states]
    train(job.learners[1])
    assert job.owner.gather()
    assert job.owner.num_restored == 2


def test_members_given_back_twice_or_too_late_are_not_accepted(job: Job) -> None:
    first, second = job.learners
    share = taken(first)
    second.take()
    train(first)
    train(second)
    first.held = share
    assert not first.give(share.states, COUNTED)
    assert job.owner.counts["env_step"] == 20
    assert job.owner.gather()
    job.owner.load_state_dict(job.owner.state_dict())  # as one that was restarted
    first.held = share
    assert not first.give(share.states, COUNTED)


def test_members_without_a_learner_are_named() -> None:
    job = Job(timeout=0.2, size=2)
    with job.cluster:
        first, _ = job.learners
        first.take()
        train(first)
        job.lose(2)
        with pytest.raises(DeadlineExceeded, match=r"members \[1\] were lost .* `auto_recover"):
            job.owner.gather()


def test_lost_members_wait_for_a_learner_that_is_busy_for_longer_than_the_timeout() -> None:
    job = Job(timeout=0.8, size=2)
    with job.cluster, ThreadPoolExecutor(thread_name_prefix="ding_lite-test") as pool:
        first, _ = job.learners
        first.take()
        job.lose(2)
        gathering = pool.submit(job.owner.gather)
        with pytest.raises(FutureTimeout):
            gathering.result(timeout=2.0)
        train(first)
        assert [*taken(first).states] == [1]
        train(first)
        assert gathering.result(timeout=10.0)


def test_a_loaded_server_goes_on_from_its_last_complete_generation(job: Job) -> None:
    for learner in job.learners:
        learner.take()
        train(learner)
    assert job.owner.gather()
    job.owner.population.evolve(Tournament(), Mutation(SEARCH))
    saved = job.owner.state_dict()

    later = Job()
    with later.cluster:
        later.owner.load_state_dict(saved)
        assert later.owner.counts == job.owner.counts
        for share in map(taken, later.learners):
            assert share.generation == 1
            for place, state in share.states.items():
                np.testing.assert_array_equal(
                    state["evaluations"], saved["population"]["agents"][place]["evaluations"]
                )


def test_misuse_raises_an_error_with_advice(job: Job) -> None:
    world = World(job.cluster.routers[0])
    with pytest.raises(ConfigError, match="2 learners for a population of 1"):
        PopulationServer(world.group("breeder"), world.group("learner"), make_population(1))
    with pytest.raises(ConfigError, match="as nothing was taken"):
        job.learners[0].give({}, {})
    with pytest.raises(ConfigError, match=r"Node 1 does not keep .* node 0 does"):
        job.learners[0].gather()
    assert len(job.learners[0].population) == 5

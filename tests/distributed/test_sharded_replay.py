"""The sharded replay: sampled as one replay, without blocking, also after lost shards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait as wait_for_all
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite import middleware as mw
from ding_lite.distributed import ShardedReplay, ShardedTransitions, World, shards
from ding_lite.errors import (
    CodecError,
    ConfigError,
    DeadlineExceeded,
    NonFiniteError,
    PeerLost,
    RemoteError,
    ShapeError,
)
from ding_lite.parallel.router import calls as rpc
from ding_lite.parallel.router.group import Group
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.rl import (
    DQN,
    DQNConfig,
    PrioritizedReplay,
    Transitions,
    make_envs,
)
from ding_lite.rl.replay.prioritized import Drawn
from ding_lite.runtime.task import Task
from ding_lite.testing import Cluster, run_step
from tests.nodes import found_at_the_end

SPEC = make_envs("CartPole-v1", 1).spec
ALPHA, BETA = 0.6, 0.4


def numbered(numbers: Any) -> Transitions:
    """Make transitions with their numbers as observations."""
    numbers = np.asarray(numbers)
    obs = np.repeat(numbers[:, None], 4, axis=1).astype(np.float32)
    nothing = np.zeros(len(numbers), bool)
    return Transitions(
        obs=obs,
        action=np.zeros(len(numbers), np.int64),
        reward=np.ones(len(numbers), np.float32),
        next_obs=obs,
        terminated=nothing,
        truncated=nothing,
        num_steps=np.ones(len(numbers), np.int32),
    )


def numbers_of(batch: Transitions) -> np.ndarray:
    return np.asarray(batch.obs)[:, 0].astype(int)


class Job(Cluster):
    """A learner and collectors, each with its replay."""

    def __init__(self, num_shards: int = 2, **settings: Any) -> None:
        super().__init__(1 + num_shards)
        self.settings = {"shard_capacity": 100, "alpha": ALPHA, "beta": BETA} | settings
        self.collectors = [self.make(1 + k) for k in range(num_shards)]
        self.learner = self.make(0)

    def make(self, node: int) -> ShardedReplay:
        group = Group(self.routers[node], tuple(range(1, len(self.routers))))
        return ShardedReplay(group, SPEC, **self.settings)

    @property
    def shards(self) -> list[Any]:
        return [collector._own for collector in self.collectors]

    def restart_shard(self, rank: int) -> None:
        self.restart(1 + rank)
        self.collectors[rank] = self.make(1 + rank)
        for router in self.routers:
            router.wait_ready(10.0)

    def fill(self, *sizes: int) -> None:
        """Give all transitions numbers of their own, one shard after the other."""
        first = 0
        for collector, size in zip(self.collectors, sizes, strict=True):
            collector.add(numbered(np.arange(first, first + size)))
            first += size


MakeJob = Callable[..., Job]


@pytest.fixture
def make_job() -> Iterator[MakeJob]:
    """Return a function that makes jobs, which are closed after the test."""
    with ExitStack() as stack:
        yield lambda *args, **settings: stack.enter_context(Job(*args, **settings))


def set_priorities(replays: Sequence[PrioritizedReplay], priority_of: np.ndarray) -> None:
    """Give every transition the priority of its number; of equal ones 500 draws find all."""
    for replay in replays:
        drawn = replay.draw(500)
        replay.update_serials(drawn.serial, priority_of[drawn.fields["obs"][:, 0].astype(int)])


def settle(learner: ShardedReplay) -> None:
    """Send all priorities and update all sums, so that no message is under way."""
    learner._pass_on()
    learner._shards.refresh()
    learner._block = learner._coming = None


def values_of(priority_of: np.ndarray) -> np.ndarray:
    return (priority_of.astype(np.float32) + np.float32(1e-6)) ** np.float32(ALPHA)


def test_importance_weights_are_those_of_one_central_replay(make_job: MakeJob) -> None:
    job, priority_of = make_job(), np.random.default_rng(0).random(60) ** 3
    job.fill(45, 15)
    set_priorities(job.shards, priority_of)
    settle(job.learner)
    value_of = values_of(priority_of)
    for k in range(30):
        beta = (0.0, 0.4, 1.0)[k % 3]
        batch = job.learner.sample(50, beta=beta)
        value_B = value_of[numbers_of(batch)]
        expected = (value_B / value_B.min()) ** -beta
        np.testing.assert_allclose(batch.weight, expected, rtol=1e-6, atol=1e-6)
        assert batch.weight.dtype == torch.float32


def test_weights_are_those_of_the_actual_probabilities_with_outdated_sums(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "FRESH_S", 1e9)  # the sums of the first batch are used again
    job = make_job()
    job.fill(40, 40)
    job.learner.sample(20)  # which asks for more in halves
    set_priorities(job.shards[1:], np.full(80, 1e-6))
    job.learner.sample(10)
    batch = job.learner.sample(10, beta=1.0)
    # Half of the draws are of either shard, and both hold 40 that are equal to each other.
    assert (batch.shard == 1).sum() == 5
    assert batch.weight.tolist() == pytest.approx([1.0] * 10, abs=1e-6)


def test_beta_follows_the_update_also_where_the_env_steps_of_all_are_known(
    make_job: MakeJob,
) -> None:
    job, betas = make_job(), []
    job.fill(45, 15)
    job.learner.wait_for(60, until=lambda: False)

    def beta(progress: float) -> float:
        betas.append(progress)
        return 0.5

    train = mw.train(DQN(SPEC, DQNConfig(hidden=(4,), batch_size=8)), job.learner, beta=beta)
    run_step(train, env_step=700, train_iter=3)
    assert betas == [3]


def test_transitions_are_drawn_as_often_as_from_one_central_replay(make_job: MakeJob) -> None:
    """Pearson's statistic of 60 counts; with 59 degrees of freedom 1 in 10,000 exceeds 104."""
    priority_of = np.random.default_rng(1).random(60)
    job, central = make_job(3), PrioritizedReplay(SPEC, capacity=100, alpha=ALPHA, beta=BETA)
    job.fill(30, 5, 25)
    central.add(numbered(np.arange(60)))
    expected = values_of(priority_of) / values_of(priority_of).sum()

    set_priorities([*job.shards, central], priority_of)
    settle(job.learner)
    for replay in (job.learner, central):
        count_of, num_drawn = np.zeros(60), 0
        for _ in range(500):
            count_of += np.bincount(numbers_of(replay.sample(20)), minlength=60)
            num_drawn += 20
        statistic = ((count_of - num_drawn * expected) ** 2 / (num_drawn * expected)).sum()
        assert statistic < 104, type(replay)


def test_draws_follow_the_sums_while_shards_grow(make_job: MakeJob) -> None:
    """The sums by which batches are divided are 16 batches old on average, and so are the shares.

    With equal priorities the second shard's grows from 1/6 to 2/3 while it is filled: 16 batches
    earlier it was less by 16 * (2/3 - 1/6) / 1,200 = 0.0067 in the mean of all.
    """
    job, share = make_job(), []
    job.fill(50, 10)
    for k in range(1_200):
        job.collectors[1].add(numbered([1000 + k]))
        batch = job.learner.sample(50)
        held = [len(collector) for collector in job.collectors]
        share.append((batch.shard == 1).mean() - held[1] / sum(held))  # all priorities are equal
    assert -0.01 < np.mean(share) < 0.001


def test_a_batch_has_its_size_with_small_shards_and_when_that_changes(make_job: MakeJob) -> None:
    job = make_job(3)
    job.fill(58, 1, 1)
    for batch_size in 5 * (1, 2, 60, 3, 3):
        batch = job.learner.sample(batch_size)
        assert len(batch) == len(batch.serial) == len(batch.weight) == batch_size
        assert ((batch.shard >= 0) & (batch.shard < 3)).all()


def test_a_shard_may_be_asked_for_more_than_it_holds(make_job: MakeJob) -> None:
    job, priority_of = make_job(), np.full(22, 1e-6)
    job.fill(20, 2)
    priority_of[20:] = 1e6
    set_priorities(job.shards, priority_of)
    batch = job.learner.sample(20)
    assert (batch.shard == 1).all()


@pytest.mark.parametrize(("prefetch", "at_most"), [(0, 0), (1, 1), (2, 3), (8, 12)])
def test_a_batch_is_learned_from_at_most_one_and_a_half_times_prefetch_later(
    prefetch: int, at_most: int
) -> None:
    for num_before in range(1, 12):
        with Job(prefetch=prefetch) as job:
            job.fill(50, 50)
            for _ in range(num_before):
                job.learner.sample(10)
            _, asked = job.learner._coming or (0, [])
            wait_for_all([question.answer for question in asked], 10.0)
            for collector in job.collectors:
                collector.clear()
                collector.add(numbered([7] * 10))
            is_old = [{*numbers_of(job.learner.sample(10)).tolist()} != {7} for _ in range(20)]
        assert is_old == sorted(is_old, reverse=True)
        assert sum(is_old) <= at_most


def test_several_batches_cost_one_request_to_each_shard(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, str, int]] = []
    ask = NodeRouter.ask

    def count(router: NodeRouter, node: int, name: str, *args: Any) -> Any:
        asked.append((node, name.rpartition(".")[2], args[0]))
        return ask(router, node, name, *args)

    job = make_job()
    job.fill(50, 50)
    job.learner.sample(10)
    monkeypatch.setattr(NodeRouter, "ask", count)
    monkeypatch.setattr(shards, "FRESH_S", 1e9)  # sums that are old would be requested again
    for _ in range(80):
        job.learner.update_priorities(job.learner.sample(10), np.ones(10))
    assert [question[:2] for question in asked] == 10 * [(1, "draw"), (2, "draw")]
    assert all(question[2] == 40 for question in asked)


def test_each_of_several_batches_is_spread_over_the_whole_sum(make_job: MakeJob) -> None:
    job = make_job()
    job.fill(80, 80)
    first = 0
    for _ in range(16):
        number = np.sort(numbers_of(job.learner.sample(20)))
        assert (number // 8 == np.arange(20)).all()
        first += number[0]
    assert 0 < first < 16 * 7  # not always the same one of its part


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_priorities_sent_later_are_those_of_the_call(make_job: MakeJob, dtype: torch.dtype) -> None:
    job = make_job(num_shards=1)
    job.fill(1)
    priority = torch.full((1,), 9.0, dtype=dtype)
    job.learner.update_priorities(job.learner.sample(1), priority)
    priority.zero_()
    settle(job.learner)
    [expected] = values_of(np.array([9.0]))
    assert job.collectors[0]._draw_from_own(0).drawn.total == pytest.approx(expected)


# -- updates for what is not there any more -----------------------------------------------------


def update_all(job: Job, batch: ShardedTransitions) -> int:
    """Update a batch; return how many of its transitions were still held."""
    before = job.learner.num_skipped
    passed_on = job.learner.update_priorities(batch, np.full(len(batch), 5.0))
    settle(job.learner)
    return passed_on - (job.learner.num_skipped - before)


def test_updates_reach_the_shard_that_the_transition_is_of(make_job: MakeJob) -> None:
    job = make_job()
    job.fill(10, 10)
    batch = job.learner.sample(20)
    assert update_all(job, batch) == 20
    assert job.learner.num_passed_on == 20
    value = values_of(np.array([5.0]))[0]
    for rank, collector in enumerate(job.collectors):
        drawn = collector._draw_from_own(10).drawn
        updated = np.isin(drawn.serial, batch.serial[batch.shard == rank])
        np.testing.assert_allclose(drawn.value[updated], value, rtol=1e-6)


def overwrite(job: Job) -> None:
    job.collectors[0].add(numbered(np.arange(100, 110)))


def clear_and_fill(job: Job) -> None:
    job.learner.clear()
    assert len(job.learner) == 0
    job.fill(10, 10)


def restart_and_fill(job: Job) -> None:
    job.restart_shard(0)
    job.collectors[0].add(numbered(np.arange(10)))


def restart_and_load(job: Job) -> None:
    state = job.collectors[0].state_dict()
    job.restart_shard(0)
    job.collectors[0].load_state_dict(state)
    assert len(job.collectors[0]) == 10


@pytest.mark.parametrize("lose", [overwrite, clear_and_fill, restart_and_fill, restart_and_load])
def test_an_update_of_what_a_shard_holds_no_more_is_skipped(
    make_job: MakeJob, lose: Callable[[Job], None]
) -> None:
    job = make_job(shard_capacity=10)
    job.fill(10, 10)
    batch = job.learner.sample(20)
    lose(job)
    is_held = (batch.shard == 1) & (lose is not clear_and_fill)
    assert update_all(job, batch) == is_held.sum()


def test_more_than_there_is_and_more_than_is_allowed_is_refused(make_job: MakeJob) -> None:
    job = make_job()
    job.fill(3, 4)
    assert job.learner.capacity == 200
    with pytest.raises(ConfigError, match="`batch_size` is 8, but the shards hold 7 transitions"):
        job.learner.sample(8)
    with pytest.raises(ConfigError, match="cannot be drawn at a time"):
        job.collectors[0]._draw_from_own(1 << 40)
    with pytest.raises(ConfigError, match=r"Node 0 has no shard .* on the nodes \[1, 2\]"):
        job.learner.add(numbered([1]))


def test_invalid_priorities_change_nothing(make_job: MakeJob) -> None:
    job = make_job()
    job.fill(10, 10)
    batch = job.learner.sample(4)
    with pytest.raises(NonFiniteError, match="`priority` 1 of 4 is nan"):
        job.learner.update_priorities(batch, np.array([1.0, np.nan, 1.0, 1.0]))
    with pytest.raises(ConfigError, match="0 or more was expected"):
        job.learner.update_priorities(batch, np.array([1.0, 1.0, -1.0, 1.0]))
    with pytest.raises(ShapeError, match="one number for each of the 4 transitions"):
        job.learner.update_priorities(batch, np.ones(3))
    with pytest.raises(ConfigError, match="does not say which shards it came from"):
        job.learner.update_priorities(job.shards[0].sample(4), np.ones(4))
    assert job.learner.num_passed_on == 0


# -- adding, and requests -----------------------------------------------------------------------


def test_adding_sends_no_message(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job()
    for name in ("ask", "call", "emit", "publish_ctx", "send"):
        monkeypatch.setattr(NodeRouter, name, None)
    job.fill(3, 4)
    assert [len(collector) for collector in job.collectors] == [3, 4]


def test_collectors_add_with_priorities_and_fields_of_their_own(make_job: MakeJob) -> None:
    job = make_job(fields={"log_prob": ((2,), np.float32)}, alpha=1.0)
    for collector, first in zip(job.collectors, (0, 10), strict=True):
        numbers = np.arange(first, first + 10)
        own = -np.stack([numbers, numbers], axis=1).astype(np.float32)
        collector.add(numbered(numbers), priority=1.0 * (numbers % 10 == 3), log_prob=own)
    settle(job.learner)
    batch = job.learner.sample(20, beta=1.0)
    assert {*numbers_of(batch).tolist()} == {3, 13}
    assert set(batch.extra) == {"log_prob"}
    np.testing.assert_array_equal(batch.extra["log_prob"][:, 1], -numbers_of(batch))
    with pytest.raises(ConfigError, match="own fields \\['log_prob'\\] are missing"):
        job.collectors[0].add(numbered([1]))


def test_shards_with_other_own_fields_are_refused(make_job: MakeJob) -> None:
    job = make_job()
    job.settings |= {"fields": {"log_prob": ((), np.float32)}, "name": "other"}
    shard = job.make(1)
    job.settings["fields"] = None
    learner = job.make(0)
    job.make(2)
    shard.add(numbered([1, 2]), log_prob=np.zeros(2, np.float32))
    with pytest.raises(ConfigError, match=r"A shard keeps \['log_prob'\] .* this node \[\]"):
        learner.sample(2)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_node_that_collects_and_learns_samples_what_it_has_just_added(
    make_job: MakeJob, num_shards: int
) -> None:
    replay = make_job(num_shards).collectors[0]
    with pytest.raises(ConfigError, match="the shards hold 0 transitions"):
        replay.sample(4)
    for first in (0, 8):  # each time more than was known a moment before
        replay.add(numbered(np.arange(first, first + 8)))
        assert len(replay.sample(first + 8)) == len(replay) == first + 8


def test_priorities_of_a_batch_of_another_replay_are_refused() -> None:
    with Cluster(2, roles=["learner", "collector"]) as cluster:
        group = World(cluster.routers[1]).group("collector")
        one, other = (ShardedReplay(group, SPEC, shard_capacity=9, name=name) for name in "ab")
        one.add(numbered(np.arange(4)))
        with pytest.raises(ConfigError, match="`batch` was sampled by another replay"):
            other.update_priorities(one.sample(4), np.ones(4))


def test_two_replays_of_one_name_are_refused_and_other_names_are_not() -> None:
    with Cluster(2, roles=["learner", "collector"]) as cluster:
        group = World(cluster.routers[1]).group("collector")
        ShardedReplay(group, SPEC, shard_capacity=10)
        ShardedReplay(group, SPEC, shard_capacity=10, name="other")
        with pytest.raises(ConfigError, match="Register this one under another name"):
            ShardedReplay(group, SPEC, shard_capacity=10)


# -- shards that die and come back --------------------------------------------------------------


@contextmanager
def connected() -> Iterator[tuple[Cluster, dict[int, ShardedReplay]]]:
    """Connect a learner and three collectors with full shards."""
    with Cluster(4, "star", roles=["learner"] + 3 * ["collector"]) as cluster:
        replays = {node: on_node(cluster, node) for node in range(4)}
        for node in (1, 2, 3):
            replays[node].add(numbered(np.arange(100 * node, 100 * node + 50)))
        yield cluster, replays


def on_node(cluster: Cluster, node: int) -> ShardedReplay:
    group = World(cluster.routers[node]).group([1, 2, 3])
    return ShardedReplay(group, SPEC, shard_capacity=50)


def test_a_lost_shard_is_skipped_with_a_warning_and_used_again_when_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with connected() as (cluster, replays):
        learner = replays[0]
        assert {*numbers_of(learner.sample(90)) // 100} == {1, 2, 3}
        with caplog.at_level(logging.INFO):
            cluster.restart(2)
            for _ in range(13):  # of which at most twelve had come
                batch = learner.sample(90)
                assert len(batch) == 90
            assert learner.lost == (2,)
            assert {*numbers_of(batch) // 100} == {1, 3}
            assert "left out the shard of node 2 until it is back" in caplog.text

            back = on_node(cluster, 2)
            back.add(numbered(np.arange(200, 250)))
            cluster.routers[0].wait_ready()
            learner.wait_for(150, until=lambda: False, timeout=10.0)
            batches = [learner.sample(90) for _ in range(13)]
            assert {*numbers_of(batches[-1]) // 100} == {1, 2, 3}
            assert not learner.lost


def test_a_wait_for_transitions_ends_with_the_job(make_job: MakeJob) -> None:
    job = make_job()
    wait = partial(job.learner.wait_for, 60, until=lambda: False, timeout=10.0)
    assert found_at_the_end(job.routers[0], wait) is None


def test_batches_do_not_wait_for_a_shard_that_comes_back() -> None:
    with connected() as (cluster, replays):
        learner, network = replays[0], cluster.network
        learner.sample(90)
        network.cut(0, 2)
        settle(learner)
        network.mend(0, 2)
        router = cluster.routers[0]
        assert router.subscribe().wait(lambda _: 2 in router.peers, timeout=10.0)
        network.hold(2, 0)
        for size in (80, 81, 82):
            assert {*numbers_of(learner.sample(size)) // 100} == {1, 3}
            assert learner._shards.all[1].greeting is not None  # its answer is under way
        network.release(2, 0)
        learner.wait_for(150, until=lambda: False, timeout=10.0)
        assert {*numbers_of(learner.sample(90)) // 100} == {1, 2, 3}


def test_a_node_with_the_number_of_a_collector_that_has_left_is_not_asked() -> None:
    with connected() as (cluster, replays):
        members = [1, 2, 3]
        group = Group(cluster.routers[0], (1, 2, 3), lambda: tuple(members))
        learner = ShardedReplay(group, SPEC, shard_capacity=50)
        assert {*numbers_of(learner.sample(90)) // 100} == {1, 2, 3}
        settle(learner)
        replays[2]._own = None  # it would answer with an error
        members.remove(2)
        assert {*numbers_of(learner.sample(90)) // 100} == {1, 3}
        assert learner.lost == (2,)


def test_the_shard_of_a_collector_that_has_joined_is_drawn_from() -> None:
    with connected() as (cluster, _):
        members = [1, 3]
        group = Group(cluster.routers[0], (1, 3), lambda: tuple(members))
        learner = ShardedReplay(group, SPEC, shard_capacity=50)
        assert {*numbers_of(learner.sample(90)) // 100} == {1, 3}
        settle(learner)
        members.append(2)
        learner.wait_for(150, until=lambda: False, timeout=10.0)
        assert {*numbers_of(learner.sample(90)) // 100} == {1, 2, 3}


def test_weights_are_right_when_other_shards_draw_the_part_of_a_lost_one() -> None:
    with connected() as (cluster, replays):
        learner = replays[0]
        learner.sample(90)
        learner._block = learner._coming = None
        cluster.network.remove(2)
        cluster.routers[2].close(good_bye=False)
        learner._shards._known_at = np.inf  # the loss is noticed by the request for draws
        batch = learner.sample(90)
    assert {*numbers_of(batch) // 100} == {1, 3}
    assert np.allclose(batch.weight, 1.0)  # all have the same priority


def test_a_shard_that_a_new_process_has_not_made_yet_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rpc, "REGISTRATION_S", 0.05)
    with connected() as (cluster, replays):
        learner = replays[0]
        learner.sample(90)
        settle(learner)  # no request is under way that would reveal the loss
        cluster.restart(2).wait_ready(10.0)
        cluster.routers[0].wait_ready(10.0)
        batch = learner.sample(90)
        assert {*numbers_of(batch) // 100} == {1, 3}
        assert "left out the shard of node 2 until it is back: its process is a new" in caplog.text
        on_node(cluster, 2).add(numbered(np.arange(200, 250)))
        learner.wait_for(150, until=lambda: False, timeout=10.0)
        assert not learner.lost


def test_a_shard_that_raises_is_not_a_lost_shard() -> None:
    with connected() as (_, replays):
        learner = replays[0]
        learner.sample(90)
        replays[2]._own = None
        with pytest.raises(RemoteError, match="cannot be drawn at a time"):
            settle(learner)


def sample_anew(learner: ShardedReplay) -> None:
    settle(learner)
    learner.sample(90)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        shards.ShardAnswer(1, 0, "drawn"),  # type: ignore[arg-type]
        *(
            shards.ShardAnswer(1, 0, Drawn({}, np.empty(0), np.empty(0, np.int64), total, size))
            for total, size in ((1e9, 50), (float("nan"), 50), (float("inf"), 50), (1.0, -1))
        ),
    ],
)
def test_a_malformed_answer_of_a_shard_is_an_error(answer: Any) -> None:
    with connected() as (cluster, replays):
        learner = replays[0]
        learner.sample(90)
        handlers = cluster.routers[2]._calls._handlers
        handlers[f"{learner._name}.draw"] = lambda count, updates: answer
        with pytest.raises(CodecError, match="The shard of node 2 has sent a malformed answer"):
            sample_anew(learner)


def test_updates_for_a_lost_shard_are_dropped() -> None:
    with connected() as (cluster, replays):
        learner = replays[0]
        batch = learner.sample(90)
        cluster.restart(2)
        learner.sample(80)
        assert learner.update_priorities(batch, np.ones(90)) == (batch.shard != 1).sum()


def test_without_any_shard_sample_names_the_lost_nodes_and_train_skips_the_step() -> None:
    with connected() as (cluster, replays):
        learner = replays[0]
        policy = DQN(SPEC, DQNConfig(hidden=(4,), batch_size=30))
        learner.wait_for(150, until=lambda: False)
        ctx, _ = run_step(mw.train(policy, learner))
        assert ctx.train_iter == 1
        for node in (1, 2, 3):
            cluster.network.remove(node)
            cluster.routers[node].close(good_bye=False)
        with pytest.raises(PeerLost, match=r"out of reach are those of \[1, 2, 3\]"):
            learner.sample(29)  # the next 30 had come before
        assert len(learner) == 0
        ctx, _ = run_step(mw.train(policy, learner))
        assert ctx.train_iter == 0


def test_waiting_for_shards_that_are_not_filled_times_out() -> None:
    with (
        connected() as (_, replays),
        pytest.raises(
            DeadlineExceeded, match=r"hold 150 of 200 .* no transition was added for 0.1 s"
        ),
    ):
        replays[0].wait_for(200, until=lambda: False, timeout=0.1)


# -- in a pipeline ------------------------------------------------------------------------------


def test_a_learner_may_be_a_member_that_adds_nothing() -> None:
    def main() -> int:
        world = World.current()
        replay = ShardedReplay(world.group("node.*"), SPEC, shard_capacity=100)
        policy = DQN(SPEC, DQNConfig(hidden=(4,), batch_size=8))
        with Task() as task:
            learner, collector = task.at("learner"), task.at("collector")
            collector.use(lambda ctx: replay.add(numbered(range(8))) or task.wait_for("the end"))
            learner.use(mw.wait_for(replay, size=8))
            learner.use(mw.train(policy, replay))
            learner.use(mw.update_priorities(replay))
            learner.use(mw.stop_at(train_iter=3))
            task.run()
        return policy.train_iter

    with Cluster(2, roles=["learner", "collector"]) as cluster:
        assert cluster.run(main, timeout=15.0) == [3, 0]

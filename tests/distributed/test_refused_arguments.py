"""Arguments of another kind are refused, in words of what was found and what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite import middleware as mw
from ding_lite.distributed import (
    GradientServer,
    Group,
    ModelServer,
    PopulationServer,
    ShardedReplay,
    World,
)
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.evolution import Population, Search
from ding_lite.rl import A2C, DQN, A2CConfig, NStep, make_envs
from ding_lite.runtime.messaging.local_router import LocalRouter
from ding_lite.runtime.task import Task

ENVS = make_envs("CartPole-v1", 1)
SPEC = ENVS.spec
WORLD = World(LocalRouter())
GROUP: Any = Group(LocalRouter(), (0,))
A_GROUP = r"a group of nodes was expected, such as `World\.current\(\)\.group"
TENSORS = r"tensors by name were expected, such as `policy\.weights\(\)`"

REFUSED: dict[str, tuple[Callable[[Any], object], object, str]] = {
    "labels as a group": (lambda x: GradientServer(x, A2C(SPEC)), "server", A_GROUP),
    "a world as a group": (lambda x: GradientServer(x, A2C(SPEC)), WORLD, A_GROUP),
    "a policy of another kind": (
        lambda x: GradientServer(GROUP, x),
        DQN(SPEC),
        "a DQN, which has no `apply_gradient`",
    ),
    "a policy that normalises": (
        lambda x: GradientServer(GROUP, x),
        A2C(SPEC, A2CConfig(normalize_obs=True)),
        "`normalize_obs` is on",
    ),
    "a policy without gradients": (
        lambda x: mw.push_gradients(x, gradients()),
        DQN(SPEC),
        "it has no `gradients`",
    ),
    "a negative staleness": (
        lambda x: GradientServer(GROUP, A2C(SPEC), max_staleness=x),
        -1,
        "max_staleness",
    ),
    "half a step": (
        lambda x: mw.pull_weights(A2C(SPEC), gradients(), every=x),
        1.5,
        "`every` is 1.5; it must be a whole number",
    ),
    "half an update": (
        lambda x: mw.serve_gradients(A2C(SPEC), gradients(), updates=x),
        1.5,
        "`updates` is 1.5; it must be a whole number",
    ),
    "weights of another node": (
        lambda x: GradientServer(Group(LocalRouter(), (1,)), A2C(SPEC)).copy_to(x),
        A2C(SPEC),
        "Node 0 does not own the weights",
    ),
    "a name that is empty": (lambda x: ModelServer(name=x), "", "`name` is ''"),
    "labels of a replay": (lambda x: ShardedReplay(x, SPEC, shard_capacity=9), "learner", A_GROUP),
    "envs as a spec": (
        lambda x: ShardedReplay(GROUP, x, shard_capacity=9),
        ENVS,
        r"Give its `\.spec`",
    ),
    "a batch size of 0": (lambda x: replay().sample(x), 0, "`batch_size` is 0"),
    "half a transition": (lambda x: replay().sample(x), 2.5, "`batch_size` is 2.5"),
    "labels of learners": (lambda x: PopulationServer(GROUP, x, population()), "a", A_GROUP),
    "a list of members": (
        lambda x: PopulationServer(GROUP, GROUP, x),
        [1, 2],
        "`population` is a list, .* `Population.of",
    ),
    "a gradient of numpy": (lambda x: gradients().push(x), np.ones(2), "`grad_P` is a ndarray"),
    "no policy to load": (lambda x: gradients().pull(x), None, "is None, which has no `load_wei"),
    "a class to load": (lambda x: gradients().copy_to(x), A2C, "`policy` is the class A2C"),
    "a class of gradients": (lambda x: GradientServer(GROUP, x), A2C, "is the class A2C"),
    "a policy as a population": (
        lambda x: PopulationServer(GROUP, GROUP, x),
        DQN(SPEC),
        "is a DQN, which has no `__len__`; a Population was",
    ),
    "no states": (lambda x: taken().give(x, {}), None, "`states` is None, .* of states by place"),
    "no counters": (lambda x: taken().give({}, x), None, "`counted` is None, .* counters by name"),
    "a large beta": (lambda x: filled().sample(1, beta=x), 7.0, "`beta` is 7.0; it must lie"),
    "parallel labels": (lambda x: DQN(SPEC).data_parallel(x), "learner", A_GROUP),
    "a parallel world": (lambda x: DQN(SPEC).data_parallel(x), WORLD, A_GROUP),
    "a name as a world": (lambda x: ModelServer(x), "actor", r'`ModelServer\(name="actor"\)`'),
    "an array": (ModelServer().publish, {"w": np.ones(2)}, rf"\['w'\]` is a ndarray; {TENSORS}"),
    "a module": (ModelServer().publish, torch.nn.Linear(1, 1), f"is a Linear; {TENSORS}"),
    "a version in words": (
        lambda x: ModelServer().publish({}, version=x),
        "x",
        "`version` is 'x'; it must be a whole number",
    ),
    "no members": (WORLD.group, None, "`members` is None; label patterns or node ids"),
    "labels of no node": (WORLD.labels_of, 9, "`node` is 9; the number of a node .* 0 to 0"),
}


def replay() -> ShardedReplay:
    return ShardedReplay(GROUP, SPEC, shard_capacity=9)


def filled() -> ShardedReplay:
    made, step = replay(), ENVS.step(ENVS.random_actions())
    made.add(NStep(1, 1.0, num_envs=1)(step))
    return made


def gradients() -> GradientServer:
    return GradientServer(GROUP, A2C(SPEC))


def taken() -> PopulationServer:
    server = PopulationServer(GROUP, GROUP, population())
    server.take()
    return server


def population() -> Population:
    return Population.of(DQN, SPEC, Search(), size=1)


@pytest.mark.parametrize("case", REFUSED)
def test_an_argument_of_another_kind_is_refused(case: str) -> None:
    call, value, expected = REFUSED[case]
    with pytest.raises(ConfigError, match=expected):
        call(value)


WAITS: dict[str, Callable[[Any], object]] = {
    "a call": lambda x: GROUP.router.call(0, "f", timeout=x),
    "a send": lambda x: Task().send("s", 1, to="node.0", timeout=x),
    "a receive": lambda x: Task().receive("s", timeout=x),
    "an event": lambda x: Task().wait_for("e", timeout=x),
    "a ctx": lambda x: Task().wait_parallel_ctx(timeout=x),
    "a first ctx": lambda x: Task(attach_timeout=x),
    "a barrier": lambda x: GROUP.barrier(timeout=x),
    "a mean": lambda x: GROUP.averager(timeout=x),
    "a process group": lambda x: GROUP.process_group(timeout=x),
    "a model": lambda x: ModelServer().wait(timeout=x),
    "transitions": lambda x: replay().wait_for(1, until=lambda: False, timeout=x),
    "gradients": lambda x: GradientServer(GROUP, A2C(SPEC), timeout=x),
    "a population": lambda x: PopulationServer(GROUP, GROUP, population(), timeout=x),
}


@pytest.mark.parametrize("timeout", [-1.0, math.nan])
@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_of_less_than_no_time_is_refused(wait: str, timeout: float) -> None:
    with pytest.raises(ConfigError, match=f"timeout` is {timeout}; (give seconds|it must be)"):
        WAITS[wait](timeout)


@pytest.mark.parametrize(
    "make", [replay, gradients, lambda: PopulationServer(GROUP, GROUP, population())]
)
def test_a_state_of_something_else_is_refused(make: Callable[[], Any]) -> None:
    server = make()
    with pytest.raises(CheckpointError, match=f"This is no state of a {type(server).__name__}"):
        server.load_state_dict({"x": 1})
    server.load_state_dict(server.state_dict())

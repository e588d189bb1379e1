"""Fixtures of the tests of evolution."""

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite.evolution import Mutation, Search, integer, log_uniform
from ding_lite.evolution.batched.stacks import Stack, make_stack
from ding_lite.rl import EnvSpec, Transitions, make_envs
from tests.rl.rollouts import draw_batch


@pytest.fixture(scope="session")
def spec() -> EnvSpec:
    with make_envs("CartPole-v1", 1) as envs:
        return envs.spec


@pytest.fixture(scope="session")
def box_spec() -> EnvSpec:
    with make_envs("Pendulum-v1", 1) as envs:
        return envs.spec


@pytest.fixture
def search() -> Search:
    return Search(lr=log_uniform(1e-4, 1e-2), batch_size=integer(8, 64))


Moments = Sequence[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]
ONLY: dict[str, Any] = dict.fromkeys(
    ("none", "architecture", "weights", "activation", "hyperparameters"), 0.0
)


def only(kind: str, search: Search | None = None, **more: Any) -> Mutation:
    return Mutation(search, **{**ONLY, kind: 1.0, **more})


def some_transitions(spec: EnvSpec, count: int, *, seed: int = 0) -> Transitions:
    """Draw transitions that no environment has made."""
    drawn: Transitions = draw_batch(seed, spec=spec, size=count)
    return drawn


def assert_close(found: Sequence[Any], expected: Sequence[Any], *, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, atol=atol, rtol=0.0)


def assert_carried(old: Moments, new: Moments) -> int:
    """Compare moments of Adam before and after growth; return how many tensors have grown.

    Those of old parts stay. First moments of new parts are 0, second ones the mean of the tensor's.
    """
    num_grown = 0
    for (mean, square), (new_mean, new_square) in zip(old, new, strict=True):
        assert new_mean.keys() == mean.keys()
        for name, was in mean.items():
            inside = tuple(slice(size) for size in was.shape)
            assert torch.equal(new_mean[name][inside], was), name
            assert torch.equal(new_square[name][inside], square[name]), name
            is_new = torch.ones_like(new_mean[name], dtype=torch.bool)
            is_new[inside] = False
            assert not new_mean[name][is_new].any()
            usual = square[name].mean().expand(int(is_new.sum()))
            torch.testing.assert_close(new_square[name][is_new], usual, rtol=1e-5, atol=0.0)
            num_grown += bool(is_new.any())
    return num_grown


def part(batch: Transitions, start: int, size: int) -> Transitions:
    return Transitions(*(getattr(batch, f.name)[start : start + size] for f in fields(batch)))


def assert_same(together: Sequence[Any], alone: Sequence[Any]) -> None:
    for one, other in zip(together, alone, strict=True):
        states = one.state_dict(), other.state_dict()
        torch.testing.assert_close(*states, atol=1e-5, rtol=0.0)


def check_acting(stack: Stack[Any], together: Sequence[Any], alone: Sequence[Any]) -> None:
    """Hold greedy actions of a stack, by the same and by other observations, against each alone."""
    greedy, count = stack.hold(together), len(alone)
    assert greedy is not None
    shape = (count, 9, *alone[0].spec.obs_shape)
    of_each = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for obs in (of_each, of_each[:1]):
        rows = np.broadcast_to(obs, shape)
        for policy, acted, row in zip(alone, greedy(obs), rows, strict=True):
            np.testing.assert_allclose(acted, policy.act(row, explore=False), atol=1e-4)


def check_updates(together: Sequence[Any], alone: Sequence[Any], count: int) -> Stack[Any]:
    """Hold batched updates against those of each policy alone; return the stack."""
    sizes, num = [policy.config.batch_size for policy in together], len(together)
    stack = make_stack(together[0], num)
    for update in range(count):
        batch = some_transitions(together[0].spec, num * max(sizes), seed=update)
        outcomes = stack.learn(together, sizes, [1] * num, partial(given, batch))
        for row, (policy, found) in enumerate(zip(alone, outcomes, strict=True)):
            metrics = policy.learn(part(batch, row * max(sizes), sizes[row]))
            assert found.metrics == pytest.approx(metrics, abs=1e-4)
            assert found.batch is not None
            assert len(found.batch) == sizes[row]
    assert_same(together, alone)
    return stack


def check_numbers_of_updates(
    together: Sequence[Any], alone: Sequence[Any], updates: list[int]
) -> None:
    """Hold batched updates, of each policy a number of its own, against those of each alone."""
    sizes = [policy.config.batch_size for policy in together]
    drawn: list[Transitions] = []

    def sample(count: int) -> Transitions:
        drawn.append(some_transitions(together[0].spec, count, seed=len(drawn)))
        return drawn[-1]

    outcomes = make_stack(together[0], len(updates)).learn(together, sizes, updates, sample)
    assert [outcome.updates for outcome in outcomes] == updates
    assert all((found.metrics is None) == (not found.updates) for found in outcomes)
    order = sorted(range(len(updates)), key=lambda index: -updates[index])
    for done, batch in enumerate(drawn):
        active = [index for index in order if updates[index] > done]
        largest = max(sizes[index] for index in active)
        assert len(batch) == largest * len(active)
        for row, index in enumerate(active):
            alone[index].learn(part(batch, row * largest, sizes[index]))
    assert_same(together, alone)


def check_a_fault(together: Sequence[Any], alone: Sequence[Any]) -> None:
    """Hold updates, in which the second policy has a fault, against those of the others alone."""
    num, update = len(together), f"{type(alone[0]).__name__}'s update 1 is"
    batches = [some_transitions(together[0].spec, num * 64, seed=seed) for seed in range(4)]
    left = iter(batches)
    outcomes = make_stack(together[0], num).learn(
        together, [64] * num, [4] * num, lambda _: next(left)
    )
    assert outcomes[1].updates == 0
    assert update in str(outcomes[1].fault)
    others = [row for row in range(num) if row != 1]
    for row in others:
        assert outcomes[row].fault is None
        for batch in batches:
            alone[row].learn(part(batch, 64 * row, 64))
    assert_same(*([policies[row] for row in others] for policies in (together, alone)))


def given(batch: Transitions, count: int) -> Transitions:
    assert len(batch) == count
    return batch

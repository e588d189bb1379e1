"""The composition of a task, and its compilation before the first step."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any, Self

import pytest

from ding_lite.errors import LabelError, MiddlewareError
from ding_lite.runtime import Context, Middleware, StepTimer
from ding_lite.runtime.composition import Composition
from ding_lite.runtime.middleware import name_of


def collect(ctx: Context) -> None:
    ctx.setdefault("calls", []).append("collect")


def train(ctx: Context) -> None:
    ctx.setdefault("calls", []).append("train")


def run(composition: Composition) -> list[str]:
    ctx = Context(calls=[])
    for fn in composition.chain():
        fn(ctx)
    return list(ctx.calls)


def tracing(tag: str) -> Callable[[Middleware], Middleware]:
    """Make a wrapper that writes down when it is passed."""

    def wrapper(fn: Middleware) -> Middleware:
        def wrapped(ctx: Context) -> None:
            ctx.calls.append(f"{tag}(")
            fn(ctx)
            ctx.calls.append(f"){tag}")

        return wrapped

    return wrapper


@pytest.fixture
def composition() -> Composition:
    return Composition(frozenset({"standalone", "node.0"}))


def test_only_what_matches_a_label_of_the_node_is_in_the_chain(composition: Composition) -> None:
    composition.use(collect, "distributed", False)
    composition.use(train, ["learner", "node.*"], False)
    assert run(composition) == ["train"]
    assert composition.names() == ["train"]
    assert [use.fn for use in composition.uses] == [collect, train]
    composition.use(collect, (label for label in ["standalone"]), False)
    assert run(composition) == run(composition) == ["train", "collect"]


def test_a_node_without_matching_middleware_is_shown_its_labels_and_the_patterns(composition):
    composition.use(train, ["learner", "a*"], False)
    composition.use(collect, "learner", False)
    message = (
        r"No middleware of this task matches the labels of this node.*\['node.0', 'standalone'\].*"
        r"`filter_labels` in use: \['a\*', 'learner'\].*roles=, labels= or DING_LITE_LABELS"
    )
    with pytest.raises(LabelError, match=message):
        composition.chain()


def test_what_is_left_out_is_logged_once_with_the_reason(composition, caplog) -> None:
    composition.use(collect, ["learner", "x"], False)
    composition.use(collect, "learner", False)
    composition.use(train, None, False)
    with caplog.at_level(logging.INFO, logger="ding_lite.runtime"):
        composition.chain()
        composition.chain()
    assert [record.getMessage() for record in caplog.records] == [
        "left out `collect`: it runs on learner or x, and this node has node.0, standalone",
        "left out `collect`: it runs on learner, and this node has node.0, standalone",
    ]


def test_a_later_wrapper_goes_around_the_earlier_ones_and_each_meets_each_use_once(composition):
    met = []

    def counting(fn: Middleware) -> Middleware:
        met.append(name_of(fn))
        return tracing("v")(fn)

    composition.wrap(counting)
    composition.use(train, None, False)
    composition.use(collect, "elsewhere", False)
    assert run(composition) == ["v(", "train", ")v"]
    composition.wrap(tracing("w"))
    composition.use(collect, None, False)
    assert run(composition) == [
        *("w(", "v(", "train", ")v", ")w"),
        *("w(", "v(", "collect", ")v", ")w"),
    ]
    assert met == ["train", "collect"]


@pytest.mark.parametrize("wrapper", [StepTimer, None, 3, "timer"])
def test_what_cannot_wrap_or_is_no_middleware_is_refused(composition, wrapper) -> None:
    message = f"A step wrapper is a callable that .* not {re.escape(repr(wrapper))}"
    with pytest.raises(MiddlewareError, match=rf"{message}.*use_step_wrapper\(StepTimer\(\)\)`"):
        composition.wrap(wrapper)
    with pytest.raises(LabelError):
        composition.use(train, [], False)
    for take in (lambda: composition.use(None, None, False), lambda: composition.wrapped(3)):
        with pytest.raises(MiddlewareError, match="A middleware is"):
            take()
    assert composition.uses == []


@pytest.mark.parametrize("made", [None, 3])
def test_a_wrapper_that_makes_no_middleware_is_named(composition: Composition, made: Any) -> None:
    def forgetful(fn: Middleware) -> Any:
        return made

    composition.wrap(forgetful)
    composition.use(train, None, False)
    named = f"The step wrapper `forgetful` made {made!r} of the middleware `train`"
    with pytest.raises(MiddlewareError, match=f"{named}.* callable of one ctx was.*`return`\\?"):
        composition.chain()


class Trainer:
    """Equal to all others, and not hashable: identity must tell them apart."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    def step(self, ctx: Context) -> None:
        ctx.calls.append("step")

    def __call__(self, ctx: Context) -> None:
        ctx.calls.append("call")


def test_a_bound_method_run_by_hand_again_is_not_wrapped_again(composition: Composition) -> None:
    composition.wrap(tracing("w"))
    one, other, ctx = Trainer(), Trainer(), Context(calls=[])
    assert composition.wrapped(one.step) is composition.wrapped(one.step)
    assert composition.wrapped(one.step) is not composition.wrapped(other.step)
    assert composition.wrapped(ctx.calls.append) is composition.wrapped(ctx.calls.append)
    # Two objects that are equal are two middleware.
    assert composition.wrapped(one) is composition.wrapped(one)
    assert composition.wrapped(one) is not composition.wrapped(other)


@pytest.mark.parametrize("first", ["by hand", "in the chain"])
def test_a_middleware_of_the_chain_that_is_run_by_hand_is_wrapped_once(composition, first) -> None:
    met = []

    def counting(fn: Middleware) -> Middleware:
        met.append(name_of(fn))
        return fn

    composition.wrap(counting)
    composition.use(train, None, False)
    if first == "in the chain":
        composition.chain()
    for _ in range(2):
        composition.wrapped(train)
    composition.chain()
    assert met == ["train"]


def test_a_lock_is_let_go_when_its_middleware_raises(composition: Composition) -> None:
    def broken(ctx: Context) -> None:
        raise LookupError("gone")

    composition.use(broken, None, True)
    composition.use(train, None, True)
    first, second = composition.chain()
    for _ in range(2):
        with pytest.raises(LookupError):
            first(Context())
    second(Context())


class Resource:
    """A middleware and a step wrapper with a lifetime."""

    def __call__(self, ctx: Any) -> Any:
        return ctx

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None: ...


def test_resources_are_the_middleware_and_wrappers_that_can_be_entered(composition) -> None:
    here, elsewhere, wrapper = Resource(), Resource(), Resource()
    composition.wrap(wrapper)
    composition.wrap(tracing("w"))
    composition.use(train, None, False)
    composition.use(here, None, False)
    composition.use(elsewhere, "elsewhere", False)
    composition.use(here, None, True)  # one that is used twice is one
    composition.wrap(here)
    assert composition.resources() == [here, wrapper]

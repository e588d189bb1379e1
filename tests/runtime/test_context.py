"""The context: a dict with attributes, renewed at every step."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from ding_lite.clock import Deadline
from ding_lite.errors import ContextError, DeadlineExceeded, DingLiteError
from ding_lite.runtime.context import Context, Lineage, ParallelContext, latch_of
from ding_lite.runtime.task import Task

KEYS = st.text("abcxyz", min_size=1, max_size=3).filter(lambda key: not hasattr(dict, key))
METHODS = sorted(name for name in dir(dict) if not name.startswith("_"))


def renewed(ctx: Context) -> Context:
    return Lineage(ctx).next_of(ctx)


def test_items_are_attributes_and_attributes_are_items() -> None:
    ctx = Context({"a": 1}, b=2)
    ctx.c = 3
    ctx["d"] = 4
    assert (ctx.a, ctx["b"], ctx["c"], ctx.d) == (1, 2, 3, 4)
    del ctx.a
    del ctx["b"]
    assert ctx == {"total_step": 0, "c": 3, "d": 4}
    ctx.nested = nested = {"x": [1]}
    ctx.keep("nested")
    ctx.metrics["loss"] = 0.5  # there at its first use in each step
    ctx["metrics"]["return"] = 9.0
    assert ctx.metrics == {"loss": 0.5, "return": 9.0}
    assert renewed(ctx).nested is nested
    assert renewed(ctx).metrics == {}


@given(st.dictionaries(KEYS, st.integers()), st.sets(KEYS))
def test_renewal_keeps_exactly_the_kept_keys(values: dict[str, int], kept: set[str]) -> None:
    ctx = Context(values)
    ctx.keep(*kept)
    expected = {key: value for key, value in values.items() if key in kept}
    assert renewed(ctx) == {"total_step": 1, **expected}


def test_a_kept_key_lives_on_step_after_step_until_it_is_dropped() -> None:
    ctx = Context(n=1)
    ctx.keep("n")
    for _ in range(3):
        ctx = renewed(ctx)
        ctx.n += 1
    assert (ctx.n, ctx.total_step) == (4, 3)
    ctx.drop("n")
    assert ctx.n == 4  # until the step ends
    assert "n" not in renewed(ctx)
    ctx.keep("later")  # before it is set
    ctx = renewed(ctx)
    assert "later" not in ctx
    ctx.later = 1
    assert renewed(renewed(ctx)).later == 1
    with pytest.raises(ContextError, match=r'not kept. Did you mean "later"'):
        ctx.drop("latr")


def test_a_key_that_would_hide_a_method_is_refused() -> None:
    ctx = Context()
    attempts: list[Callable[[str], object]] = [
        lambda name: setattr(ctx, name, 1),
        lambda name: ctx.__setitem__(name, 1),
        lambda name: ctx.update({name: 1}),
        lambda name: ctx.setdefault(name, 1),
        lambda name: ctx.__ior__({name: 1}),
        lambda name: ctx.keep(name),
        lambda name: Context({name: 1}),
    ]
    for name in (*METHODS, "keep", "drop", "kept"):
        for attempt in attempts:
            with pytest.raises(ContextError, match=f"`ctx.{name}` cannot be set.*hide the method"):
                attempt(name)
        assert callable(getattr(ctx, name)) or name == "kept"
    with pytest.raises(ContextError, match=r"`ctx.renew` cannot be set: `task.renew` begins"):
        ctx.renew = 1


def test_private_names_and_other_types_of_key_are_refused() -> None:
    ctx = Context()
    ctx |= {"a": 1}
    assert ctx.a == 1
    with pytest.raises(ContextError, match=r"`ctx._x` cannot be set.*Use `x`"):
        Context()._x = 1
    with pytest.raises(ContextError, match=r"a string, not 3, an int"):
        Context()[3] = 1  # type: ignore[index]
    with pytest.raises(ContextError, match=r"a string, not \['a', 'b'\], a list"):
        ctx.keep(["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(ContextError, match=r"a string, not \['a', 'b'\], a list"):
        Task().share(["a", "b"])  # type: ignore[arg-type]


def test_total_step_is_the_runtime_s_to_write() -> None:
    ctx = Context(total_step=7)
    assert renewed(ctx).total_step == 8
    with pytest.raises(ContextError, match=r"counted by the task \(now 7\)"):
        ctx.total_step = 3
    with pytest.raises(ContextError, match=r"belongs to the task"):
        del ctx["total_step"]
    with pytest.raises(ContextError, match=r"belongs to the task"):
        ctx.pop("total_step")
    ctx.update(copy.copy(ctx))  # as some programs do: harmless


def test_total_step_stays_when_other_keys_are_removed() -> None:
    ctx = renewed(Context(total_step=7))
    ctx.update(a=1, b=2, c=3)
    assert (ctx.popitem(), ctx.pop("b"), ctx.pop("b", 5)) == (("c", 3), 2, 5)
    ctx.clear()
    assert dict(ctx) == {"total_step": 8}
    with pytest.raises(KeyError, match="no key but `total_step`"):
        ctx.popitem()


def test_finish_is_a_latch_that_false_does_not_release() -> None:
    ctx = Context()
    assert (ctx.finish, ctx["finish"], ctx.get("finish"), ctx.setdefault("finish", True)) == (
        (False,) * 4
    )
    ctx.finish = False
    assert not ctx.finish
    ctx["finish"] = True
    ctx.finish = False
    assert (ctx.finish, ctx["finish"], ctx.get("finish")) == (True, True, True)


def test_every_context_of_a_task_sees_the_latch_and_its_listeners_are_called_once() -> None:
    received: list[str] = []
    first = Context()
    second = renewed(first)
    latch = latch_of(first)
    latch.listen(lambda: received.append("task"))
    latch.listen(lambda: received.append("job"), of_job=True)
    latch.set(only_here=True)
    latch.set(only_here=True)
    assert received == ["task"]  # a task that ends on one node only may end the job later
    assert first.finish
    assert renewed(second).finish
    second.update(finish=True)
    first.finish = True
    assert received == ["task", "job"]
    latch.rearm()
    latch.set()
    assert received == ["task", "job", "task", "job"]


def test_a_missing_key_is_named_with_what_there_is() -> None:
    ctx = Context(train_iter=3)
    with pytest.raises(ContextError) as caught:
        _ = ctx.train_itr
    text = str(caught.value)
    assert 'Did you mean "train_iter"?' in text
    assert "Set are: total_step, train_iter." in text
    assert not hasattr(ctx, "train_itr")
    assert ctx.get("train_itr", 5) == 5
    with pytest.raises(ContextError) as caught:
        _ = Context().train_iter  # rightly spelled
    assert "Did you mean" not in str(caught.value)
    assert '`ctx.keep("train_iter")` hands it on' in str(caught.value)
    with pytest.raises(ContextError, match='Did you mean "transitions"'):  # a key of the package
        _ = Context().transition
    for kind in (AttributeError, KeyError, DingLiteError):
        with pytest.raises(kind):
            _ = Context().nothing
        with pytest.raises(kind):
            _ = Context()["nothing"]
        with pytest.raises(kind):
            del Context().nothing


@pytest.mark.parametrize(
    "twin_of",
    [copy.copy, Context.copy, copy.deepcopy, lambda ctx: pickle.loads(pickle.dumps(ctx))],
)
def test_a_copy_has_the_same_items_and_a_life_of_its_own(twin_of: object) -> None:
    ctx = renewed(Context(total_step=4))
    ctx.n = [1]
    ctx.keep("n")
    twin = twin_of(ctx)  # type: ignore[operator]
    assert (twin, twin.kept, twin.finish) == (ctx, ("n",), False)
    twin.finish = True
    twin.drop("n")
    assert not ctx.finish
    assert ctx.kept == ("n",)
    assert copy.copy(twin).finish


class TestParallelContext:
    """The newest ctx values of other nodes."""

    def test_each_key_holds_the_newest_value_that_any_node_has_sent(self) -> None:
        ctx = ParallelContext()
        ctx._receive(1, {"total_step": 3, "state_dict": "a", "train_iter": 1})
        ctx._receive(2, {"total_step": 9})
        assert (ctx.state_dict, ctx.total_step, ctx.get("train_iter")) == ("a", 9, 1)
        assert ctx.of("node.1") == {"total_step": 3, "state_dict": "a", "train_iter": 1}
        assert ctx.of(2) == {"total_step": 9}
        assert ctx.of(7) == {"total_step": 0}

    def test_keys_that_no_ctx_may_hold_are_left_out_and_the_names_of_waits_are_not(self) -> None:
        ctx = ParallelContext()
        ctx._receive(1, {"items": 1, "finish": True, "receive": 2, "wait": 3, "wake": 4})
        assert dict(ctx.of(1)) == {"total_step": 0, "receive": 2, "wait": 3, "wake": 4}
        assert not ctx.finish
        assert (ctx.receive, ctx.wait, ctx.wake) == (2, 3, 4)
        assert list(ctx.items()) == [*(("total_step", 0), ("receive", 2), ("wait", 3), ("wake", 4))]
        with pytest.raises(ContextError, match=r"hide the method `of` of `parallel_ctx`\. Use"):
            Context(of=1)

    def test_a_key_or_a_wait_without_a_value_is_an_error_that_lists_what_was_sent(self, clock):
        ctx = ParallelContext()
        with pytest.raises(ContextError, match=r"no other node has sent it. Sent are: no keys"):
            assert ctx.state_dict
        ctx._receive(1, {"total_step": 3, "train_iter": 5})
        sent = r'`parallel_ctx.train_ter`.*mean "train_iter"\? Sent are: total_step, train_iter'
        with pytest.raises(ContextError, match=sent):
            assert ctx.train_ter
        found = r"`train_iter` > 5 in time. node.1 sent .*`train_iter`=5"
        with pytest.raises(DeadlineExceeded, match=found):
            ctx._wait({"train_iter": 5}, Deadline.after(0.0, clock), lambda: False)

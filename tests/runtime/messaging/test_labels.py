"""Labels, the patterns that select them, and the roles they are counted from."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, example, given, strategies as st

from ding_lite.errors import LabelError
from ding_lite.runtime import Context, LocalRouter, Task
from ding_lite.runtime.messaging.labels import (
    check_labels,
    check_patterns,
    count_roles,
    describe_node,
    matches,
)
from ding_lite.testing import Cluster

LABELS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,8}", fullmatch=True)
ODD = [" ", "", "a b", "a\n", "-a", ".a", "a*", "größe", "a,b", "a+b", "a/b", "#", "a\x00"]


@given(st.lists(LABELS))
def test_letters_digits_underscores_dashes_and_dots_make_a_label(labels: list[str]) -> None:
    assert check_labels(labels) == check_labels(iter([*labels, *labels])) == set(labels)


def test_anything_else_is_refused_with_what_a_label_looks_like() -> None:
    labels: list[Any] = [*ODD, None, 3, b"learner", ("a",)]
    looks = r"letters, digits, `_`, `-` and `\.`.*`node\.0`"
    for label in labels:
        with pytest.raises(LabelError, match=f"^{re.escape(repr(label))} is no label.*{looks}"):
            check_labels(["fine", label])
    nothing: list[Any] = [3, None, 0.5]
    for value in nothing:
        for check in (check_labels, check_patterns):
            with pytest.raises(LabelError, match=f"^{value!r} is no label"):
                check(value)
    with pytest.raises(LabelError, match="'a b' is no role"):
        check_labels("a b", what="role")


def test_patterns_keep_their_order_and_none_at_all_is_refused() -> None:
    assert check_patterns(name for name in ("b", "a*", "[!c]?")) == ("b", "a*", "[!c]?")
    empty: list[Any] = [[], (), set(), iter(())]
    for none in empty:
        with pytest.raises(LabelError, match=r"`filter_labels` is empty.* leave it out to run it"):
            check_patterns(none)
    refusals: list[Callable[[], object]] = [
        lambda: check_patterns([], of_receivers=True),
        lambda: Task().share("weights", to=[]),
        lambda: LocalRouter().send("work", 1, to=[]),
        lambda: LocalRouter().publish("topic", 4, to=[]),
    ]
    for refuse in refusals:
        with pytest.raises(LabelError, match="`to` is empty, so no node would ever receive this"):
            refuse()
    message = r"`to=\['lerner'\]`.* mean \"learner\"\? The labels of the"
    with pytest.raises(LabelError, match=message):
        LocalRouter(labels=["learner"]).send("work", 1, to="lerner")  # by default it waits for room


def test_a_pattern_that_no_label_could_match_is_refused() -> None:
    patterns: list[Any] = [
        *("", " ", "a b", "a,b", "größe*", "a\n", "{a,b}", None, 3),
        *("collector.[0-3", "[", "]", "a[", "[]", "[!]", "[]]", "a]", "!a", "[*]"),
        *("-x", ".x", "[.-]x", "[z-a]", "a[z-a]", "[!0-9A-Za-z_]x", "a[!0-9A-Za-z_.-]"),
    ]
    for pattern in patterns:
        message = f"^{re.escape(repr(pattern))} is no label pattern: no label could match it"
        with pytest.raises(LabelError, match=rf"{message}.*`collector\.\[0-3\]`"):
            check_patterns(["fine", pattern])


SHORT_LABELS = [
    "".join(chars)
    for length in range(1, 5)
    for chars in product("ab1z_.-", repeat=length)
    if chars[0] not in ".-"
]


@given(st.text("ab1.-*?[]!", min_size=1, max_size=6))
@example("[!--b]")
@example("[!]a]")
@example("[]a[b]")
@example("[1?]")
def test_a_pattern_is_refused_exactly_if_no_label_matches_it(pattern: str) -> None:
    assume(len(pattern) <= 4 or "[" in pattern)  # else it may need a longer label than those
    try:
        check_patterns(pattern)
    except LabelError:
        assert not matches(set(SHORT_LABELS), [pattern])
    else:
        assert matches(set(SHORT_LABELS), [pattern])


def test_one_pattern_that_matches_the_whole_of_one_label_is_enough() -> None:
    labels = {"learner", "node.1"}
    for pattern in ("learner", "node.?", "*er", "[a-m]*", "node.[!0]"):
        assert matches(labels, (one for one in ("other", pattern)))
    for pattern in ("learn", "earner", "Learner", "node?", "node.[!1]", "l.*"):
        assert not matches(labels, ["other", pattern])


def test_nothing_matches_without_labels_or_patterns_and_many_stars_come_to_an_end() -> None:
    assert not matches(set(), ["*"])
    assert not matches({"learner"}, [])
    assert not matches({"a" * 200}, ["*a" * 30 + "b"])


def test_roles_are_counted_one_by_one_over_the_nodes() -> None:
    counted = count_roles(["learner", {"collector", "evaluator"}, "collector", (), ["collector"]])
    assert counted == [
        {"learner", "learner.0"},
        {"collector", "collector.0", "evaluator", "evaluator.0"},
        {"collector", "collector.1"},
        set(),
        {"collector", "collector.2"},
    ]
    assert count_roles([["a", "a"], ["a"]]) == [{"a", "a.0"}, {"a", "a.1"}]


def test_a_role_may_not_pose_as_another_node_or_as_the_count_of_another_role() -> None:
    for role in ("standalone", "distributed", "async", "node", "node.1", "node.x"):
        with pytest.raises(LabelError, match=f"^'{role}' cannot be a role"):
            count_roles([{"learner", role}, "learner"])
    for roles in (["learner.0", "learner"], ["a", "a", "b", "a.1"], ["a", "a.0"]):
        with pytest.raises(LabelError, match=r"\.\d' cannot be a role"):
            count_roles(roles)
    # It may look like a count that does not occur.
    assert count_roles(["a", "a.1", "asynchronous", "nodes"])[1] == {"a.1", "a.1.0"}


def test_roles_are_a_list_of_labels_for_each_node() -> None:
    no_lists: list[Any] = ["learner", "abc", 3]
    for roles in no_lists:
        with pytest.raises(LabelError, match=rf"`roles` is {roles!r}; give a list.*\[{roles!r}\]"):
            count_roles(roles)
    counts: Any = {"learner": 1, "collector": 1}
    with pytest.raises(LabelError, match=r"one entry a node: \['learner', 'collector'\]"):
        count_roles(counts)
    no_labels: list[Any] = ["a b", "", ["fine", "a*"], [None], 3]
    for entry in no_labels:
        with pytest.raises(LabelError, match="is no role"):
            count_roles(["fine", entry])


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"standalone", "node.0"}, "node 0"),
        ({"distributed", "node.0", "learner", "learner.0"}, "node 0 learner"),
        ({"distributed", "node.0", "b", "b.1", "a", "a.0", "gpu"}, "node 0 a+b"),
        ({"distributed", "async", "node.0", "gpu", "fast"}, "node 0 fast+gpu"),
        ({"distributed", "node.0", "site.3"}, "node 0 site.3"),
    ],
)
def test_a_node_is_named_by_its_roles_or_else_by_what_the_user_has_added(labels, name) -> None:
    assert describe_node(0, labels) == name


class Name(StrEnum):
    LEARNER = "learner"
    COLLECTOR = "collector"
    NEWS = "news"


def test_members_of_a_str_enum_name_everything_between_nodes() -> None:
    def main() -> list[object]:
        received: list[object] = []
        with Task() as task:
            router = task.router

            def tell(ctx: Context) -> None:
                if ctx.total_step == 0:
                    ctx[Name.NEWS] = "a key"
                    return
                router.publish(Name.NEWS, "a topic")
                task.send(Name.NEWS, "an item", to=Name.COLLECTOR)
                task.emit(Name.NEWS, "an event", only_remote=True)
                task.wait_for("the end")

            def hear(ctx: Context) -> None:
                newest, item = task.wait_parallel_ctx(), task.receive(Name.NEWS)
                topic = router.subscribe(Name.NEWS)
                topic.wait()
                assert newest is not None
                assert item is not None
                received.extend([newest.news, item.value, topic.newest["news"]])
                task.wait_for("the end")

            def end(what: str) -> None:
                received.append(what)
                task.finish = True

            task.on(Name.NEWS, end).share(Name.NEWS, to=Name.COLLECTOR)
            task.at(Name.LEARNER).use(tell)
            task.at(Name.COLLECTOR).use(hear)
            task.run()
        return received

    with Cluster(2, roles=[Name.LEARNER, {Name.COLLECTOR}], labels=Name.NEWS) as cluster:
        assert cluster.run(main)[1] == ["a key", "an item", "a topic", "an event"]

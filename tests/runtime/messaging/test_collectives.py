"""Members of a group meet, and wrong calls of peers leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from ding_lite.errors import CodecError, ConfigError
from ding_lite.runtime.messaging.collectives import Collectives


@pytest.mark.parametrize(
    "wrong",
    [
        ("key", "barrier", 2, 0, None),
        ("key", "barrier", ["0"], 0, None),
        ("key", "barrier", [True, 1], 0, None),
        ("key", "barrier", [0, 1], [0], None),
        ("key", "barrier", [0, 1], True, None),
        (5, "barrier", [0, 1], 0, None),
        ("key", 5, [0, 1], 0, None),
    ],
)
def test_a_call_of_a_peer_that_is_no_operation_is_refused_and_not_kept(wrong: Any) -> None:
    collectives = Collectives()
    with pytest.raises(CodecError, match="A collective operation has a key, a kind"):
        collectives.contribute(*wrong)
    collectives.left(1)
    collectives.joined(1, is_new_incarnation=True)
    answers = [collectives.contribute("key", "barrier", [0, 1], rank, rank) for rank in range(2)]
    assert [answer.result(0.0) for answer in answers] == [[0, 1], [0, 1]]


def test_other_members_or_ranks_are_refused_and_the_operation_goes_on() -> None:
    collectives = Collectives()
    first = collectives.contribute("key", "barrier", [0, 1], 0, "a")
    for members, rank in (([0, 2], 1), ([0, 1, 2], 2), ([0, 1], 2), ([0, 1], -1)):
        with pytest.raises(ConfigError, match="does not belong to key"):
            collectives.contribute("key", "barrier", members, rank, "b")
    assert not first.done()
    collectives.contribute("key", "barrier", [0, 1], 1, "c")
    assert first.result(0.0) == ["a", "c"]

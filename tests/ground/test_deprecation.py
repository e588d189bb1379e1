"""Former names of public objects and arguments."""

from __future__ import annotations

import pytest

from ding_lite import middleware, rl
from ding_lite.deprecation import renamed, renamed_argument


def test_a_former_name_returns_the_present_object_and_warns() -> None:
    find = renamed("math", tau_half="pi")
    with pytest.warns(DeprecationWarning, match=r"`math\.tau_half` is now `math\.pi`"):
        assert find("tau_half") == pytest.approx(3.14159, abs=1e-5)
    with pytest.warns(DeprecationWarning, match="is now `ding_lite.rl.Rollout`"):
        assert rl.Unroll is rl.Rollout


@pytest.mark.parametrize(
    ("doorway", "name", "meant"),
    [(middleware, "evaluates", ' Did you mean "evaluate"?'), (rl, "DQNs", ' Did you mean "DQN"?')],
)
def test_an_unknown_name_raises_attribute_error_with_the_closest_one(doorway, name, meant) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(doorway, name)
    assert str(caught.value) == f"module {doorway.__name__!r} has no attribute {name!r}.{meant}"


def test_a_former_name_of_an_argument_passes_the_value_and_warns() -> None:
    @renamed_argument("unrolls", "rollouts")
    def count(rollouts: list[int]) -> int:
        return len(rollouts)

    with pytest.warns(DeprecationWarning, match="`unrolls` of `count` is now `rollouts`"):
        assert count(**{"unrolls": [1, 2]}) == count([1, 2]) == 2

"""Values from several sources."""

from __future__ import annotations

import pytest

from ding_lite.recipes.layers import Layers

VALUES = Layers(given={"a": 1}, file={}, preset={"a": 2, "b": None}, default={"c": 3})


def test_the_first_layer_that_has_a_name_counts_even_if_its_value_is_none() -> None:
    assert dict(VALUES) == {"a": 1, "b": None, "c": 3}
    assert [VALUES.source(name) for name in "abcd"] == ["given", "preset", "default", "default"]
    assert sorted(VALUES.names_from("given", "default")) == ["a", "c"]
    assert [VALUES.has(source) for source in ("preset", "file", "run")] == [True, False, False]
    with pytest.raises(KeyError):
        VALUES["d"]


def test_a_copy_has_further_values_in_one_layer() -> None:
    other = VALUES.but("file", b=5).but("given", a=6)
    assert dict(other) == {"a": 6, "b": 5, "c": 3}
    assert other.source("b") == "file"
    assert dict(VALUES) == {"a": 1, "b": None, "c": 3}

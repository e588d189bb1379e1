"""Names that a version has renamed."""

from __future__ import annotations

import pytest

from ding_lite import rl


def test_an_old_name_gives_the_renamed_object_and_warns():
    with pytest.warns(DeprecationWarning, match="is now `ding_lite.rl.Rollout`"):
        assert rl.Unroll is rl.Rollout


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"has no attribute 'Unrol'"):
        _ = rl.Unrol

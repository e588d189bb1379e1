"""The names of `ding_lite.distributed`, and their imports."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from ding_lite import distributed
from ding_lite.distributed.blocks import ShardedTransitions


def test_world_and_group_need_no_torch() -> None:
    code = (
        "import sys; from ding_lite.distributed import Group, World; World.current(); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_is_there() -> None:
    for name in dir(distributed):
        assert getattr(distributed, name).__name__ == name


def test_a_slip_in_a_name_is_explained() -> None:
    with pytest.raises(AttributeError, match='Did you mean "ShardedReplay"'):
        _ = distributed.SharedReplay


def test_the_former_name_of_incarnation_warns() -> None:
    given: dict[str, Any] = {field.name: np.array([7]) for field in fields(ShardedTransitions)}
    given |= {name: np.array([False]) for name in ("terminated", "truncated")}
    with pytest.warns(DeprecationWarning, match="is now `incarnation`"):
        assert ShardedTransitions(**given).life.tolist() == [7]

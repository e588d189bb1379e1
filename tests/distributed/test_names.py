"""The names of `ding_lite.distributed`, and their imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ding_lite import distributed


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

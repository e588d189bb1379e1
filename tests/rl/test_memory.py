import os

import pytest

from ding_lite.errors import ConfigError
from ding_lite.rl import memory


def test_a_container_may_use_what_its_limit_says(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_CONTAINER_LIMIT", limit)
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for content, expected in {"max\n": installed, "4096\n": 4096, f"{10**18}\n": installed}.items():
        limit.write_text(content)
        assert memory.machine_bytes() == expected
    limit.unlink()
    assert memory.machine_bytes() == installed


def test_too_much_is_refused_with_what_would_fit(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    limit.write_text("2000000000")
    monkeypatch.setattr(memory, "_CONTAINER_LIMIT", limit)
    memory.check_fits(2_000_000_000, capacity=50_000, what="A replay")
    with pytest.raises(
        ConfigError,
        match=r"A replay of `capacity` 50,000 needs 4\.0 GB of memory, but this machine has "
        r"2\.0 GB\. At most 25,000 would fit\.",
    ):
        memory.check_fits(4_000_000_000, capacity=50_000, what="A replay")

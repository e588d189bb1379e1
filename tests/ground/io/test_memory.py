"""Free memory, and the refusal of sizes that need more, with a size that would fit."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ding_lite.errors import ConfigError
from ding_lite.io import memory
from tests.cli.calls import ROOT, environment


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the files of a machine with 16 GiB to spare, and no control groups."""
    for name in ("_MACHINE", "_OWN_GROUPS", "_GROUPS"):
        monkeypatch.setattr(memory, name, tmp_path / name)
    (tmp_path / "_MACHINE").write_text(f"MemTotal: 99 kB\nMemAvailable:   {16 << 20} kB\n")
    return tmp_path


def limit(group: Path, most: str, used: int, cache: int, *, version: int = 2) -> None:
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }[version]
    group.mkdir(parents=True, exist_ok=True)
    (group / names[0]).write_text(f"{most}\n")
    (group / names[1]).write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 7\n{names[2]} {cache}\n")


def test_without_limits_it_is_what_the_machine_has_to_spare(machine: Path) -> None:
    assert memory.available_bytes() == 16 << 30
    (machine / "_OWN_GROUPS").write_text("0::/job\n")
    limit(machine / "_GROUPS/job", "max", 5, 0)
    assert memory.available_bytes() == 16 << 30


@pytest.mark.parametrize(
    ("line", "folder", "version"),
    [("0::/a/b", "a/b", 2), ("0::/a/b", "a", 2), ("4:memory:/j", "memory/j", 1)],
)
def test_a_container_leaves_the_memory_of_its_limit(machine, line, folder, version) -> None:
    (machine / "_OWN_GROUPS").write_text(f"3:cpu,cpuacct:/\n{line}\n")
    limit(machine / "_GROUPS" / folder, "1000", used=900, cache=300, version=version)
    assert memory.available_bytes() == 400
    limit(machine / "_GROUPS" / folder, "1000", used=1_100, cache=0, version=version)
    assert memory.available_bytes() == 0


@pytest.mark.procs
def test_available_memory_is_within_the_limit_of_address_space() -> None:
    code = "from ding_lite.io.memory import available_bytes; print(available_bytes())"
    most = 8 << 30
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
    )
    assert 0 < int(done.stdout) < most


@pytest.mark.usefixtures("machine")
def test_too_much_is_refused_with_the_size_that_would_fit(machine: Path) -> None:
    (machine / "_MACHINE").write_text("MemAvailable: 2000000 kB\n")
    memory.check_fits(2_000_000 * 1024, what="A replay", capacity=50_000)
    with pytest.raises(
        ConfigError,
        match=r"A replay with `capacity` 50,000 needs 4\.1 GB of memory, but this machine has "
        r"2\.0 GB to spare\. At most 25,000 would fit\.",
    ):
        memory.check_fits(2 * 2_000_000 * 1024, what="A replay", capacity=50_000)
    with pytest.raises(ConfigError, match=r"with `hidden` \(8, 9\) needs .* Lower `hidden`\."):
        memory.check_fits(10**13, what="A network", hidden=(8, 9))
    with pytest.raises(ConfigError, match="needs more than 1,000,000,000 GB of memory"):
        memory.check_fits(10**400, what="A network", num_envs=10**300)

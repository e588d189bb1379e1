"""Host lists and task counts of Slurm."""

from __future__ import annotations

import pytest

from ding_lite.errors import ConfigError
from ding_lite.parallel.launch.environment.slurm import expand_counts, expand_names, hosts_of_tasks


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[09-11,20]", ["n09", "n10", "n11", "n20"]),
        ("n[1]-ib,m", ["n1-ib", "m"]),
        ("r[1-2]n[01,3]", ["r1n01", "r1n3", "r2n01", "r2n3"]),
        ("gpu-a[1-2],gpu-b[1,3-4].site", "gpu-a1 gpu-a2 gpu-b1.site gpu-b3.site gpu-b4.site"),
    ],
)
def test_a_host_list_is_expanded(text: str, names: list[str] | str) -> None:
    assert expand_names(text) == (names.split() if isinstance(names, str) else names)


@pytest.mark.parametrize("text", ["n[1-]", "n[a-b]", "n[1;2]", "n[]", "n[1", "n1]"])
def test_a_malformed_host_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"SLURM_STEP_NODELIST is .* cannot be read"):
        expand_names(text)


def test_task_counts_are_expanded() -> None:
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert expand_counts("4") == [4]
    assert expand_counts("") == []
    with pytest.raises(ConfigError, match="SLURM_STEP_TASKS_PER_NODE is '2x3'"):
        expand_counts("2x3")


@pytest.mark.parametrize(
    ("how", "hosts"),
    [
        ("block", "a a a b c c"),
        ("block:cyclic", "a a a b c c"),
        ("", "a a a b c c"),
        ("cyclic", "a b c a c a"),
        ("cyclic:block", "a b c a c a"),
        ("plane=2", "a"),
        ("arbitrary", "a"),
    ],
)
def test_hosts_of_tasks_follow_the_distribution(how: str, hosts: str) -> None:
    assert hosts_of_tasks(["a", "b", "c"], [3, 1, 2], how) == hosts.split()


def test_with_inconsistent_counts_only_the_first_host_is_known() -> None:
    assert hosts_of_tasks(["a", "b"], [], "block") == ["a"]
    assert hosts_of_tasks([], [], "block") == []

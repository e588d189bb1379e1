"""Detection of srun."""

from __future__ import annotations

import pytest

from ding_lite.errors import ConfigError
from ding_lite.parallel.launch.environment.detect import detect as detect_any
from ding_lite.parallel.launch.environment.slurm import (
    detect,
    expand_counts,
    expand_names,
    hosts_of_tasks,
)
from tests.parallel.launch.environment.environs import SLURM, SLURM_BATCH, SLURM_SHELL


def test_a_task_of_srun_is_a_node_with_all_host_names() -> None:
    place = detect(SLURM)
    assert place is not None
    assert (place.launcher, place.node_id, place.num_nodes) == ("srun", 2, 5)
    assert not place.on_one_machine
    assert place.hosts == {0: "gpu08", 1: "gpu08", 2: "gpu09", 3: "gpu09", 4: "gpu12"}


def test_a_step_on_one_machine_is_detected_in_any_allocation() -> None:
    step = {
        "SLURM_STEP_NODELIST": "gpu12",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": "5",
    }
    place = detect({**SLURM, **step})
    assert place is not None
    assert place.on_one_machine


def test_steps_of_a_job_are_different_jobs() -> None:
    first, second = detect(SLURM), detect({**SLURM, "SLURM_STEP_ID": "1"})
    assert first is not None
    assert second is not None
    assert first.job != second.job


def test_a_batch_script_and_an_interactive_shell_are_no_nodes() -> None:
    assert detect(SLURM_BATCH) is None
    assert detect_any(SLURM_SHELL) is None


def test_srun_from_an_interactive_shell_is_detected() -> None:
    place = detect_any({**SLURM_SHELL, **SLURM})
    assert place is not None
    assert place.num_nodes == 5


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

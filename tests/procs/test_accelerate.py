"""Two processes of Accelerate: one population, and no hang when one dies or goes astray."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ding_lite.parallel.network.address import LOOPBACK, free_ports
from tests.procs.conftest import Fork
from tests.procs.programs import Program, run

Ranks = Callable[..., list[Program]]


@pytest.fixture
def ranks(fork_learner: Fork) -> Iterator[Ranks]:
    """Return what starts a program twice, with the variables that torchrun sets."""
    with ExitStack() as stack:

        def ranks(name: str, **given: Any) -> list[Program]:
            port = str(free_ports(LOOPBACK, 1)[0])
            known = {"WORLD_SIZE": "2", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": port}
            of_ranks = [{**known, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
            started = [fork_learner(name, variables=each, **given) for each in of_ranks]
            return [stack.enter_context(each) for each in started]

        yield ranks


def test_two_processes_are_one_population(ranks: Ranks) -> None:
    ended = [each.end() for each in ranks("accelerate_together")]
    output = "".join(text for _, text in ended)
    assert [code for code, _ in ended] == [0, 0], output
    lines = [line.split() for line in output.splitlines()]
    # Else one of them may abort a process that has done all its work.
    assert lines.count(["threads", "at", "the", "end", "0"]) == 2, output
    checks = [line for line in output.splitlines() if line.endswith(("True", "False"))]
    assert len(checks) == 2 * 14, output
    assert all(line.endswith("True") for line in checks), output
    of_both = {
        name: [line[1:] for line in lines if line[:1] == [name]]
        for name in ("env_step", "population", "weights", "judged")
    }
    # Three generations of three steps, three agents, 16 env steps, on two processes.
    assert of_both["env_step"] == [[str(3 * 3 * 3 * 16 * 2), "steps", "9"]] * 2
    assert len(of_both["weights"][0]) == 9
    assert len({*of_both["weights"][0]}) == 9
    assert of_both["weights"][0] == of_both["weights"][1]
    for name in ("population", "judged"):
        assert len(of_both[name]) == 2
        assert of_both[name][0] == of_both[name][1]


def test_a_process_that_waits_for_one_that_was_killed_ends_in_time(ranks: Ranks) -> None:
    waiting, killed = ranks("accelerate_faults")
    killed.line("elsewhere")
    killed.kill()
    output = waiting.refusal()
    assert (
        "PeerLost: Rank 0 of 2 has waited for the other processes in vain: one has died" in output
    )
    assert "has not come within 60 s" in output


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_started_alone_ends_in_time(fork_learner: Fork, rank: int) -> None:
    source = """
from ding_lite.distributed import Processes
Processes(timeout=0.1)
"""
    port = str(free_ports(LOOPBACK, 1)[0])
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": port}
    with fork_learner(source=source, variables={**variables, "RANK": str(rank)}) as alone:
        output = alone.refusal()
    assert f"PeerLost: Rank {rank} of 2 has not met the others at {LOOPBACK}, port {port}" in output


@pytest.mark.slow
def test_accelerate_launch_starts_two_or_says_how_to(folder: Path) -> None:
    source = """
from ding_lite.distributed import Processes
say("size", Processes().size)
"""
    launch = ("-m", "accelerate.commands.launch")
    code, output = run(folder, source, *launch, "--cpu", "--num_processes", "2", "program.py")
    assert code == 1, output
    assert "has started one, as it does for a job without GPUs" in output
    two = ("--multi_gpu", "--main_process_port", "0", "--num_processes", "2", "program.py")
    assert "--multi_gpu --num_processes 2 program.py" in output
    code, output = run(folder, source, *launch, *two)
    assert (code, output.count("size 2")) == (0, 2), output


def test_two_processes_go_on_where_both_have_saved_though_one_was_killed_on_the_way(
    ranks: Ranks, folder: Path
) -> None:
    ended = [each.end() for each in ranks("accelerate_resumed", goes_on=False)]
    assert [code for code, _ in ended] == [-signal.SIGKILL, 1], ended
    assert [f"goes on {rank} None" in output for rank, (_, output) in enumerate(ended)] == [
        True
    ] * 2
    # The other process has saved step 6, the main one was killed when it was about to.
    assert {path.name for path in folder.glob("cut*")} == {"cut", "cut-1-0", "cut-1-1"}

    for rank, each in enumerate(ranks("accelerate_resumed", goes_on=True)):
        output = each.result()
        assert f"goes on {rank} 3" in output, output
        assert f"resumed {rank} True" in output, output

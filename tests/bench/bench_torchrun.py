"""torchrun: from the kill of a rank to the whole job training again from its checkpoint.

Learners of one policy, one gradient an update; rank 1 is killed behind update 25, torchrun ends
the others and starts all again, and the clock stops at the first update of the last of them.
"""

from __future__ import annotations

from tests.bench.harness import Row, row_from_samples, run_program
from tests.procs.programs import PROGRAMS

REPEATS = 5


def run() -> list[Row]:
    return [of_ranks(num_ranks) for num_ranks in (2, 4)]


def of_ranks(num_ranks: int) -> Row:
    """Kill a rank of so many, again and again."""
    source = (PROGRAMS / "gang.py").read_text()
    return row_from_samples(
        f"torchrun with {num_ranks} ranks, kill -9 of one to all of them training again",
        [recovery_s(source, num_ranks) for _ in range(REPEATS)],
        unit="s",
        target=15.0,
        tracked=True,
    )


def recovery_s(source: str, num_ranks: int) -> float:
    """Run a program under torchrun; return the seconds from the kill to the last first update."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    launcher = [*torchrun, "--nproc-per-node", str(num_ranks)]
    output = run_program(source, launcher=launcher)
    words = [line.split() for line in output.splitlines()]
    [killed] = [float(line[1]) for line in words if line[:1] == ["killed"]]
    again = [float(line[4]) for line in words if line[:2] == ["training", "1"]]
    if len(again) != num_ranks:
        raise RuntimeError(f"{len(again)} of {num_ranks} ranks were training again.")
    return max(again) - killed

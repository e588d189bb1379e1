"""Detection of launchers, and the precedence of settings."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest

from ding_lite.errors import ConfigError
from ding_lite.parallel.launch.environment import (
    FIRST_PORT,
    LAUNCHERS,
    Placement,
    detect,
    placement_of,
)
from ding_lite.settings.environment import Settings
from tests.parallel.launch.environs import (
    DEEPSPEED,
    KUBEFLOW,
    KUBERNETES,
    MPICH,
    OPEN_MPI,
    SLURM,
    SLURM_BATCH,
    SLURM_SHELL,
    TORCHRUN,
)

EPHEMERAL = 32_768
"""The first ephemeral port of Linux by default."""


def found(environ: dict[str, str]) -> Placement:
    place = detect(environ)
    assert place is not None
    return place


ALONE = {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
NO_LAUNCH: list[dict[str, str]] = [
    {},
    *({**DEEPSPEED, name: ""} for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")),
    {**DEEPSPEED, "RANK": "0", "WORLD_SIZE": "1"},
    {"PATH": "/bin", "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"},
    {"RANK": "captain", "WORLD_SIZE": "big"},
    *({**TORCHRUN, name: blank} for name in ("RANK", "WORLD_SIZE") for blank in ("", " ")),
    *(ALONE, {**SLURM, **ALONE}),  # so outer launchers are ignored
    *(SLURM_BATCH, SLURM_SHELL, {**SLURM, "SLURM_STEP_ID": ""}),
    *({"OMPI_COMM_WORLD_RANK": "1"}, {"PMI_SIZE": "2"}, {"DING_LITE_NUM_NODES": "3"}),
    {**KUBERNETES, "DING_LITE_NUM_NODES": ""},
]


def test_variables_of_other_programs_and_incomplete_ones_are_no_launch() -> None:
    for environ in NO_LAUNCH:
        assert detect(environ) is None, environ


@pytest.mark.parametrize(
    "environ", [TORCHRUN, KUBEFLOW, DEEPSPEED, OPEN_MPI, MPICH, SLURM, KUBERNETES]
)
def test_each_launcher_is_detected(environ: dict[str, str]) -> None:
    found_by = [place for of_one in LAUNCHERS if (place := of_one(environ)) is not None]
    assert found_by == [found(environ)]


LOCAL_HOSTS = "127.0.0.1", "localhost", "::1", "127.1.2.3"
IN_BRACKETS = r"MASTER_ADDR is .* without a port or brackets"
REFUSED: list[tuple[dict[str, str], str]] = [
    *(
        ({**TORCHRUN, "WORLD_SIZE": size}, f"WORLD_SIZE is '{size}'; a whole number was expected")
        for size in ("-1", "two", "1.5", "0x3")
    ),
    ({**TORCHRUN, "RANK": "3"}, "torchrun has started this process as node 3 of 3"),
    *(
        ({**TORCHRUN, "RANK": rank, "MASTER_ADDR": host}, IN_BRACKETS)
        for rank in "012"  # on all nodes, or the others would wait
        for host in ("[::1]", "gpu08:29500", "tcp://gpu08", "10.0.0.7:29500")
    ),
    *(
        ({**SLURM, "SLURM_STEP_NODELIST": machines}, "SLURM_STEP_NODELIST is .* cannot be read")
        for machines in ("n[a-b]", "n[1;2]", "n[]", "n[1", "n1]", ",a")
    ),
]


@pytest.mark.parametrize(("environ", "message"), REFUSED)
def test_malformed_variables_are_refused_by_name(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        detect(environ)


APART = {**TORCHRUN, "LOCAL_WORLD_SIZE": "1"}
MPI_APART = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
ALLOCATED = {**SLURM, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
ONE_MACHINE = {"SLURM_STEP_NODELIST": "gpu12", "SLURM_STEP_NUM_NODES": "1"}
PLACES: list[tuple[dict[str, str], dict[str, Any]]] = [
    (TORCHRUN, {"launcher": "torchrun", "node_id": 1, "num_nodes": 3}),
    (TORCHRUN, {"on_one_machine": True, "host": "127.0.0.1"}),
    ({**APART, "MASTER_ADDR": "gpu08"}, {"on_one_machine": False, "host": "gpu08"}),
    *(({**APART, "MASTER_ADDR": host}, {"on_one_machine": True}) for host in LOCAL_HOSTS),
    (KUBEFLOW, {"launcher": "a PyTorch launcher", "node_id": 1, "num_nodes": 3}),
    (KUBEFLOW, {"on_one_machine": False, "host": "train-master-0"}),
    (DEEPSPEED, {"node_id": 1, "num_nodes": 2, "on_one_machine": True}),
    (OPEN_MPI, {"launcher": "mpirun", "node_id": 1, "num_nodes": 4}),
    (OPEN_MPI, {"on_one_machine": True, "job": "prterun-gpu08-4711@1"}),
    ({**OPEN_MPI, "PMIX_NAMESPACE": "", "OMPI_MCA_ess_base_jobid": "338447"}, {"job": "338447"}),
    (MPI_APART, {"on_one_machine": False, "host": ""}),  # the user says where node 0 is
    ({**MPI_APART, "MASTER_ADDR": "gpu08"}, {"host": "gpu08"}),
    (MPICH, {"launcher": "mpirun", "node_id": 2, "num_nodes": 5}),
    (MPICH, {"on_one_machine": False, "host": "gpu08"}),
    (  # mpiexec within a step of Slurm, with one proxy on each machine
        {**SLURM, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", **MPICH},
        {"launcher": "mpirun", "node_id": 2, "num_nodes": 5},
    ),
    ({**SLURM, **MPICH}, {"launcher": "srun"}),  # which has started MPICH directly
    # The innermost launcher takes precedence.
    ({**KUBERNETES, **ALLOCATED}, {"launcher": "srun"}),
    ({**KUBERNETES, **ALLOCATED, **OPEN_MPI}, {"launcher": "mpirun"}),
    ({**KUBERNETES, **ALLOCATED, **OPEN_MPI, **TORCHRUN}, {"launcher": "torchrun"}),
    (SLURM, {"launcher": "srun", "node_id": 2, "num_nodes": 5}),
    (SLURM, {"on_one_machine": False, "host": "gpu08"}),
    ({**SLURM, "SLURM_STEP_NODELIST": ""}, {"on_one_machine": False, "host": ""}),
    ({**SLURM, **ONE_MACHINE}, {"on_one_machine": True}),
    ({**SLURM_SHELL, **SLURM}, {"launcher": "srun", "num_nodes": 5}),  # from its shell
    (KUBERNETES, {"launcher": "kubernetes", "node_id": 1, "num_nodes": 3}),
    (KUBERNETES, {"on_one_machine": False, "host": "train-0.train-pods"}),
    ({**KUBERNETES, "MASTER_ADDR": ""}, {"host": "", "job": "train"}),
    ({**KUBERNETES, "HOSTNAME": "elsewhere"}, {"job": "train-0.train-pods"}),
]


def test_all_variables_of_a_launcher_are_read() -> None:
    for environ, expected in PLACES:
        place = found(environ)
        assert {name: getattr(place, name) for name in expected} == expected, environ


def test_a_missing_host_of_node_0_is_explained() -> None:
    assert "mpirun -x MASTER_ADDR=" in found(MPI_APART).how_to_tell
    reported = found({**KUBERNETES, "MASTER_ADDR": ""}).how_to_tell
    assert "Set MASTER_ADDR in the pod template to the name of pod 0: train-0." in reported


@pytest.mark.parametrize(
    ("machines", "host"),
    [
        ("login", "login"),
        ("a,b", "a"),
        ("n[1-3]", "n1"),
        ("n[09-11,20]", "n09"),
        ("n[1]-ib,m", "n1-ib"),
        ("r[1-2]n[01,3]", "r1n01"),
        ("gpu-a[1-2],gpu-b[1,3-4].site", "gpu-a1"),
        ("gpu-b[1,3-4].site,a", "gpu-b1.site"),
    ],
)
def test_the_host_of_node_0_is_the_first_of_slurms_list(machines: str, host: str) -> None:
    assert found({**SLURM, "SLURM_STEP_NODELIST": machines}).host == host


def test_nodes_of_a_job_derive_the_same_port_and_other_jobs_another() -> None:
    ports = {found({**TORCHRUN, "RANK": str(rank)}).port for rank in range(3)}
    ports |= {found({**SLURM, "SLURM_PROCID": str(rank)}).port for rank in range(5)}
    assert len(ports) == 2
    other = [{"TORCHELASTIC_RUN_ID": "other"}, {"MASTER_PORT": "29501"}, {"MASTER_ADDR": "other"}]
    for change in other:
        assert found({**TORCHRUN, **change}).port not in ports
    assert found(SLURM).job != found({**SLURM, "SLURM_STEP_ID": "1"}).job
    assert found({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}).port in ports
    assert found(DEEPSPEED).port != found({**DEEPSPEED, "MASTER_PORT": "29501"}).port


BATCH = [
    {"SLURM_JOB_ID": "4711"},
    {"PBS_JOBID": "4711.head"},
    {"LSB_JOBID": "4713"},
    {"LSB_JOBID": "4713", "LSB_JOBINDEX": "2"},
    {"JOB_ID": "4712"},
    {"JOB_ID": "4712", "SGE_TASK_ID": "2"},
    {"I_MPI_HYDRA_UUID": "975a0000-da4f-cd9a-6e61-0600d3f7ac52"},
    {"MASTER_ADDR": "gpu09"},
    {},
]


def test_jobs_of_mpich_without_a_name_are_told_apart_by_what_their_ranks_share() -> None:
    ports = [
        {found({**MPICH, **job, "PMI_RANK": rank, "PMI_FD": f"100{rank}"}).port for rank in "01234"}
        for job in BATCH
    ]
    assert [len(of_one) for of_one in ports] == [1] * len(BATCH)
    assert len(set.union(*ports)) == len(BATCH)


MAKE_PAIR = """
import socket, sys
here, there = socket.socketpair()
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"x"], [there.fileno()])
"""


def test_two_jobs_of_mpich_on_one_machine_differ_by_the_process_that_started_them() -> None:
    def job(pmi: socket.socket, rank: str) -> str:
        here = {"PMI_FD": f"{pmi.fileno()}", "MPI_LOCALNRANKS": "5", "PMI_RANK": rank}
        return found({**MPICH, **here}).job

    (one, proxy), (two, other_proxy) = socket.socketpair(), socket.socketpair()
    with one, proxy, two, other_proxy:
        assert job(one, "0") == job(two, "1")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            child = [sys.executable, "-c", MAKE_PAIR, f"{theirs.fileno()}"]
            subprocess.run(child, pass_fds=[theirs.fileno()], check=True)
            _, [fd], _, _ = socket.recv_fds(ours, 1, 1)
        with socket.socket(fileno=fd) as other:
            assert job(other, "0") != job(one, "0")
        one.send(b"it is still open")


def test_pods_on_the_network_of_their_machines_derive_the_same_port() -> None:
    machines = {"0": "worker-0", "1": "worker-2", "2": "worker-1"}  # one ends like its index
    ports = {
        found({**KUBERNETES, "JOB_COMPLETION_INDEX": index, "HOSTNAME": machine}).port
        for index, machine in machines.items()
    }
    assert len(ports) == 1


def test_derived_ports_are_outside_of_the_ephemeral_range() -> None:
    for job in range(2_000):
        place = Placement(
            launcher="srun", node_id=0, num_nodes=700, job=f"{job}", on_one_machine=True
        )
        assert FIRST_PORT <= place.port <= EPHEMERAL - 700


def test_a_launcher_is_detected_without_settings() -> None:
    assert placement_of(Settings(), TORCHRUN) == found(TORCHRUN)
    assert placement_of(Settings(num_nodes=3, node_id=None), TORCHRUN) == found(TORCHRUN)
    assert placement_of(Settings(node_id=1), TORCHRUN) == found(TORCHRUN)
    assert placement_of(Settings(labels=("gpu",), topology="star"), TORCHRUN) == found(TORCHRUN)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(num_nodes=2, node_id=0),
        Settings(engine="local"),
        Settings(attach_to=("tcp://127.0.0.1:50515",)),
    ],
)
def test_complete_settings_override_a_launcher(settings: Settings) -> None:
    assert placement_of(settings, {**TORCHRUN, "WORLD_SIZE": "none of our business"}) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"num_nodes": 4}, "DING_LITE_NUM_NODES is 4"), ({"node_id": 2}, "DING_LITE_NODE_ID is 2")],
)
def test_settings_that_contradict_a_launcher_are_refused(given, expected) -> None:
    with pytest.raises(ConfigError, match=f"{expected}, but torchrun has .* as node 1 of 3"):
        placement_of(Settings(**given), TORCHRUN)

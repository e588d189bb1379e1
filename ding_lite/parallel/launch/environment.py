"""The place of this process in a job, as an external launcher describes it.

A launcher such as torchrun or srun starts one process for each node of a job and describes it in
environment variables. One function for each launcher reads its variables, from the given mapping.
It returns a `Placement`, or None if that launcher has not started this process.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b

from ding_lite.errors import ConfigError
from ding_lite.settings.environment import Settings

FIRST_PORT = 20_000
"""The lowest derived port; the highest is below the ephemeral range of Linux."""
_NUM_PORTS = 12_000


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The place of this process in a job, read from the launcher's environment variables."""

    launcher: str
    node_id: int
    num_nodes: int
    job: str
    """An identifier that all nodes of the job share, most likely different from other jobs."""
    on_one_machine: bool
    host: str = ""
    """The host of node 0, if it is known."""
    how_to_tell: str = ""
    """Advice for a user if it is unknown."""

    def __post_init__(self) -> None:
        if not 0 <= self.node_id < self.num_nodes:
            raise ConfigError(
                f"The environment says that {self.launcher} has started this process as node "
                f"{self.node_id} of {self.num_nodes}; the nodes are numbered from 0 on, so the "
                f"last one is {self.num_nodes - 1}. Was a variable of {self.launcher} "
                f"changed?"
            )

    @property
    def port(self) -> int:
        """The port of node 0, a hash of the job; node 0 tells the others where their peers are."""
        digest = blake2b(f"{self.launcher} {self.job}".encode(), digest_size=8).digest()
        return FIRST_PORT + int.from_bytes(digest, "little") % _NUM_PORTS


# -- launchers -----------------------------------------------------------------------------


def of_torchrun(environ: Mapping[str, str]) -> Placement | None:
    """Read the variables of torchrun, `accelerate launch`, deepspeed and jobs of Kubeflow.

    All set what `torch.distributed` needs; only torchrun and those built on it name the run.
    """
    run_id, port = environ.get("TORCHELASTIC_RUN_ID"), environ.get("MASTER_PORT")
    if run_id is None and not (environ.get("MASTER_ADDR") and port):
        return None
    node_id, num_nodes = number(environ, "RANK"), number(environ, "WORLD_SIZE")
    if node_id is None or num_nodes is None:
        return None
    host = master(environ)
    on_one_machine = number(environ, "LOCAL_WORLD_SIZE") == num_nodes
    return Placement(
        launcher="a PyTorch launcher" if run_id is None else "torchrun",
        node_id=node_id,
        num_nodes=num_nodes,
        job=f"{run_id} {host}:{port}",
        on_one_machine=on_one_machine or names_this_machine(host),
        host=host,
        how_to_tell="Set MASTER_ADDR to the name of its machine.",
    )


_OPEN_MPI = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"
_MPICH = "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"
_JOB_OF_OPEN_MPI = "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"
_JOB_OF_INTEL_MPI = ("I_MPI_HYDRA_UUID",)
_BATCH_IDS = "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "LSB_JOBINDEX", "JOB_ID", "SGE_TASK_ID"
"""Variables with the job id of a batch system, and with the index within an array of jobs."""


def of_mpi(environ: Mapping[str, str]) -> Placement | None:
    """Read the variables of Open MPI, MPICH and Intel MPI; no MPI library is needed."""
    kinds = (_OPEN_MPI, _JOB_OF_OPEN_MPI), (_MPICH, _JOB_OF_INTEL_MPI)
    for (of_rank, of_size, of_local_size), of_job in kinds:
        node_id, num_nodes = number(environ, of_rank), number(environ, of_size)
        if node_id is None or num_nodes is None or _is_from_srun(environ, of_size, num_nodes):
            continue
        host = master(environ)
        on_one_machine = number(environ, of_local_size) == num_nodes
        job = next((environ[name] for name in of_job if environ.get(name)), "")
        return Placement(
            launcher="mpirun",
            node_id=node_id,
            num_nodes=num_nodes,
            job=job or _unnamed_job(environ, host, has_one_proxy=on_one_machine),
            on_one_machine=on_one_machine or names_this_machine(host),
            host=host,
            how_to_tell=(
                "Set MASTER_ADDR to the name of the machine that runs rank 0, on all of them: "
                "`mpirun -x MASTER_ADDR=...` of Open MPI, `mpiexec -genv MASTER_ADDR ...` of MPICH."
            ),
        )
    return None


_CREDENTIALS = struct.Struct("3i")
"""The kernel's record of the other end of a Unix socket: its process, user and group."""


def _unnamed_job(environ: Mapping[str, str], host: str, *, has_one_proxy: bool) -> str:
    """Tell jobs apart that have no name, as those of MPICH: by all that their ranks share."""
    batch = [environ[name] for name in _BATCH_IDS if environ.get(name)]
    # A batch job may start several programs at once, and without one nothing else differs.
    proxy = _pid_of_proxy(environ) if has_one_proxy else ""
    return " ".join(filter(None, (*batch, host, proxy))) or "without a name"


def _pid_of_proxy(environ: Mapping[str, str]) -> str:
    """Return the process of MPICH that has started all ranks of a machine; "" if it is unknown.

    It holds the other end of the socket `PMI_FD` of each of them. The parent process may be a
    wrapper that each rank has of its own.
    """
    fd = number(environ, "PMI_FD")
    if fd is None:
        return ""
    try:
        pmi = socket.socket(fileno=fd)
    except OSError:  # a wrapper has closed it
        return ""
    try:
        found = pmi.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    finally:
        pmi.detach()  # it stays open, for the MPI library
    pid, _, _ = _CREDENTIALS.unpack(found)
    return str(pid or "")


def _is_from_srun(environ: Mapping[str, str], of_size: str, num_nodes: int) -> bool:
    """Tell whether srun has started MPICH directly; srun's own variables then say more."""
    return of_size == "PMI_SIZE" and number(environ, "SLURM_STEP_NUM_TASKS") == num_nodes


_FIRST_NAME = re.compile(r"(?:[^\[\],\s]|\[\d[\d,-]*\])+")
"""A name with lists of numbers, as in `r[1-2]n[08-10,12]`."""
_NUMBERS = re.compile(r"\[(\d+)[^\]]*\]")


def of_slurm(environ: Mapping[str, str]) -> Placement | None:
    """Read the variables of one `srun`, which starts a process for each task of a job step.

    Those of a batch script or of a `salloc` shell describe an allocation, not this process.
    """
    node_id, num_nodes = number(environ, "SLURM_PROCID"), number(environ, "SLURM_STEP_NUM_TASKS")
    step = environ.get("SLURM_STEP_ID")
    if not step or node_id is None or num_nodes is None:
        return None
    machines = environ.get("SLURM_STEP_NODELIST", "").strip()
    host = _first_name(machines)  # that of task 0
    return Placement(
        launcher="srun",
        node_id=node_id,
        num_nodes=num_nodes,
        job=f"{environ.get('SLURM_JOB_ID')}.{step}",
        on_one_machine=host == machines != "" or number(environ, "SLURM_STEP_NUM_NODES") == 1,
        host=host,
        how_to_tell="SLURM_STEP_NODELIST should name the machines of the step; was it unset?",
    )


def _first_name(machines: str) -> str:
    found = _FIRST_NAME.match(machines)
    if machines and (found is None or machines[found.end() : found.end() + 1] not in ("", ",")):
        raise ConfigError(
            f"SLURM_STEP_NODELIST is {machines!r}, which cannot be read; expected was something "
            f"like 'gpu[08-10,12]', as srun sets it."
        )
    return "" if found is None else _NUMBERS.sub(r"\1", found[0])


def of_kubernetes(environ: Mapping[str, str]) -> Placement | None:
    """Read the variables of a pod of an indexed job.

    Kubernetes gives a pod its index only. The pod template must set the number of pods, as
    `DING_LITE_NUM_NODES` (without it the pods are separate jobs), and the host name of pod 0, as
    `MASTER_ADDR`, since it contains the name of the headless service.
    """
    node_id = number(environ, "JOB_COMPLETION_INDEX")
    num_nodes = number(environ, "DING_LITE_NUM_NODES")
    if node_id is None or num_nodes is None:
        return None
    pod, ending, host = environ.get("HOSTNAME", ""), f"-{node_id}", master(environ)
    job = pod.removesuffix(ending) if pod.endswith(ending) else ""
    return Placement(
        launcher="kubernetes",
        node_id=node_id,
        num_nodes=num_nodes,
        # With `hostNetwork` HOSTNAME is a machine, some of which may end like an index.
        job=host or job or "without a name",
        on_one_machine=names_this_machine(host),
        host=host,
        how_to_tell=(
            f"Set MASTER_ADDR in the pod template to the name of pod 0: {job or 'JOB'}-0.SERVICE, "
            f"where SERVICE is the headless service that is the `subdomain` of the pods."
        ),
    )


LAUNCHERS = (of_torchrun, of_mpi, of_slurm, of_kubernetes)
"""Launchers from the innermost to the outermost: srun may start mpirun or torchrun, and a pod any
of them."""


def detect(environ: Mapping[str, str]) -> Placement | None:
    """Return the placement by the innermost launcher; None without one or with one process."""
    found = (of_one(environ) for of_one in LAUNCHERS)
    place = next((place for place in found if place is not None), None)
    return None if place is None or place.num_nodes == 1 else place


def placement_of(settings: Settings, environ: Mapping[str, str]) -> Placement | None:
    """Return the placement by a launcher, unless a node's place, an engine or an address is set."""
    is_whole = settings.node_id is not None and settings.num_nodes is not None
    if is_whole or settings.engine is not None or settings.attach_to:
        return None
    place = detect(environ)
    if place is None:
        return None
    for variable, ours, found in (
        ("DING_LITE_NUM_NODES", settings.num_nodes, place.num_nodes),
        ("DING_LITE_NODE_ID", settings.node_id, place.node_id),
    ):
        if ours not in (None, found):
            raise ConfigError(
                f"{variable} is {ours}, but {place.launcher} has started this process as node "
                f"{place.node_id} of {place.num_nodes}. Unset it, or set both DING_LITE_NUM_NODES "
                f"and DING_LITE_NODE_ID, and {place.launcher} is not asked."
            )
    return place


def node_of_process(settings: Settings, environ: Mapping[str, str]) -> int | None:
    """Return the node of this process; None unless each node of a job was started by itself."""
    place = placement_of(settings, environ)
    return settings.node_id if place is None else place.node_id


# -- variables -----------------------------------------------------------------------------


def number(environ: Mapping[str, str], name: str) -> int | None:
    """Return a variable as a whole number; None if it is not set."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigError(
            f"{name} is {text!r}; a whole number was expected there, from the launcher that sets "
            f"it. Unset it if no launcher has started this process."
        )
    return int(text)


def master(environ: Mapping[str, str]) -> str:
    """Return the host of node 0 from `MASTER_ADDR`; "" if it is not set."""
    host = environ.get("MASTER_ADDR", "").strip()
    if "/" in host or (":" in host and _ip(host) is None):
        raise ConfigError(
            f"MASTER_ADDR is {host!r}; a host name or an IP address was expected, without a port "
            f"or brackets, such as 10.0.0.7 or fd00::7."
        )
    return host


def names_this_machine(host: str) -> bool:
    """Tell whether a host is a literal name of the loopback interface; no DNS lookup."""
    found = _ip(host)
    return host == "localhost" or (found is not None and found.is_loopback)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None

"""Detection of mpirun and mpiexec."""

from __future__ import annotations

from ding_lite.parallel.launch.environment.mpi import detect
from tests.parallel.launch.environment.environs import MPICH, OPEN_MPI, SLURM


def test_open_mpi_provides_rank_size_and_job() -> None:
    place = detect(OPEN_MPI)
    assert place is not None
    assert (place.launcher, place.node_id, place.num_nodes) == ("mpirun", 1, 4)
    assert (place.on_one_machine, place.job) == (True, "prterun-gpu08-4711@1")
    older = {**OPEN_MPI, "PMIX_NAMESPACE": "", "OMPI_MCA_ess_base_jobid": "338447"}
    named = detect(older)
    assert named is not None
    assert named.job == "338447"


def test_the_host_of_node_0_on_several_machines_is_left_to_the_user() -> None:
    apart = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    place = detect(apart)
    assert place is not None
    assert (place.on_one_machine, place.hosts) == (False, {})
    assert "mpirun -x MASTER_ADDR=" in place.how_to_tell
    told = detect({**apart, "MASTER_ADDR": "gpu08"})
    assert told is not None
    assert told.hosts == {0: "gpu08"}


def test_mpich_is_detected() -> None:
    place = detect(MPICH)
    assert place is not None
    assert (place.node_id, place.num_nodes, place.on_one_machine) == (2, 5, False)
    assert place.hosts == {0: "gpu08"}


def test_mpiexec_within_a_slurm_step_takes_precedence() -> None:
    one_proxy_a_machine = {**SLURM, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
    place = detect({**one_proxy_a_machine, **MPICH})
    assert place is not None
    assert (place.node_id, place.num_nodes) == (2, 5)
    assert detect({**SLURM, **MPICH}) is None  # srun has started MPICH directly


def test_incomplete_variables_are_ignored() -> None:
    assert detect({"OMPI_COMM_WORLD_RANK": "1"}) is None
    assert detect({"PMI_SIZE": "2"}) is None

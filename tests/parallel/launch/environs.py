"""Environment variables recorded in processes of each launcher."""

from __future__ import annotations


def recorded(text: str) -> dict[str, str]:
    return dict(variable.split("=") for variable in text.split())


TORCHRUN = recorded("""
    RANK=1 LOCAL_RANK=1 GROUP_RANK=0 WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 GROUP_WORLD_SIZE=1
    ROLE_NAME=default MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
    TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_USE_AGENT_STORE=True
""")
"""One machine, three processes; as torch 2.13 sets them."""

KUBEFLOW = recorded("""
    RANK=1 WORLD_SIZE=3 MASTER_ADDR=train-master-0 MASTER_PORT=23456 PYTHONUNBUFFERED=1
""")
"""A worker of a PyTorchJob of three pods, each with one process."""

DEEPSPEED = recorded("""
    RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_SIZE=2 CROSS_RANK=0 CROSS_SIZE=1
    MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
""")
"""`deepspeed --num_gpus 2` on one machine."""

OPEN_MPI = recorded("""
    OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1
    OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_NODE_RANK=1 OMPI_UNIVERSE_SIZE=4
    PMIX_NAMESPACE=prterun-gpu08-4711@1 PMIX_RANK=1
""")
"""One machine, four processes."""

MPICH = recorded("""
    PMI_RANK=2 PMI_SIZE=5 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=3 MASTER_ADDR=gpu08
""")
"""Several machines, five processes; Intel MPI sets the same."""

SLURM = recorded("""
    SLURM_JOB_ID=1808417 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=1
    SLURM_NTASKS=5 SLURM_STEP_NUM_TASKS=5 SLURM_STEP_NUM_NODES=3 SLURM_STEP_NODELIST=gpu[08-09,12]
    SLURM_STEP_TASKS_PER_NODE=2(x2),1 SLURM_JOB_NODELIST=gpu[08-09,12] SLURMD_NODENAME=gpu09
""")
"""`srun -N 3 -n 5`."""

SLURM_BATCH = recorded("""
    SLURM_JOB_ID=1808417 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=5
    SLURM_JOB_NODELIST=gpu[08-09,12] SLURM_TASKS_PER_NODE=2(x2),1 SLURMD_NODENAME=gpu08
""")
"""A batch script for the same five tasks, before it calls srun."""

SLURM_SHELL = SLURM_BATCH | recorded("""
    SLURM_PTY_PORT=34889 SLURM_STEP_ID=4294967290 SLURM_STEP_NODELIST=gpu08
    SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1
""")
"""A shell of salloc on the first of the machines."""

KUBERNETES = recorded("""
    JOB_COMPLETION_INDEX=1 HOSTNAME=train-1 KUBERNETES_SERVICE_HOST=10.96.0.1
    DING_LITE_NUM_NODES=3 MASTER_ADDR=train-0.train-pods
""")
"""A pod of an indexed job of three."""

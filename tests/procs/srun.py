"""Start the tasks of a job step as srun does on one machine; stands where SLURM is not installed.

It takes the number of tasks from a variable that sbatch sets for a script, and gives each task
those of srun's variables that the package reads. It knows no option but the one below.
"""

import os
import socket
import subprocess
import sys


def main() -> int:
    """Run the command that follows the options as often as there are tasks."""
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    if options != ["--kill-on-bad-exit=1"]:
        sys.exit(f"srun: these options are none that this srun knows: {options}")
    command = sys.argv[1 + len(options) :]
    count = int(os.environ["SLURM_NTASKS"])
    step = {
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": f"{count}",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NODELIST": socket.gethostname(),
        "SLURM_NODEID": "0",
    }
    tasks = [
        subprocess.Popen(
            command,
            env={**os.environ, **step, "SLURM_PROCID": f"{rank}", "SLURM_LOCALID": f"{rank}"},
        )
        for rank in range(count)
    ]
    return max(task.wait() for task in tasks)


if __name__ == "__main__":
    sys.exit(main())

"""One of two processes waits for the other, which does not come."""

import os
import subprocess
import sys
import threading

import torch

from ding_lite.distributed import Processes
from tests.programs.given import given, say


def main():
    processes = Processes(timeout=given.timeout)
    say("up", processes.rank, os.getpid())
    for k in range(3):
        processes.gather(f"operation {k}", [k])
    if processes.rank == 1:
        say("waiting")
        threading.Event().wait()
    processes.mean("weights", [torch.ones(5)])


if __name__ == "__main__" and "RANK" in os.environ:
    main()
elif __name__ == "__main__":
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    known = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env=dict(known, RANK=r, LOCAL_RANK=r))
        for r in "01"
    ]
    say("rank 0 ended with", ranks[0].wait())
    ranks[1].kill()
    say("rank 1 ended with", ranks[1].wait())

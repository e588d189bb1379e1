"""One of two processes waits for the other, which does not come."""

import threading

import torch

from ding_lite.distributed import Processes
from tests.programs.given import say

processes = Processes(timeout=60.0)
for k in range(3):
    processes.gather(f"operation {k}", [k])
if processes.rank == 1:
    say("elsewhere")
    threading.Event().wait()
processes.mean("weights", [torch.ones(5)])

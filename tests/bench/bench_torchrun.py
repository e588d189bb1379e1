"""torchrun: from the kill of a rank to the whole job training again from its checkpoint.

Learners of one policy, one gradient an update; rank 1 is killed behind update 25, torchrun ends
the others and starts all again, and the clock stops at the first update of the last of them. The
baseline is a plain program of PyTorch's: the same networks under DistributedDataParallel, saved
by `torch.save`, with the variable without which its processes do not meet again after a kill.
"""

from __future__ import annotations

from tests.bench.harness import Row, row_from_samples, run_program
from tests.procs.programs import PROGRAMS

REPEATS = 5

PLAIN = """
import gc, os, signal, sys, time
import torch
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT, EVERY, KILLED_AT, LAST = Path("checkpoint"), 10, 25, 40

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def main():
    torch.set_num_threads(1)
    num_restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    sizes = [4, 128, 128, 2]
    layers = [torch.nn.Linear(*pair) for pair in zip(sizes, sizes[1:])]
    network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    optimizer, done = torch.optim.Adam(network.parameters()), 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["done"]
    model = DistributedDataParallel(network)
    for update in range(done + 1, LAST + 1):
        loss = model(torch.randn(64, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update == done + 1:
            say("training", num_restarts, rank, update, time.monotonic())
        if num_restarts == 0 and update == KILLED_AT and rank == 1:
            say("killed", time.monotonic())
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0 and update % EVERY == 0:
            parts = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**parts, "done": update}, "draft")
            os.rename("draft", CHECKPOINT)
    torch.distributed.destroy_process_group()

if __name__ == "__main__":
    main()
    gc.collect()  # the model holds the group, whose threads would need Python while it ends
"""


def run() -> list[Row]:
    """Kill a rank of two and of four, ours and the plain program's in turn."""
    return [row for num_ranks in (2, 4) for row in of_ranks(num_ranks)]


def of_ranks(num_ranks: int) -> list[Row]:
    ours, theirs = [], []
    for _ in range(REPEATS):
        theirs.append(recovery_s(PLAIN, num_ranks, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))
        ours.append(recovery_s((PROGRAMS / "gang.py").read_text(), num_ranks))
    name = f"torchrun with {num_ranks} ranks, kill -9 of one to all of them training again"
    return [
        row_from_samples(name, ours, unit="s", target=15.0, tracked=True),
        row_from_samples(
            f"{name}, beside plain PyTorch",
            ours,
            baseline=theirs,
            baseline_name="DistributedDataParallel and torch.save",
            unit="s",
        ),
    ]


def recovery_s(source: str, num_ranks: int, **environ: str) -> float:
    """Run a program under torchrun; return the seconds from the kill to the last first update."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    launcher = [*torchrun, "--nproc-per-node", str(num_ranks)]
    output = run_program(source, launcher=launcher, **environ)
    words = [line.split() for line in output.splitlines()]
    [killed] = [float(line[1]) for line in words if line[:1] == ["killed"]]
    again = [float(line[4]) for line in words if line[:2] == ["training", "1"]]
    if len(again) != num_ranks:
        raise RuntimeError(f"{len(again)} of {num_ranks} ranks were training again.")
    return max(again) - killed

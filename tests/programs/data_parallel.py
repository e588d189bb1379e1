"""Two learners take the steps of one, and average small and large tensors."""

import numpy as np
import torch

from ding_lite import Parallel
from ding_lite.distributed import World
from ding_lite.rl import DQN, DQNConfig, Transitions
from tests.programs.batches import CONFIG, SPEC, batch_of
from tests.programs.given import given


def main():
    learners = World.current().group("node.*")
    policy = DQN(SPEC, DQNConfig(seed=learners.rank, **CONFIG))
    policy.data_parallel(learners)
    for k in range(5):
        policy.learn(batch_of(10 * k + learners.rank))
    learners.barrier()
    return policy.weights()


def average():
    learners = World.current().group("node.*")
    learners.process_group()  # the program's own
    means = []
    for length, take_mean in ((3, learners.averager()), (70_000, learners.averager())):
        mine = torch.arange(length, dtype=torch.float32) * 10**learners.rank
        take_mean(mine)
        means.append(mine[-1].item() / (length - 1))
    learners.barrier()
    return means


if __name__ == "__main__" and given.averages:
    print(Parallel.runner(2)(average))
elif __name__ == "__main__":
    first, second = Parallel.runner(2)(main)
    # Two halves of a batch, of the same size, have the mean of their gradients as its gradient.
    alone = DQN(SPEC, DQNConfig(seed=0, **CONFIG))
    for k in range(5):
        halves = [batch_of(10 * k), batch_of(10 * k + 1)]
        names = Transitions.__dataclass_fields__
        alone.learn(
            Transitions(
                **{name: np.concatenate([getattr(half, name) for half in halves]) for name in names}
            )
        )
    print(
        all((first[name] == second[name]).all() for name in first),
        all(np.allclose(first[k], w, rtol=1e-4, atol=1e-6) for k, w in alone.weights().items()),
    )

"""Learners take the steps of one, average tensors, or are a group of torch.distributed."""

import numpy as np
import pytest
import torch.distributed
from torch import nn

from ding_lite import Parallel
from ding_lite.distributed import World
from ding_lite.errors import ConfigError
from ding_lite.rl import DQN, DQNConfig, TorchPolicy, TorchPolicyConfig, Transitions
from tests.programs.batches import CONFIG, SPEC, batch_of
from tests.programs.given import given


class Scaled(TorchPolicy[TorchPolicyConfig]):
    """Fits rewards, times a scale that an optimiser of its own learns in two of three updates."""

    def build(self):
        self.net = nn.Linear(4, 1)
        self.scale = torch.ones((), requires_grad=True)
        self.unused = torch.ones(2, requires_grad=True)
        self.own = torch.optim.Adam([self.scale, self.unused], lr=0.1, weight_decay=0.1)

    def choose(self, obs, explore):
        return torch.zeros(len(obs), dtype=torch.int64)

    def loss(self, batch):
        self.own.zero_grad()
        if self.train_iter % 3:
            (self.scale * batch.obs[:, 0] - batch.reward).square().mean().backward()
        self.own.step()
        return (self.net(batch.obs)[:, 0] - self.scale.detach() * batch.reward).square(), {}


def make(seed=0):
    if given.main == "learn":
        return DQN(SPEC, DQNConfig(seed=seed, **CONFIG))
    return Scaled(SPEC, TorchPolicyConfig(seed=seed))


def weights_of(policy):
    further = {"scale": policy.scale, "unused": policy.unused} if given.main == "further" else {}
    return policy.weights() | {name: each.detach().clone() for name, each in further.items()}


def learn():
    learners = World.current().group("node.*")
    policy = make(learners.rank)
    policy.data_parallel(learners)
    for k in range(5):
        policy.learn(batch_of(10 * k + learners.rank))
    learners.barrier()
    return weights_of(policy)


further = learn


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


def mean():
    world = World.current()
    learners = world.group("learner")
    if not learners.is_member:
        return None
    group = learners.process_group()
    gradient = torch.full((3,), float(world.node_id))
    torch.distributed.all_reduce(gradient, group=group)
    with pytest.raises(ConfigError, match="already in a default group"):
        learners.process_group()
    learners.barrier()
    torch.distributed.destroy_process_group()
    return learners.rank, (gradient / len(learners)).tolist()


def one_waits():
    both = World.current().group("node.*")
    group = both.process_group(timeout=1.0)
    gave_up = False
    if both.rank == 0:
        try:
            torch.distributed.all_reduce(torch.zeros(3), group=group)
        except RuntimeError:
            gave_up = True
    both.barrier()
    torch.distributed.destroy_process_group()
    return gave_up


def compare(first, second):
    # Two halves of a batch, of the same size, have the mean of their gradients as its gradient.
    alone = make()
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
        all(np.allclose(first[k], w, rtol=1e-4, atol=1e-6) for k, w in weights_of(alone).items()),
    )


if __name__ == "__main__":
    roles = ["collector", "learner", "learner"] if given.main == "mean" else ["learner", "learner"]
    results = Parallel.runner(len(roles), roles=roles)(globals()[given.main])
    if given.main in ("learn", "further"):
        compare(*results)
    else:
        print(results)

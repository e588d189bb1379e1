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


def random_network(spec):
    return nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ELU(), nn.Dropout(0.1), nn.Linear(16, 2)
    )


def of_a_user(seed):
    config = DQNConfig(seed=seed, n_step=1, batch_size=16)
    return DQN(SPEC, config, network=random_network, optimizer=torch.optim.RMSprop)


POLICIES = {
    "built-in": lambda seed: DQN(SPEC, DQNConfig(seed=seed, **CONFIG)),
    "with an optimiser more": lambda seed: Scaled(SPEC, TorchPolicyConfig(seed=seed)),
    "with a user's network": of_a_user,
}


def parameters_of(policy):
    """Return what is learned: all but the running means, which each learner has of its own."""
    further = {"scale": policy.scale, "unused": policy.unused} if hasattr(policy, "own") else {}
    learned = dict(policy.module.named_parameters()) | further
    return {name: tensor.detach().clone() for name, tensor in learned.items()}


def learn(learners, make):
    policy = make(learners.rank)
    policy.data_parallel(learners)
    for k in range(5):
        policy.learn(batch_of(10 * k + learners.rank))
    return parameters_of(policy)


def average(learners):
    means = []
    for length, take_mean in ((3, learners.averager()), (70_000, learners.averager())):
        mine = torch.arange(length, dtype=torch.float32) * 10**learners.rank
        take_mean(mine)
        means.append(mine[-1].item() / (length - 1))
    return means


def waits_in_vain(learners):
    group = learners.process_group(timeout=1.0)
    if learners.rank == 0:
        with pytest.raises(RuntimeError):
            torch.distributed.all_reduce(torch.zeros(3), group=group)
    learners.barrier()
    torch.distributed.destroy_process_group()
    return True


def main():
    learners = World.current().group("learner")
    if not learners.is_member:
        return None
    found = {name: learn(learners, make) for name, make in POLICIES.items()}
    group = learners.process_group()
    gradient = torch.full((3,), float(World.current().node_id))
    torch.distributed.all_reduce(gradient, group=group)
    found["sum"] = gradient.tolist()
    with pytest.raises(ConfigError, match="already in a default group"):
        learners.process_group()
    found["means"] = average(learners)
    learners.barrier()
    torch.distributed.destroy_process_group()
    found["waits in vain"] = waits_in_vain(learners)
    return found


def alone(make):
    """Learn of both batches: of equal halves, the mean of gradients is that of the whole."""
    policy = make(0)
    for k in range(5):
        halves = [batch_of(10 * k), batch_of(10 * k + 1)]
        names = Transitions.__dataclass_fields__
        policy.learn(
            Transitions(
                **{name: np.concatenate([getattr(half, name) for half in halves]) for name in names}
            )
        )
    return parameters_of(policy)


if __name__ == "__main__":
    nobody, first, second = Parallel.runner(3, roles=["collector", "learner", "learner"])(main)
    for name, make in POLICIES.items():
        ours, theirs = first.pop(name), second.pop(name)
        print(name, "equal:", all((ours[each] == theirs[each]).all() for each in ours))
        if make is not of_a_user:  # its units drop out at random
            close = (np.allclose(ours[k], w, 1e-4, 1e-6) for k, w in alone(make).items())
            print(name, "as of one:", all(close))
    print(nobody, first, second, sep="\n")

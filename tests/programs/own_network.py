"""A network of a user's: published with its buffers, or learned by two nodes together."""

import torch
from torch import nn

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import World
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs
from tests.programs.given import given


def network(spec):
    return nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ELU(), nn.Dropout(0.1), nn.Linear(16, 2)
    )


def make(seed):
    envs = make_envs("CartPole-v1", 4, seed=seed)
    config = DQNConfig(seed=seed, n_step=1, batch_size=16)
    return envs, DQN(envs.spec, config, network=network, optimizer=torch.optim.RMSprop)


def publish():
    envs, policy = make(World.current().node_seed)
    replay, seen = ReplayBuffer(envs.spec, capacity=1_000), {}
    with Task() as task:

        def keep(ctx):
            seen[ctx.weights_version] = policy.weights()

        collector, learner = task.at("collector"), task.at("learner")
        collector.use(mw.fetch_weights(policy, max_staleness=1)).use(keep)
        collector.use(mw.collect(policy, envs, steps=4))
        collector.use(mw.send("transitions", to="learner", in_flight=2))
        learner.use(mw.receive("transitions"))
        learner.use(mw.add_to(replay))
        learner.use(mw.train(policy, replay))
        learner.use(mw.publish_weights(policy)).use(keep)
        task.run(max_step=40)
    return {version: {n: t.numpy() for n, t in w.items()} for version, w in seen.items()}


def learn_together():
    learners = World.current().group("node.*")
    envs, policy = make(learners.rank)
    policy.data_parallel(learners)
    replay = ReplayBuffer(envs.spec, capacity=1_000)
    with Task() as task:
        task.use(mw.collect(policy, envs, steps=16))
        task.use(mw.add_to(replay))
        task.use(mw.train(policy, replay))
        task.run(max_step=10)
    learners.barrier()
    parameters = dict(policy.module.named_parameters())
    return {name: tensor.detach().numpy() for name, tensor in parameters.items()}, policy.train_iter


if __name__ == "__main__":
    if given.what == "publish":
        learner, *collectors = Parallel.runner(3, "star", roles=["learner"] + 2 * ["collector"])(
            publish
        )
        shared = [(learner[v], found[v]) for found in collectors for v in found if v in learner]
        print(
            len(shared) >= 10,
            all((ours[n] == theirs[n]).all() for ours, theirs in shared for n in ours),
            max(int(theirs["1.num_batches_tracked"]) for _, theirs in shared) > 3,
        )
    else:
        (first, updates), (second, _) = Parallel.runner(2)(learn_together)
        print(updates, all((first[name] == second[name]).all() for name in first))

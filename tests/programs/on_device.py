"""The topologies of the seeds, with all policies on one device."""

import numpy as np
import torch

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import GradientServer, ShardedReplay, World
from ding_lite.rl import A2C, DQN, IMPALA, make_envs
from tests.programs.given import given

ROLES = {
    "a3c": ["server", "agent"],
    "impala": ["learner", "collector"],
    "apex": ["learner", "learner", "collector"],
}


def a3c():
    world = World.current()
    envs = make_envs("CartPole-v1", num_envs=4, seed=world.node_seed)
    policy = A2C(envs.spec, device=given.device)
    server = GradientServer(world.group("server"), policy)
    with Task() as task:
        agent, owner = task.at("agent"), task.at("server")
        agent.use(mw.pull_weights(policy, server)).use(mw.collect(policy, envs, unroll=8))
        agent.use(mw.push_gradients(policy, server))
        owner.use(mw.serve_gradients(policy, server, updates=5)).use(mw.stop_at(train_iter=40))
        task.run(max_step=100_000)
    return found(policy, task.ctx)


def impala():
    envs = make_envs("CartPole-v1", num_envs=4, seed=World.current().node_seed)
    policy = IMPALA(envs.spec, device=given.device)
    with Task() as task:
        collector, learner = task.at("collector"), task.at("learner")
        collector.use(mw.fetch_weights(policy)).use(mw.collect(policy, envs, unroll=16))
        collector.use(mw.send("trajectories", to="learner", in_flight=1))
        learner.use(mw.receive("trajectories")).use(mw.train(policy))
        learner.use(mw.publish_weights(policy)).use(mw.stop_at(train_iter=40))
        task.run(max_step=100_000)
    return found(policy, task.ctx)


def apex():
    world = World.current()
    collectors, learners = world.group("collector"), world.group("learner")
    envs = make_envs("CartPole-v1", num_envs=4, seed=world.node_seed)
    policy = DQN(envs.spec, device=given.device)
    replay = ShardedReplay(collectors, envs.spec, shard_capacity=10_000)
    if learners.is_member:
        policy.data_parallel(learners)
    with Task() as task:
        collector, learner, lead = task.at("collector"), task.at("learner"), task.at("learner.0")
        collector.use(mw.fetch_weights(policy, every=10))
        collector.use(mw.collect(policy, envs, steps=8)).use(mw.add_to(replay))
        learner.use(mw.wait_for(replay, size=200)).use(mw.train(policy, replay, batch_size=32))
        learner.use(mw.update_priorities(replay))
        lead.use(mw.publish_weights(policy, every=5)).use(mw.stop_at(train_iter=40))
        task.run(max_step=100_000)
    return found(policy, task.ctx)


def found(policy, ctx):
    weights = np.concatenate([weight.cpu().numpy().ravel() for weight in policy.weights().values()])
    return str(policy.device), ctx.get("train_iter", 0), bool(np.isfinite(weights).all())


if __name__ == "__main__":
    torch.zeros(1, device=given.device)  # as in a program that has used the device before
    roles = ROLES[given.kind]
    main = {"a3c": a3c, "impala": impala, "apex": apex}[given.kind]
    for node in Parallel.runner(len(roles), "mesh", roles=roles)(main):
        print(*node)

"""Ape-X, A3C or large items, where one node is a hundred times slower than the others."""

import numpy as np

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import GradientServer, ShardedReplay, World
from ding_lite.rl import A2C, DQN, A2CConfig, DQNConfig, make_envs
from tests.programs.given import given, memory, pause

SLOW, FAST_S, SLOW_S = given.slow, 0.0005, 0.05
NUM_ITEMS = 40


def work(task):
    seconds = SLOW_S if task.match_labels(SLOW) else FAST_S
    return lambda ctx: pause(task, seconds)


def counts(task, before):
    megabytes = round((memory("RssAnon") - before) / 2**20)
    return megabytes, task.ctx.get("env_step", 0), task.ctx.get("train_iter", 0)


def apex():
    world = World.current()
    collectors = world.group("collector")
    envs = make_envs("CartPole-v1", 8, seed=world.node_seed)
    policy = DQN(envs.spec, DQNConfig(hidden=(8,), batch_size=16))
    replay = ShardedReplay(collectors, envs.spec, shard_capacity=2_000)
    with Task() as task:
        collector, learner = task.at("collector"), task.at("learner")
        collector.use(work(task)).use(mw.fetch_weights(policy))
        collector.use(mw.rate_limit(env_steps_per_update=8.0, ahead=100, at_first=100))
        collector.use(mw.collect(policy, envs, steps=8, epsilon=lambda _: 1.0))
        collector.use(mw.add_to(replay))
        learner.use(mw.wait_for(replay, size=100)).use(work(task))
        learner.use(mw.train(policy, replay)).use(mw.update_priorities(replay))
        learner.use(mw.publish_weights(policy)).use(mw.stop_at(train_iter=25))
        before = memory("RssAnon")
        task.run()
    return counts(task, before)


def a3c():
    world = World.current()
    envs = make_envs("CartPole-v1", 2, seed=world.node_seed)
    policy = A2C(envs.spec, A2CConfig(hidden=(8,)))
    server = GradientServer(world.group("learner"), policy, max_staleness=20)
    with Task() as task:
        agent, owner = task.at("collector"), task.at("learner")
        agent.use(mw.pull_weights(policy, server)).use(mw.collect(policy, envs, unroll=4))
        agent.use(work(task)).use(mw.push_gradients(policy, server))
        owner.use(mw.serve_gradients(policy, server, updates=1)).use(work(task))
        owner.use(mw.stop_at(train_iter=25))
        before = memory("RssAnon")
        task.run()
    return counts(task, before)


def items():
    envs = make_envs("CartPole-v1", 1)
    policy, behind, seen = DQN(envs.spec, DQNConfig(hidden=(8,))), [], [0]
    with Task() as task:

        def collect(ctx):
            ctx.trajectories = [np.full(2**18, ctx.total_step, np.float32)]  # a megabyte

        def count(ctx):
            seen[0] += len(ctx.trajectories)
            ctx.train_iter = ctx.total_step + 1
            ctx.finish = seen[0] >= NUM_ITEMS

        collector, learner = task.at("collector"), task.at("learner")
        collector.use(mw.fetch_weights(policy, max_staleness=2)).use(work(task)).use(collect)
        collector.use(lambda ctx: behind.append(ctx.metrics.get("weights_behind", 0)))
        collector.use(mw.send("trajectories", to="learner", in_flight=2))
        learner.use(mw.receive("trajectories")).use(work(task)).use(count)
        learner.use(mw.publish_weights(policy))
        before = memory("VmHWM")
        task.run()
    return round((memory("VmHWM") - before) / 2**20), max(behind, default=0), seen[0]


if __name__ == "__main__":
    topology = "star" if given.main == "items" else "mesh"
    runner = Parallel.runner(3, topology, roles=["learner", "collector", "collector"])
    print(runner(globals()[given.main]))

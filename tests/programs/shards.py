"""A learner of the shards of two collectors, one node of which is killed."""

import os
from pathlib import Path

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import ShardedReplay, World
from ding_lite.rl import DQN, DQNConfig, epsilon_ladder, make_envs
from tests.programs.given import say


def main():
    world = World.current()
    collectors = world.group("collector")
    envs = make_envs("CartPole-v1", 4, seed=world.node_seed)
    policy = DQN(envs.spec, DQNConfig(hidden=(8,)))
    replay = ShardedReplay(collectors, envs.spec, shard_capacity=2_000)
    shards = set()
    with Task() as task:

        def look(ctx):
            if "train_data" not in ctx:
                return
            assert len(ctx.train_data) == 32
            if ctx.train_iter == 20:
                say("trained")
            if "lost" in shards and not replay.lost:
                shards.clear()
                shards.add("back")
                say("back")
            if replay.lost and not shards:
                shards.add("lost")
                say("lost", *replay.lost)
            is_back = "back" in shards and len({*ctx.train_data.shard.tolist()}) == 2
            ctx.finish = is_back or (ctx.train_iter > 100 and Path("go").exists())

        collector, learner = task.at("collector"), task.at("learner")
        collector.use(mw.fetch_weights(policy))
        collector.use(mw.collect(policy, envs, steps=32, epsilon=epsilon_ladder(collectors)))
        collector.use(mw.add_to(replay))
        learner.use(mw.wait_for(replay, size=200))
        learner.use(mw.train(policy, replay, batch_size=32))
        learner.use(mw.update_priorities(replay)).use(mw.publish_weights(policy)).use(look)
        say("up", world.node_id, os.getpid())
        task.run()
    return replay.num_passed_on > 20 * 32, replay.lost


if __name__ == "__main__":
    roles = ["learner", "collector", "collector"]
    runner = Parallel.runner(3, roles=roles, auto_recover=True)
    print(runner(main)[0])

"""Ape-X as users write it: a shard each collector, two learners that average gradients."""

import os

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import ShardedReplay, World
from ding_lite.rl import DQN, DQNConfig, epsilon_ladder, linear, make_envs
from examples.own.qr_dqn import QRDQN
from tests.programs.given import given, say

POLICIES = {"DQN": lambda spec: DQN(spec, DQNConfig(double=True, n_step=3)), "QRDQN": QRDQN}


def main():
    world = World.current()
    collectors, learners = world.group("collector"), world.group("learner")
    envs = make_envs("CartPole-v1", num_envs=4, seed=world.node_seed)
    policy = POLICIES[given.policy](envs.spec)
    replay = ShardedReplay(collectors, envs.spec, shard_capacity=100_000, alpha=0.6)
    if learners.is_member:
        policy.data_parallel(learners)  # gradients are averaged over the two learners

    explore = {"epsilon": epsilon_ladder(collectors)} if given.policy == "DQN" else {}
    with Task() as task:
        collector, learner, lead = task.at("collector"), task.at("learner"), task.at("learner.0")

        collector.use(mw.fetch_weights(policy, every=10))
        collector.use(mw.collect(policy, envs, steps=32, **explore))
        collector.use(mw.add_to(replay))  # local: no message, no remote lock

        learner.use(mw.wait_for(replay, size=1_000))
        learner.use(
            mw.train(
                policy, replay, batch_size=given.batch_size, beta=linear(0.4, 1.0, steps=50_000)
            )
        )
        learner.use(mw.update_priorities(replay))  # slots overwritten meanwhile are skipped

        lead.use(mw.publish_weights(policy, every=10))
        lead.use(mw.log(every=100))
        seen = set()

        def look(ctx):
            if ctx.get("train_iter") == 50:
                say("trained")
            if replay.lost and not seen:
                seen.add("lost")
                say("lost", *replay.lost)
            ctx.finish = "lost" in seen and not replay.lost

        lead.use(look if given.ends_at is None else mw.stop_at(train_iter=given.ends_at))
        say("up", world.node_id, os.getpid())
        task.run(max_step=100_000)
    digest = sum(float(weight.double().sum()) for weight in policy.weights().values())
    found = task.ctx.get("train_iter"), digest, replay.num_passed_on, replay.lost
    return *found, task.ctx.get("weights_version")


if __name__ == "__main__":
    roles = 2 * ["learner"] + 2 * ["collector"]
    print(Parallel.runner(4, "mesh", roles=roles, **given.runner)(main))

"""A learner and collectors, one of which is a hundred times slower."""

import numpy as np

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.rl import DQN, DQNConfig, make_envs
from tests.programs.given import given, memory, pause

SLOW, FAST_S, SLOW_S = given.slow, 0.0005, 0.05
NUM_ITEMS = 40


def main():
    envs = make_envs("CartPole-v1", 1)
    policy, behind, seen = DQN(envs.spec, DQNConfig(hidden=(8,))), [], [0]
    with Task() as task:
        pause_s = SLOW_S if task.match_labels(SLOW) else FAST_S

        def work(ctx):
            pause(task, pause_s)

        def collect(ctx):
            ctx.trajectories = [np.full(2**18, ctx.total_step, np.float32)]  # a megabyte

        def count(ctx):
            seen[0] += len(ctx.trajectories)
            ctx.train_iter = ctx.total_step + 1
            ctx.finish = seen[0] >= NUM_ITEMS

        collector, learner = task.at("collector"), task.at("learner")
        collector.use(mw.fetch_weights(policy, max_staleness=2)).use(work).use(collect)
        collector.use(lambda ctx: behind.append(ctx.metrics.get("weights_behind", 0)))
        collector.use(mw.send("trajectories", to="learner", in_flight=2))
        learner.use(mw.receive("trajectories")).use(work).use(count)
        learner.use(mw.publish_weights(policy))
        before = memory("VmHWM")
        task.run()
    return round((memory("VmHWM") - before) / 2**20), max(behind, default=0), seen[0]


if __name__ == "__main__":
    print(Parallel.runner(3, "star", roles=["learner", "collector", "collector"])(main))

import time
from itertools import pairwise
from statistics import median

from measuring import tell

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import World
from ding_lite.rl import IMPALA, IMPALAConfig, make_envs


def main():
    seed = World.current().node_seed
    envs = make_envs("CartPole-v1", num_envs=16, seed=seed)
    policy = IMPALA(envs.spec, IMPALAConfig(hidden=(64, 64), seed=seed))
    marks = []

    def count(ctx):
        now = time.perf_counter()
        if not marks or now >= marks[-1][0] + 2.0:
            marks.append((now, ctx.get("env_step", 0)))
        ctx.finish = len(marks) == 7

    with Task() as task:
        collector, learner = task.at("collector"), task.at("learner")
        collector.use(mw.fetch_weights(policy, max_staleness=4))
        collector.use(mw.collect(policy, envs, unroll=20))
        collector.use(mw.send("trajectories", to="learner", in_flight=2))
        learner.use(mw.receive("trajectories", at_least=2))
        learner.use(mw.train(policy)).use(mw.publish_weights(policy))
        learner.use(mw.count_collected("collector"))
        learner.use(count)
        task.run()
    return [(done - before) / (t - s) for (s, before), (t, done) in pairwise(marks[1:])]


if __name__ == "__main__":
    rates = Parallel.runner(3, "star", roles=["learner", "collector", "collector"])(main)[0]
    tell("ding_lite", cost=median(rates))

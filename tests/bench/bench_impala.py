"""Env steps a second of two IMPALA collectors while a learner learns.

It is counted by the wall clock, from when the learner has learned for a while, on CartPole-v1:
acting, sending, learning and bringing weights back are all part of it.
"""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import World
from ding_lite.rl import IMPALA, IMPALAConfig, make_envs
from ding_lite.runtime.context import Context
from tests.bench.harness import Row, row_from_samples

NUM_ENVS, UNROLL = 16, 20
WARM_UP_S, NUM_WINDOWS, WINDOW_S = 2.0, 8, 1.0


def run() -> list[Row]:
    """Measure what one env step costs, of both collectors together."""
    roles = ["learner", "collector", "collector"]
    seconds = Parallel.runner(3, "star", roles=roles)(collect_for_a_while)[0]
    return [
        row_from_samples(
            f"IMPALA, 2 collectors of {NUM_ENVS} envs and a learner: one env step",
            seconds,
            unit="us",
        )
    ]


def collect_for_a_while() -> list[float]:
    """Run a node; on the learner return the seconds for each env step, window by window."""
    seed = World.current().node_seed
    envs = make_envs("CartPole-v1", num_envs=NUM_ENVS, seed=seed)
    policy = IMPALA(envs.spec, IMPALAConfig(c_clip=0.95, entropy_coef=0.01, seed=seed))
    marks: list[tuple[float, int]] = []

    def count(ctx: Context) -> None:
        now, env_step = perf_counter(), ctx.get("env_step", 0)
        begin = marks[0][0] + WARM_UP_S if marks else now
        if not marks or now >= begin + WINDOW_S * (len(marks) - 1):
            marks.append((now, env_step))
        ctx.finish = len(marks) == NUM_WINDOWS + 2

    with Task() as task:
        collector, learner = task.at("collector"), task.at("learner")
        collector.use(mw.fetch_weights(policy, max_staleness=4))
        collector.use(mw.collect(policy, envs, unroll=UNROLL))
        collector.use(mw.send("trajectories", to="learner", in_flight=2))
        learner.use(mw.receive("trajectories", at_least=2))
        learner.use(mw.train(policy)).use(mw.publish_weights(policy)).use(
            mw.count_collected("collector")
        )
        learner.use(count)
        task.run()
    windows = pairwise(marks[1:])
    return [(t - s) / max(1, done - before) for (s, before), (t, done) in windows]

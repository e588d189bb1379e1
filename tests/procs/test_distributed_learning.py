"""Collectors and learners in processes of their own: at any pace, and through kill -9."""

from __future__ import annotations

import os
import signal
from ast import literal_eval
from pathlib import Path

import pytest

from tests.procs.programs import Program, run

RATES = """
import numpy as np
from contextlib import suppress
from ding_lite import middleware as mw
from ding_lite.errors import DeadlineExceeded
from ding_lite.rl import DQN, DQNConfig, make_envs

SLOW, FAST_S, SLOW_S = "{slow}", 0.0005, 0.05
NUM_ITEMS = 40

def peak():
    status = open("/proc/self/status").read().split()
    return int(status[status.index("VmHWM:") + 1]) / 1024

def main():
    envs = make_envs("CartPole-v1", 1)
    policy, behind, seen = DQN(envs.spec, DQNConfig(hidden=(8,))), [], [0]
    with Task() as task:
        pause_s = SLOW_S if task.match_labels(SLOW) else FAST_S
        def work(ctx):
            with suppress(DeadlineExceeded):
                task.wait_for("nothing", timeout=pause_s)
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
        before = peak()
        task.run()
    return round(peak() - before), max(behind, default=0), seen[0]

if __name__ == "__main__":
    print(Parallel.runner(3, "star", roles=["learner", "collector", "collector"])(main))
"""


@pytest.mark.deadline(60)
@pytest.mark.parametrize("slow", ["learner", pytest.param("collector", marks=pytest.mark.slow)])
def test_nothing_piles_up_or_hangs_when_one_node_is_a_hundred_times_slower(
    folder: Path, slow: str
) -> None:
    code, said = run(folder, RATES.format(slow=slow))
    assert code == 0, said
    megabytes, behind, seen = zip(*literal_eval(said.splitlines()[-1]), strict=True)
    assert seen[0] >= 40
    assert max(behind) <= 2
    # 40 items are 40 megabytes; under way are 2 of each collector, and copies of them.
    assert max(megabytes) < 30, said


SHARDS = """
import numpy as np
from ding_lite import middleware as mw
from ding_lite.distributed import ShardedReplay, World
from ding_lite.rl import DQN, DQNConfig, epsilon_ladder, make_envs

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
                before = shards.pop()
                shards.add("back")
                say("back")
            if replay.lost and not shards:
                shards.add("lost")
                say("lost", *replay.lost)
            ctx.finish = "back" in shards and len({*ctx.train_data.shard.tolist()}) == 2
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
"""


def test_a_learner_goes_on_without_a_shard_that_is_killed_and_takes_it_up_again(
    folder: Path,
) -> None:
    with Program(folder, SHARDS) as program:
        pids = program.pids(3)
        program.line("trained")
        os.kill(pids[2], signal.SIGKILL)
        assert program.line("lost") == ["lost", "2"]
        code, said = program.end()
        assert code == 0, said
        assert said.splitlines()[-1] == "(True, ())"


def test_the_learner_of_shards_may_be_killed_too(folder: Path) -> None:
    source = SHARDS.replace('ctx.finish = "back"', 'ctx.finish = ctx.train_iter > 100 or "back"')
    with Program(folder, source) as program:
        pids = program.pids(3)
        program.line("trained")
        os.kill(pids[0], signal.SIGKILL)
        assert program.line("up 0")
        program.line("trained")
        code, said = program.end()
        assert code == 0, said
        assert said.splitlines()[-1] == "(True, ())"

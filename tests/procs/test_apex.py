"""Ape-X as users write it: collectors with a shard each, two learners that average gradients."""

from __future__ import annotations

import os
import signal
from ast import literal_eval
from pathlib import Path

import pytest

from tests.procs.programs import Program, run

pytestmark = pytest.mark.deadline(60.0)  # several processes that import PyTorch at a time

APEX = """
from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import ShardedReplay, World
from ding_lite.rl import DQN, DQNConfig, epsilon_ladder, linear, make_envs


def main():
    world = World.current()
    collectors, learners = world.group("collector"), world.group("learner")
    envs = make_envs("CartPole-v1", num_envs=4, seed=world.node_seed)
    policy = DQN(envs.spec, DQNConfig(double=True, n_step=3))
    replay = ShardedReplay(collectors, envs.spec, shard_capacity=100_000, alpha=0.6)
    if learners.is_member:
        policy.data_parallel(learners)  # gradients are averaged over the two learners

    with Task() as task:
        collector, learner, lead = task.at("collector"), task.at("learner"), task.at("learner.0")

        collector.use(mw.fetch_weights(policy, every=10))
        collector.use(mw.collect(policy, envs, steps=32, epsilon=epsilon_ladder(collectors)))
        collector.use(mw.add_to(replay))  # local: no message, no remote lock

        learner.use(mw.wait_for(replay, size=1_000))
        learner.use(mw.train(policy, replay, batch_size=256, beta=linear(0.4, 1.0, steps=50_000)))
        learner.use(mw.update_priorities(replay))  # slots overwritten meanwhile are skipped

        lead.use(mw.publish_weights(policy, every=10))
        lead.use(mw.log(every=100))
        {more}
        say("up", world.node_id, os.getpid())
        task.run(max_step=100_000)
    digest = sum(float(weight.double().sum()) for weight in policy.weights().values())
    return task.ctx.get("train_iter"), digest, replay.num_passed_on, replay.lost


if __name__ == "__main__":
    roles = 2 * ["learner"] + 2 * ["collector"]
    print(Parallel.runner(n_parallel_workers=4, topology="mesh", roles=roles{recover})(main))
"""


def test_two_learners_improve_one_policy_from_the_shards_of_two_collectors(folder: Path) -> None:
    source = APEX.replace("{more}", "lead.use(mw.stop_at(train_iter=100))")
    code, said = run(folder, source.replace("{recover}", ""))
    assert code == 0, said
    first, second, *collectors = literal_eval(said.splitlines()[-1])
    # The other learner may have begun an update more, which it gives up as the first one has left.
    assert first[0] == 100 <= second[0] + 1
    assert first[1] == second[1]
    assert first[2] == 100 * 256
    assert first[3] == second[3] == ()
    assert [trained for trained, *_ in collectors] == [None, None]


def test_two_learners_go_on_while_a_killed_collector_is_restarted(folder: Path) -> None:
    look = """
        seen = set()
        def look(ctx):
            if ctx.get("train_iter") == 50:
                say("trained")
            if replay.lost and not seen:
                seen.add("lost")
                say("lost", *replay.lost)
            ctx.finish = "lost" in seen and not replay.lost
        lead.use(look)"""
    source = APEX.replace("        {more}", look).replace("{recover}", ", auto_recover=True")
    with Program(folder, source) as program:
        pids = program.pids(4)
        program.line("trained")
        os.kill(pids[3], signal.SIGKILL)
        assert program.line("lost") == ["lost", "3"]
        code, said = program.end()
    assert code == 0, said
    first, second, *_ = literal_eval(said.splitlines()[-1])
    assert first[1] == second[1]
    assert first[3] == ()

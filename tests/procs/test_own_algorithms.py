"""Algorithms of a user's own over nodes, as the built-in ones: Ape-X with a sharded replay."""

from __future__ import annotations

from ast import literal_eval
from pathlib import Path

import pytest

from tests.procs.programs import ROOT, run

pytestmark = [pytest.mark.procs, pytest.mark.deadline(60.0)]

APEX = """
sys.path.insert(0, {root!r})
from ding_lite import middleware as mw
from ding_lite.distributed import ShardedReplay, World
from ding_lite.rl import linear, make_envs
from examples.own.{module} import {kind}


def main():
    world = World.current()
    collectors, learners = world.group("collector"), world.group("learner")
    envs = make_envs("CartPole-v1", num_envs=4, seed=world.node_seed)
    policy = {kind}(envs.spec)
    replay = ShardedReplay(collectors, envs.spec, shard_capacity=10_000, alpha=0.6)
    if learners.is_member:
        policy.data_parallel(learners)

    with Task() as task:
        collector, learner, lead = task.at("collector"), task.at("learner"), task.at("learner.0")
        collector.use(mw.fetch_weights(policy))
        collector.use(mw.collect(policy, envs, steps=32))
        collector.use(mw.add_to(replay))
        learner.use(mw.wait_for(replay, size=500))
        learner.use(mw.train(policy, replay, batch_size=64, beta=linear(0.4, 1.0, steps=1_000)))
        learner.use(mw.update_priorities(replay))
        lead.use(mw.publish_weights(policy, every=5))
        lead.use(mw.stop_at(train_iter=60))
        task.run(max_step=100_000)
    digest = sum(float(weight.double().sum()) for weight in policy.weights().values())
    return task.ctx.get("train_iter"), digest, task.ctx.get("weights_version")


if __name__ == "__main__":
    roles = 2 * ["learner"] + 2 * ["collector"]
    print(Parallel.runner(n_parallel_workers=4, topology="mesh", roles=roles)(main))
"""


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("qr_dqn", "QRDQN"),
        pytest.param("rainbow", "Rainbow", marks=pytest.mark.slow),
        pytest.param("discrete_sac", "DiscreteSAC", marks=pytest.mark.slow),
    ],
)
def test_two_learners_improve_one_policy_from_the_shards_of_two_collectors(
    folder: Path, module: str, kind: str
) -> None:
    code, said = run(folder, APEX.format(root=str(ROOT), module=module, kind=kind))
    assert code == 0, said
    first, second, *collectors = literal_eval(said.splitlines()[-1])
    # The other learner may have begun an update more, which it gives up as the first one has left.
    assert first[0] == 60 <= second[0] + 1
    assert first[1] == second[1]
    assert all(trained is None and fetched > 0 for trained, _, fetched in collectors)

"""Ape-X, which goes on until a killed node has taken part again."""

import pathlib

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import ShardedReplay, World
from ding_lite.rl import DQN, DQNConfig, make_envs
from tests.programs.given import begin_incarnation, given, say

VICTIM, TARGET = given.victim, given.target
ROLES, TOPOLOGY = ["learner", "collector", "collector"], "mesh"


def take_part(ctx):
    # The killed node is back, and has collected or learned something again.
    if World.current().node_id == VICTIM and ctx.total_step == 5:
        pathlib.Path(f"back-{incarnation}").touch()


def end_when_solved(ctx):
    if ctx.get("train_iter", 0) >= 5 and not pathlib.Path("trained").exists():
        pathlib.Path("trained").touch()
        say("trained")
    is_back = any(path.name != "back-1" for path in pathlib.Path().glob("back-*"))
    ctx.finish = is_back and ctx.get("eval_value", 0.0) >= TARGET
    if ctx.finish:
        pathlib.Path("solved").touch()
        say("solved", ctx.eval_value)


def main():
    global incarnation
    incarnation = begin_incarnation(World.current().node_id)
    world = World.current()
    collectors = world.group("collector")
    envs, eval_envs = (make_envs("CartPole-v1", n, seed=world.node_seed + n) for n in (8, 20))
    policy = DQN(envs.spec, DQNConfig(lr=3e-3, hidden=(64, 64), seed=world.node_seed))
    replay = ShardedReplay(collectors, envs.spec, shard_capacity=20_000)
    with Task() as task:
        collector, learner = task.at("collector"), task.at("learner")
        collector.use(mw.fetch_weights(policy))
        collector.use(mw.rate_limit(env_steps_per_update=1.0, ahead=400))
        collector.use(mw.collect(policy, envs, steps=8, epsilon=lambda _: 0.2))
        collector.use(mw.add_to(replay))
        learner.use(mw.wait_for(replay, size=500))
        learner.use(mw.train(policy, replay, updates=4)).use(mw.update_priorities(replay))
        learner.use(mw.publish_weights(policy, every=2))
        learner.use(mw.evaluate(policy, eval_envs, every=50))
        task.use(take_part)
        learner.use(end_when_solved)
        task.run()


if __name__ == "__main__":
    Parallel.runner(3, TOPOLOGY, roles=ROLES, auto_recover=True)(main)
    print("ended")

"""Learning from trajectories again: which come, and that a resumed run goes on with them."""

from __future__ import annotations

from ding_lite import Task, middleware as mw
from ding_lite.rl import IMPALA, IMPALAConfig, load_checkpoint, make_envs, save_checkpoint
from ding_lite.runtime.context import Context
from tests.middleware.running import run_steps


def test_the_newest_earlier_trajectories_follow_the_new_ones() -> None:
    given = [["a"], ["b", "c"], [], ["d"], ["e"]]
    seen = []

    def collect(ctx: Context) -> None:
        ctx.trajectories = given[ctx.total_step]

    run_steps(
        collect, mw.replay_trajectories(2), lambda ctx: seen.append(ctx.trajectories), steps=5
    )
    assert seen == [["a"], ["b", "c", "a"], [], ["d", "b", "c"], ["e", "d", "b"]]


def test_a_policy_learns_from_both_and_a_saved_run_goes_on_with_the_same(tmp_path) -> None:
    def train(policy, envs, task):
        replayed = mw.replay_trajectories(1)
        task.use(mw.collect(policy, envs, unroll=4)).use(replayed).use(mw.train(policy))
        return replayed

    def make():
        envs = make_envs("CartPole-v1", 2, seed=1)
        return IMPALA(envs.spec, IMPALAConfig(hidden=(8,), epochs=2)), envs

    policy, envs = make()
    with Task() as task:
        parts = {"policy": policy, "envs": envs, "replayed": train(policy, envs, task)}
        task.run(max_step=3)
        save_checkpoint(tmp_path, {name: part.state_dict() for name, part in parts.items()})
        task.run(max_step=3)

    resumed, envs = make()
    with Task() as task:
        parts = {"policy": resumed, "envs": envs, "replayed": train(resumed, envs, task)}
        state = load_checkpoint(tmp_path).state
        for name, part in parts.items():
            part.load_state_dict(state[name])
        task.run(max_step=3)
    assert resumed.train_iter == policy.train_iter == 12
    for name, tensor in policy.weights().items():
        assert tensor.equal(resumed.weights()[name]), name

"""Learning from trajectories again: which come, and that a resumed run goes on with them."""

from __future__ import annotations

from typing import Any

from ding_lite import middleware as mw
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
    def train(steps: int, *, resume: bool = False) -> IMPALA:
        envs = make_envs("CartPole-v1", 2, seed=1)
        policy = IMPALA(envs.spec, IMPALAConfig(hidden=(8,), epochs=2))
        replayed: Any = mw.replay_trajectories(1)
        parts: dict[str, Any] = {"policy": policy, "envs": envs, "replayed": replayed}
        for name, state in load_checkpoint(tmp_path).state.items() if resume else ():
            parts[name].load_state_dict(state)
        run_steps(mw.collect(policy, envs, unroll=4), replayed, mw.train(policy), steps=steps)
        save_checkpoint(tmp_path, {name: part.state_dict() for name, part in parts.items()})
        return policy

    whole, _, resumed = train(6), train(3), train(3, resume=True)
    assert resumed.train_iter == whole.train_iter == 12
    for name, tensor in whole.weights().items():
        assert tensor.equal(resumed.weights()[name]), name

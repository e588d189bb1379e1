"""The end of a run of several nodes: greedy episodes, or those that its collectors play."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ding_lite import Task, middleware as mw
from ding_lite.recipes import Criterion, Options, Run, parse_options
from ding_lite.recipes.runs.directory import CONFIG
from ding_lite.rl import DQN, DQNConfig, make_envs
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import use_router
from ding_lite.testing import Cluster
from tests.nodes import delivered


def parse(*arguments: str) -> Options:
    return parse_options(
        "Train.",
        env="CartPole-v1",
        max_env_steps=50_000,
        target=475.0,
        nodes=3,
        seed_goal=("CartPole-v0", 190.0),
        arguments=arguments,
    )


def ended(*returns: float) -> Context:
    """Make the ctx of a step in which these episodes have ended; of none where there are none."""
    return Context(collected={"returns": list(returns)}) if returns else Context()


def machins(returns: list[float], target: float) -> int | None:
    """Do what the tutorial's loop does; return the number of episodes when it says `solved`."""
    smoothed_total_reward, reward_fulfilled = 0.0, 0
    for episode, total_reward in enumerate(returns, 1):
        smoothed_total_reward = smoothed_total_reward * 0.9 + total_reward * 0.1
        if smoothed_total_reward > target:
            reward_fulfilled += 1
            if reward_fulfilled >= 5:
                return episode
        else:
            reward_fulfilled = 0
    return None


@pytest.mark.parametrize(
    "returns",
    [
        [200.0] * 60,
        [22.0] * 10 + [200.0] * 60,
        ([200.0] * 32 + [20.0]) * 2 + [200.0] * 60,
        [180.0] * 100,
    ],
    ids=["at once", "later", "after setbacks", "never"],
)
def test_it_is_met_after_as_many_episodes_as_in_the_tutorial(returns: list[float]) -> None:
    criterion, met = Criterion(parse("--criterion", "seed")), None
    for begin in range(0, len(returns), 3):
        criterion.observe(ended(*returns[begin : begin + 3]))
        criterion.observe(ended())
        ctx = Context()
        criterion.decide(ctx)
        if ctx.finish:
            met = ctx.metrics["episodes_per_collector"]
            break
    assert met == machins(returns, 190.0)


def test_returns_below_zero_are_smoothed_from_the_first_on() -> None:
    criterion = Criterion(parse("--criterion", "seed", "--target", "-200"))
    for _ in range(20):
        criterion.observe(ended(-1_200.0))
    ctx = Context()
    criterion.decide(ctx)
    assert not ctx.finish


def test_greedy_runs_end_by_evaluations_alone() -> None:
    criterion, ctx = Criterion(parse()), ended(*[500.0] * 100)
    criterion.observe(ctx)
    criterion.decide(ctx)
    assert not ctx.finish
    assert "metrics" not in ctx
    assert criterion.eval_target == 475.0
    assert Criterion(parse("--criterion", "seed")).eval_target is None


def test_the_first_collector_to_meet_the_criterion_makes_the_learner_end_the_job() -> None:
    options = parse("--criterion", "seed")

    def main() -> Any:
        criterion = Criterion(options)
        with Task() as task:
            collector, learner = task.at("collector"), task.at("learner")
            collector.use(lambda ctx: setattr(ctx, "collected", {"returns": [200.0]}))
            collector.use(criterion.observe)
            learner.use(criterion.decide)
            learner.use(lambda ctx: seen.update(ctx.metrics))
            task.run()

    seen: dict[str, Any] = {}
    with Cluster(3, roles=["learner", "collector", "collector"]) as cluster:
        cluster.run(main, timeout=15.0)
    assert seen == {"episodes_per_collector": machins([200.0] * 99, 190.0)}


def test_a_learner_that_was_away_is_notified_at_the_next_episode() -> None:
    options = parse("--criterion", "seed")
    with Cluster(2) as cluster:
        with use_router(cluster.routers[1]):
            collector = Criterion(options)
        collector.observe(ended(*[200.0] * 50))
        delivered(cluster.routers[1])
        again = cluster.restart(0)
        with use_router(again):
            learner = Criterion(options)
        for router in cluster.routers:
            router.wait_ready(10.0)
        collector.observe(ended(200.0))
        delivered(cluster.routers[1])
    ctx = Context()
    learner.decide(ctx)
    assert ctx.finish


def test_the_seeds_criterion_has_an_env_and_a_target_of_its_own(tmp_path: Path) -> None:
    chosen = parse("--criterion", "seed")
    assert (chosen.criterion, chosen.env, chosen.target) == ("seed", "CartPole-v0", 190.0)
    chosen = parse("--criterion", "seed", "--env", "CartPole-v1", "--target", "300")
    assert (chosen.env, chosen.target) == ("CartPole-v1", 300.0)
    assert parse().criterion == "greedy"

    out = ("--out", str(tmp_path))
    with Run("mine", parse(*out, "--criterion", "seed", "--seed", "3")):
        pass
    resumed = parse(*out, "--resume")
    assert (resumed.criterion, resumed.env, resumed.seed) == ("seed", "CartPole-v0", 3)


@pytest.mark.parametrize(("target", "solved"), [("30", True), ("199", False)])
def test_the_last_line_says_how_many_episodes_it_took(target, solved, capsys) -> None:
    options = parse("--criterion", "seed", "--target", target, "--max-env-steps", "4000")
    with Run("mine", options) as run, make_envs(options.env, 2, seed=1) as envs:
        policy = DQN(envs.spec, DQNConfig(hidden=(8,), n_step=1))
        with Task() as task:
            criterion = Criterion(options)
            task.use(mw.collect(policy, envs, steps=2, epsilon=lambda _: 1.0))
            task.use(lambda ctx: _pretend(ctx, 3.0))
            task.use(criterion.observe)
            task.use(mw.evaluate(policy, envs, every=5_000, stop_at=criterion.eval_target))
            task.use(criterion.decide)
            task.use(mw.stop_at(env_step=options.max_env_steps))
            task.use(mw.jsonl(run.metrics, every=10))
            task.run()
        run.conclude(policy)
        message = json.loads((run.directory / CONFIG).read_text())

    line = json.loads(capsys.readouterr().out)
    assert (line["solved"], line["criterion"]) == (solved, "seed")
    assert message["options"]["criterion"] == "seed"
    if solved:
        assert 5 <= line["episodes_per_collector"] <= line["episodes"]
        assert line["env_steps"] < 4_000
    else:
        assert line["episodes_per_collector"] is None


def _pretend(ctx: Context, factor: float) -> None:
    """Let episodes of random actions, of some 22 steps, be worth more."""
    if "collected" in ctx:
        ctx.collected["returns"] = [factor * value for value in ctx.collected["returns"]]

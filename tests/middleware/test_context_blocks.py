"""The `Context:` block of each factory says what its middleware does to the ctx, and no more."""

from __future__ import annotations

import inspect
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

from ding_lite import middleware as mw
from ding_lite.distributed import GradientServer, Group, ModelServer, PopulationServer, Processes
from ding_lite.distributed.topics import COLLECTED
from ding_lite.evolution import Mutation, Population, Tournament
from ding_lite.middleware.distributed.weights import SERVER
from ding_lite.rl import A2C, DQN, A2CConfig, Envs, PrioritizedReplay, ReplayBuffer, make_envs
from ding_lite.runtime import Context, LocalRouter, use_router
from ding_lite.runtime.context import latch_of
from ding_lite.runtime.middleware import composed_of
from ding_lite.testing import Cluster, ManualClock, StepRecord, run_step
from tests.nodes import delivered


class Succeeds(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        *rest, info = self.env.step(action)
        return *rest, info | {"is_success": True}


BY_THE_POLICY = {"loss", "q_mean", "policy_loss", "value_loss", "entropy", "grad_norm"}


def block_of(factory: Callable[..., Any]) -> StepRecord:
    """Read the block: keys by verb, and the metrics named in brackets behind `metrics`."""
    doc = inspect.getdoc(factory) or ""
    block = re.search(r"^Context:\n((?:    .*\n)+)", doc, re.MULTILINE)
    assert block, f"{factory.__name__} has no `Context:` block"
    record = StepRecord()

    for verb, keys in re.findall(r"^ +(reads|writes|keeps): (.*)$", block[1], re.MULTILINE):
        metrics = re.search(r"metrics \(([^)]*)\)", keys)
        if metrics and metrics[1] == "what the policy reports":
            record.metrics |= BY_THE_POLICY
        elif metrics:
            record.metrics |= set(metrics[1].split(", "))
        getattr(record, verb).update(re.sub(r" \([^)]*\)", "", keys).split(", "))
    return record


def records(middleware: Any, *steps: dict[str, Any]) -> list[StepRecord]:
    return [run_step(middleware, **values)[1] for values in steps]


COUNTED: dict[str, Any] = {"env_step": 5, "train_iter": 5, "eval_value": 5.0}
LAST_OF_TWO = {"total_step": 1}


def measured() -> list[StepRecord]:
    """Measure at the beginning and a second later."""
    clock = ManualClock()
    measured_here = mw.throughput(every=1, clock=clock)

    def twice(ctx: Context) -> None:
        measured_here(ctx)
        clock.advance(1.0)
        measured_here(ctx)

    return [*records(twice, {"env_step": 5}), *records(mw.throughput(every=9), {})]


def exchanged() -> dict[str, list[StepRecord]]:
    """Send, and receive what says which weights have collected it."""
    with use_router(LocalRouter()) as router:
        send, receive = mw.send("trajectories", to="node.0"), mw.receive("trajectories")
        router.send("trajectories", SimpleNamespace(version=1), to="node.0")
        received = records(receive, {"weights_version": 3})
        return {"send": records(send, {"trajectories": [1]}), "receive": received}


def fetched(policy: DQN) -> list[StepRecord]:
    """Fetch before anything was published, and then."""
    with Cluster(2) as cluster, use_router(cluster.routers[1]):
        learner, fetch = cluster.routers[0], mw.fetch_weights(policy)
        before = records(fetch, {})
        with use_router(learner):
            ModelServer(name=SERVER).publish(policy.weights())
        delivered(learner)
        return before + records(fetch, {})


def counted() -> list[StepRecord]:
    message = {"made": {"1": [5, 1]}, "return": 1.0, "episode_length": 1.0}
    roles = [{"learner", "collector"}, "collector"]
    with Cluster(2, roles=roles) as cluster, use_router(cluster.routers[0]):
        count = mw.count_collected("collector")
        cluster.routers[1].publish(COLLECTED, message)
        delivered(cluster.routers[1])
        return records(count, {})


def limited() -> list[StepRecord]:
    """Wait for an update that comes while it waits."""
    with Cluster(2) as cluster, use_router(cluster.routers[1]):
        learner = cluster.routers[0]
        limit = mw.rate_limit(env_steps_per_update=1, ahead=0)
        learner.publish_ctx({"train_iter": 1})
        delivered(learner)
        run_step(limit, env_step=1)
        update = threading.Timer(0.05, learner.publish_ctx, [{"train_iter": 2}])
        update.start()
        [record] = records(limit, {"env_step": 2})
        update.join()
    record.reads.discard("finish")  # which the task writes
    return [record]


def pushed(envs: Envs) -> dict[str, list[StepRecord]]:
    """Pull, push and serve on the one node that there is."""
    with use_router(LocalRouter()) as router:
        policy = A2C(envs.spec, A2CConfig(hidden=(4,)))
        server = GradientServer(Group(router, (0,)), policy)
        trajectories = run_step(mw.collect(policy, envs, unroll=4))[0].trajectories
        pull, push = mw.pull_weights(policy, server), mw.push_gradients(policy, server)
        found = {
            "pull_weights": records(pull, {}),
            "push_gradients": records(push, {}, {"trajectories": trajectories}),
            "serve_gradients": records(mw.serve_gradients(policy, server), {}),
        }
    for record in found["pull_weights"] + found["push_gradients"]:
        record.reads.discard("finish")  # read only where there was something to wait for
        record.metrics -= set(policy.gradients(trajectories)[1])
    return found


def evolved(envs: Envs, eval_envs: Envs, folder: Path) -> dict[str, list[StepRecord]]:
    """Let a population of two take a step, and breed its next generation."""
    population = Population.of(DQN, envs.spec, size=2, config={"hidden": (4,)})

    def report(ctx: Context) -> None:
        ctx.metrics["what the agents report"] = 1.0

    def evolve(**period: Any) -> Any:
        return mw.evolve(population, Tournament(), Mutation(none=1.0), **period)

    evaluate = mw.evaluate(population, eval_envs, every=2, stop_at=1.0, max_env_steps=1_000_000)
    spent = {"env_step": 1_000, "eval_steps": 1_000}
    return {
        "for_each": records(mw.for_each(population, lambda agent: [report]), {}),
        "evaluate (agents)": records(evaluate, LAST_OF_TWO),
        "keep_best (agents)": records(mw.keep_best(population, folder), COUNTED),
        "env_step_budget": records(mw.env_step_budget(1_000, every=2), spent),
        "evolve": records(evolve(every=2), LAST_OF_TWO),
        "evolve (env steps)": records(evolve(every_env_steps=2), {"env_step": 1}),
    }


def bred_for_others(envs: Envs, eval_envs: Envs) -> dict[str, list[StepRecord]]:
    """Take, judge, give back and gather the members of a population, on the one node there is."""
    population = Population.of(DQN, envs.spec, size=2, config={"hidden": (4,)})
    with use_router(LocalRouter()) as router:
        server = PopulationServer(Group(router, (0,)), Group(router, (0,)), population)
        taken = records(mw.take_members(population, server), {})
        run_step(mw.evaluate(population, eval_envs, every=1))
        given = records(mw.return_members(population, server, every=2), LAST_OF_TWO)
        gathered = records(mw.gather_members(server, every=2), LAST_OF_TWO)
        confirm = mw.confirm_best(server, eval_envs, every=2, stop_at=1.0)
        return {
            "take_members": taken,
            "return_members": given,
            "gather_members": gathered,
            "confirm_best": records(confirm, LAST_OF_TWO),
        }


def trained_together(envs: Envs, eval_envs: Envs, folder: Path) -> dict[str, list[StepRecord]]:
    """Average, judge and share a population of two among one process."""
    population = Population.of(DQN, envs.spec, size=2, config={"hidden": (4,)})
    processes = Processes()
    judge = mw.evaluate(population, eval_envs, processes, every=2, stop_at=1.0)
    share = mw.share_generation(population, processes, every=2)
    save = mw.checkpoint({"population": population}, folder, processes, every=1)
    average: Any = mw.average_agents(population, processes)

    def average_at_the_end(ctx: Context) -> Iterator[None]:
        latch_of(ctx).finish()  # as by an earlier middleware
        yield from average(ctx)

    composed_of(average_at_the_end, [average])
    return {
        "average_agents": records(average_at_the_end, {}),
        "evaluate (processes)": records(judge, LAST_OF_TWO),
        "checkpoint (processes)": records(save, COUNTED),
        "share_generation": records(share, LAST_OF_TWO),
    }


@pytest.fixture
def observed(
    policy: DQN, envs: Envs, eval_envs: Envs, replay: ReplayBuffer, tmp_path: Path
) -> dict[str, list[StepRecord]]:
    """Run each middleware through the steps that show all it does."""
    collected, _ = run_step(mw.collect(policy, envs, steps=4))
    transitions = collected.transitions
    collect = mw.collect(policy, envs, steps=400, epsilon=lambda _: 1.0)
    successes = make_envs("CartPole-v1", 2, mode="sync", wrappers=[Succeeds])
    a2c = A2C(envs.spec)
    rolled_out, _ = run_step(mw.collect(a2c, envs, unroll=4))
    random_warmup = mw.random_warmup(envs, replay, steps=100)
    prioritized = PrioritizedReplay(envs.spec, capacity=100)
    run_step(mw.random_warmup(envs, prioritized, steps=20))
    weighted, _ = run_step(mw.train(policy, prioritized))
    learned = {"train_data": weighted.train_data, "train_output": weighted.train_output}
    seen = {"metrics": {"return": 1.0}}
    evaluate = mw.evaluate(policy, eval_envs, every=2, stop_at=1.0, share=1.0)
    stop = mw.stop_at(eval_value=9.0, env_step=9, train_iter=5)
    return {
        "collect": records(collect, {}, {"env_step": 400}),
        "collect (rollouts)": records(mw.collect(a2c, envs, unroll=4), {}),
        "collect (successes)": records(mw.collect(policy, successes, steps=400), {}),
        "random_warmup": records(random_warmup, {}),
        "add_to": records(mw.add_to(replay), {"transitions": transitions}),
        "wait_for": records(mw.wait_for(replay, size=900), {}),
        "train": records(mw.train(policy, replay), {}, {"train_iter": 3}, {"warming_up": True}),
        "train (transitions)": records(mw.train(policy), {"transitions": transitions}),
        "train (rollouts)": records(mw.train(a2c), {}, {"trajectories": rolled_out.trajectories}),
        "train (priorities)": records(
            mw.train(policy, prioritized, updates=2, beta=lambda _: 1), {}
        ),
        "update_priorities": records(mw.update_priorities(prioritized), {}, learned),
        "evaluate": records(evaluate, {**LAST_OF_TWO, "env_step": 10_000}),
        "evaluate (successes)": records(mw.evaluate(policy, successes, every=1), {}),
        "stop_at": records(stop, COUNTED, {"eval_value": 9.5}),
        "checkpoint": records(mw.checkpoint(policy, tmp_path / "checkpoint", every=1), COUNTED),
        "keep_best": records(mw.keep_best(policy, tmp_path / "best"), {}, COUNTED),
        "throughput": measured(),
        **exchanged(),
        "replay_trajectories": records(mw.replay_trajectories(1), {"trajectories": [rolled_out]}),
        "publish_weights": records(mw.publish_weights(policy, every=1), COUNTED),
        "fetch_weights": fetched(policy),
        "rate_limit": limited(),
        **pushed(envs),
        "count_collected": counted(),
        **evolved(envs, eval_envs, tmp_path / "champion"),
        **bred_for_others(envs, eval_envs),
        **trained_together(envs, eval_envs, tmp_path / "together"),
        "log": records(mw.log(every=1), seen),
        "jsonl": records(mw.jsonl(tmp_path / "metrics.jsonl", every=1), seen),
        "report": records(mw.report(lambda metrics, step: None, every=1), seen),
        "progress": records(mw.progress(), seen),
        "tensorboard": records(mw.tensorboard(tmp_path / "events", every=1), seen),
        "curve": records(mw.curve(tmp_path / "curve.png"), seen),
    }


def test_every_context_block_agrees_with_its_middleware(observed) -> None:
    no_middleware = {"resume"}
    as_report = {"mlflow", "wandb"}  # the same base as `report`, and a package behind it
    found: dict[str, StepRecord] = defaultdict(StepRecord)
    for kind, records in observed.items():
        for record in records:
            found[kind.split()[0]] |= record
    assert sorted(found) == sorted({*mw.__all__} - no_middleware - as_report)
    assert block_of(mw.mlflow) == block_of(mw.wandb) == block_of(mw.report)
    for name, together in found.items():
        assert block_of(getattr(mw, name)) == together, name

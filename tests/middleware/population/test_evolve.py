"""Populations in a pipeline: learning side by side, evaluation, generations, and exact resume."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite import middleware as mw
from ding_lite.errors import ConfigError, MiddlewareError, NonFiniteError
from ding_lite.evolution import Agent, Mutation, Population, Tournament
from ding_lite.evolution.search import Search, choice, integer, log_uniform
from ding_lite.nest import leaves
from ding_lite.rl import DQN, IMPALA, PPO, SAC, Envs, PrioritizedReplay, ReplayBuffer, make_envs
from ding_lite.rl.evaluation import PlayedByEach, play_each
from ding_lite.runtime import Context, Middleware, Task
from ding_lite.testing import run_step
from tests.middleware.running import run_steps

SMALL: dict[str, Any] = {"hidden": (8,), "n_step": 1}
SEARCH = Search(lr=log_uniform(1e-4, 1e-2), batch_size=integer(8, 32))


@pytest.fixture
def population(envs: Envs) -> Population:
    return Population.of(DQN, envs.spec, SEARCH, size=3, config=SMALL)


def learning(envs: Envs, replay: ReplayBuffer, **more: Any) -> Callable[[Agent], list[Middleware]]:
    def learn(agent: Agent) -> list[Middleware]:
        collect = mw.collect(agent, envs, steps=16)
        return [collect, mw.add_to(replay), mw.train(agent, replay, **more)]

    return learn


def test_every_agent_collects_and_learns_and_all_are_counted(population, envs, replay) -> None:
    before = [agent.weights()["head.weight"] for agent in population]
    task = run_steps(mw.for_each(population, learning(envs, replay, updates=2)), steps=5)

    assert task.ctx.env_step == 5 * 3 * 16
    assert task.ctx.train_iter == sum(agent.policy.train_iter for agent in population)
    assert len(replay) == 240
    assert [agent.policy.env_step for agent in population] == [80] * 3
    for agent, weight in zip(population, before, strict=True):
        assert not torch.equal(agent.weights()["head.weight"], weight)


def test_an_agent_that_another_node_trains_is_left_out_here(population, envs, eval_envs, replay):
    population[1].is_away = True
    before = population[1].weights()["head.weight"]
    task = run_steps(
        mw.for_each(population, learning(envs, replay, updates=2)),
        mw.evaluate(population, eval_envs, every=4),
        steps=4,
    )

    assert task.ctx.env_step == 4 * 2 * 16
    assert torch.equal(population[1].weights()["head.weight"], before)
    assert [agent.num_new_evaluations for agent in population] == [1, 0, 1]
    assert population.best is not population[1]


def test_what_one_agent_puts_on_its_ctx_no_other_sees_and_what_it_keeps_is_saved(population):
    seen: list[Any] = []

    def learn(agent: Agent) -> list[Middleware]:
        def write(ctx: Context) -> None:
            ctx.mine = agent.place
            ctx.turns = ctx.get("turns", 0) + 1
            ctx.keep("turns")

        return [write, lambda ctx: seen.append((ctx.mine, ctx.turns, ctx.reported))]

    state: dict[str, Any] | None = None
    for turn in (1, 2):
        stage: Any = mw.for_each(population, learn)
        if state:
            stage.load_state_dict(state)
        run_steps(
            lambda ctx: ctx.update(reported="all"),
            stage,
            lambda ctx: seen.append("turns" in ctx or "mine" in ctx),
            steps=1,
        )
        assert seen == [(0, turn, "all"), (1, turn, "all"), (2, turn, "all"), False]
        seen.clear()
        state = stage.state_dict()


@pytest.mark.parametrize("fails", [False, True])
def test_agents_finish_one_middleware_before_the_next_and_leave_backwards(population, fails):
    order: list[str] = []

    def learn(agent: Agent) -> list[Middleware]:
        def around(ctx: Context) -> Iterator[None]:
            order.append(f"in {agent.place}")
            try:
                yield
            finally:
                order.append(f"out {agent.place}")

        def train(ctx: Context) -> None:
            order.append(f"train {agent.place}")
            if fails:
                raise ValueError(f"agent {agent.place}")

        return [around, train]

    stages = mw.for_each(population, learn), lambda ctx: order.append("rest")
    if fails:
        with pytest.raises(ValueError, match="agent 0") as caught:
            run_steps(*stages, steps=1)
        assert any(note.endswith("train` of agent 0") for note in caught.value.__notes__)
    else:
        run_steps(*stages, steps=1)
    turns = ["train 0"] if fails else ["train 0", "train 1", "train 2", "rest"]
    assert order == ["in 0", "in 1", "in 2", *turns, "out 2", "out 1", "out 0"]


def test_metrics_are_means_and_episodes_are_added_up(population: Population) -> None:
    def learn(agent: Agent) -> list[Middleware]:
        def report(ctx: Context) -> None:
            step, place = ctx.total_step, agent.place
            ctx.metrics.update(loss=float(place), replay_size=10 * place)
            if place:
                ctx.metrics["rare"] = 4.0
            if step == 0 or place == 2:  # in the second step no other agent ends an episode
                ctx.metrics["episodes"] = place + step

        return [report]

    seen: list[dict[str, Any]] = []
    run_steps(mw.for_each(population, learn), lambda ctx: seen.append(ctx.metrics), steps=2)
    means = {"loss": 1.0, "replay_size": 20, "rare": 4.0}
    assert seen == [{**means, "episodes": 0 + 1 + 2}, {**means, "episodes": 0 + 1 + 3}]


async def later(ctx: Context) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("learn", "fault"),
    [
        (lambda agent: [], "a list of middleware was expected"),
        (lambda agent: None, "`learn` returned None"),
        (lambda agent: [lambda ctx: None] * (1 + agent.place), r"pipelines of \[1, 2, 3\]"),
        (lambda agent: [later], "`later` is asynchronous"),
        (lambda agent: [None], "A middleware is a callable .*, not None"),
        (
            lambda agent: [mw.train(agent, ReplayBuffer(agent.spec, capacity=99), batch_size=9)],
            "`batch_size` is searched, and was given to `train`",
        ),
    ],
)
def test_a_learn_that_makes_no_pipelines_is_refused(population, learn, fault) -> None:
    with pytest.raises((ConfigError, MiddlewareError), match=fault):
        mw.for_each(population, learn)


def test_agents_that_learn_together_learn_what_each_has_drawn(population, envs, replay) -> None:
    """The batch of the group is one sample; each agent has its own rows of it."""
    run_step(mw.random_warmup(envs, replay, steps=100))
    twin_replay = ReplayBuffer(envs.spec, capacity=1_000)
    twin_replay.load_state_dict(replay.state_dict())
    twins = [agent.clone() for agent in population]
    sizes = [agent.config.batch_size for agent in population]
    assert len(set(sizes)) > 1

    train = mw.for_each(population, lambda agent: [mw.train(agent, replay, updates=5)])
    for _ in range(8):
        run_step(train)
        for _ in range(5):
            drawn = twin_replay.sample(3 * max(sizes))
            for row, (twin, size) in enumerate(zip(twins, sizes, strict=True)):
                first = row * max(sizes)
                names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
                own = {n: getattr(drawn, n)[first : first + size] for n in (*names, "num_steps")}
                twin.learn(type(drawn)(**own))
    for agent, twin in zip(population, twins, strict=True):
        for name, tensor in agent.weights().items():
            torch.testing.assert_close(tensor, twin.weights()[name], atol=1e-5, rtol=0.0)


def test_agents_of_several_shapes_and_replays_with_priorities_learn_too(envs: Envs) -> None:
    population = Population.of(DQN, envs.spec, SEARCH, size=4, config=SMALL)
    grow = Mutation(none=0.0, weights=0.0, architecture=1.0, remove_prob=0.0, new_layer_prob=0.0)
    grow.mutate(population[1])
    for replay in (
        ReplayBuffer(envs.spec, capacity=1_000),
        PrioritizedReplay(envs.spec, capacity=1_000),
    ):
        before = [agent.policy.train_iter for agent in population]
        run_steps(mw.for_each(population, learning(envs, replay)), steps=10)
        after = [agent.policy.train_iter for agent in population]
        assert min(b - a for a, b in zip(before, after, strict=True)) >= 9


def test_learn_every_says_how_often_an_agent_learns(envs: Envs, replay: ReplayBuffer) -> None:
    population = Population.of(
        DQN,
        envs.spec,
        Search(learn_every=integer(1, 16)),
        size=3,
        config={**SMALL, "batch_size": 4},
    )
    for agent, every in zip(population, (1, 5, 16), strict=True):
        agent.learn_every = every
    run_step(mw.random_warmup(envs, replay, steps=100))
    run_steps(mw.for_each(population, learning(envs, replay, updates=99)), steps=10)
    assert [agent.policy.train_iter for agent in population] == [160, 32, 10]


def test_an_agent_that_breaks_rests(population, envs, eval_envs: Envs, replay, caplog) -> None:
    run_step(mw.random_warmup(envs, replay, steps=200))
    broken = population[1].policy
    assert isinstance(broken, DQN)
    broken.flat_weights[1].flat.fill_(np.inf)  # its targets
    with Task() as task:
        task.use(mw.for_each(population, learning(envs, replay)))
        task.use(mw.evaluate(population, eval_envs, every=3))
        task.use(mw.evolve(population, Tournament(size=2), Mutation(none=1.0), every=3))
        task.run(max_step=2)
        assert "loss of DQN's update 1" in str(population[1].fault)
        assert len([r for r in caplog.records if "agent 1 does no more" in r.message]) == 1
        task.run(max_step=4)
    assert population[1].fault is None
    assert population[1].birth.parent in (0, 2)
    assert population[1].policy.train_iter > 3


@pytest.mark.parametrize("is_evaluated", [False, True])
def test_an_agent_with_actions_of_nan_leaves_the_envs_to_the_others(is_evaluated: bool) -> None:
    with make_envs("Pendulum-v1", 2, env_args={"max_episode_steps": 5}) as envs:
        population = Population.of(SAC, envs.spec, size=3, config={"hidden": (8,)})
        broken: Any = population[1].policy
        broken.flat_weights[0].flat.fill_(torch.nan)
        stage = mw.for_each(population, lambda agent: [mw.collect(agent, envs, steps=4)])
        run_step(mw.evaluate(population, envs, every=1) if is_evaluated else stage)
    assert [agent.fault is None for agent in population] == [True, False, True]
    has_fitness = [agent.fitness is not None for agent in population]
    assert has_fitness == [is_evaluated, False, is_evaluated]


def test_every_agent_is_evaluated_and_its_env_steps_are_counted(population, eval_envs, monkeypatch):
    evaluate = mw.evaluate(population, eval_envs, every=2, episodes=4)
    ctx, _ = run_step(evaluate, total_step=0)
    assert all(agent.fitness is None for agent in population)
    assert ctx.eval_steps == 0

    asked: list[int] = []
    step = eval_envs.step

    def counting(action: Any) -> Any:
        asked.append(len(action))
        return step(action)

    monkeypatch.setattr(eval_envs, "step", counting)
    ctx, record = run_step(evaluate, total_step=1, eval_steps=100)
    values = [agent.evaluations[-1] for agent in population]
    assert min(values) > 5.0
    assert ctx.eval_value == max(values)
    assert ctx.metrics["fitness_mean"] == pytest.approx(np.mean(values))
    assert ctx.eval_steps == 100 + sum(asked) == ctx.metrics["eval_steps"]
    assert "finish" not in record.writes


class Balancer(DQN):
    """Holds the pole for 200 env steps and more."""

    def act(self, obs: Any, *, explore: bool = True, epsilon: float | None = None) -> Any:
        """Push to where the pole falls."""
        return (obs[:, 2] + obs[:, 3] > 0).astype(np.int64)


@pytest.fixture
def fresh_episodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many episodes each player was given, evaluation after evaluation."""
    noted: list[int] = []

    def play(act: Any, envs: Envs, *, episodes: Sequence[int], reset: Any) -> PlayedByEach:
        noted.append(sum(episodes))
        return play_each(act, envs, episodes=episodes, reset=reset)

    module = sys.modules["ding_lite.middleware.population.evaluate"]
    monkeypatch.setattr(module, "play_each", play)
    return noted


def test_fresh_episodes_end_as_soon_as_their_mean_is_clearly_too_low(population, fresh_episodes):
    class Lucky(Balancer):
        def act(self, obs: Any, *, explore: bool = True, epsilon: float | None = None) -> Any:
            """Fall at once from the second evaluation on."""
            actions = super().act(obs)
            return actions if len(fresh_episodes) == 1 else np.zeros_like(actions)

    envs = make_envs("CartPole-v1", 2, seed=1, env_args={"max_episode_steps": 60})
    lucky = population[1]
    for kind, confirm, played, ends in (
        (Balancer, 20, [3 * 2, 6, 6, 6, 2], True),
        (Lucky, 20, [3 * 2, 6], False),
        (Lucky, 0, [3 * 2], True),
    ):
        fresh_episodes.clear()
        lucky.replace_policy(kind(envs.spec, lucky.config))
        evaluate = mw.evaluate(population, envs, every=1, stop_at=50.0, confirm=confirm)
        ctx, record = run_step(evaluate)
        assert fresh_episodes == played
        assert lucky.evaluations[-1] > 50.0
        assert (ctx.eval_value > 50.0) == ends
        assert ("finish" in record.writes) == ends


@pytest.mark.parametrize(("left", "played"), [(17, []), (18, [6]), (53, [6, 6])])
def test_fresh_episodes_beyond_the_env_steps_are_not_played(fresh_episodes, left, played) -> None:
    """Each episode takes 3 env steps and returns 6; of six each of two environments plays three."""
    envs = make_envs("probe/Counter-v0", 2, env_args={"max_episode_steps": 3})
    population = Population.of(DQN, envs.spec, SEARCH, size=3, config=SMALL)
    evaluate = mw.evaluate(population, envs, every=1, stop_at=6.0, max_env_steps=5_018 + left)
    ctx, record = run_step(evaluate, env_step=5_000)
    assert fresh_episodes == [3 * 2, *played]
    assert ("eval_value" in ctx) == bool(played)
    assert ctx.metrics["eval_return"] == 6.0
    assert "finish" not in record.writes
    assert ctx.eval_steps == 18 * len(fresh_episodes)


def test_an_agent_with_actions_of_nan_in_its_confirmation_rests() -> None:
    class Weak(SAC):
        def act(self, obs: Any, *, explore: bool = True) -> Any:
            """Fail in the envs for confirmation, of which there are three."""
            return np.full((3, 1), np.nan) if len(obs) == 3 else super().act(obs, explore=explore)

    envs, sure = (make_envs("Pendulum-v1", n, env_args={"max_episode_steps": 5}) for n in (2, 3))
    population = Population.of(Weak, envs.spec, size=2, config={"hidden": (8,)})
    evaluate = mw.evaluate(population, envs, every=1, stop_at=-500.0, confirm_envs=sure)
    ctx, record = run_step(evaluate)
    assert all(agent.fault is not None for agent in population)
    assert ctx.eval_value == -math.inf
    assert "finish" not in record.writes


class Cliff(gymnasium.Env[Any, Any]):
    """Episodes of three env steps; a large action leads to a large observation."""

    observation_space = Box(-1e3, 1e3, (1,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)
    num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        Cliff.num_steps += 1
        obs = np.full(1, 100.0 if action[0] > 0.5 else 0.0, np.float32)
        return obs, 1.0, self.time == 3, False, {}


def test_only_the_agent_that_acted_is_set_aside_and_all_env_steps_are_counted() -> None:
    class Steep(SAC):
        action = 0.0

        def act(self, obs: Any, *, explore: bool = True) -> Any:
            """Return NaN for large observations, which only a large action leads to."""
            return np.where(obs > 50.0, np.nan, self.action)

    with make_envs(Cliff, 2, mode="sync") as envs:
        population = Population.of(Steep, envs.spec, size=3, config={"hidden": (8,)})
        fast: Any = population[1].policy
        fast.action = 1.0
        before = Cliff.num_steps
        ctx, _ = run_step(mw.evaluate(population, envs, every=1))
    assert [agent.fitness for agent in population] == [3.0, None, 3.0]
    assert ctx.eval_steps == Cliff.num_steps - before


def test_rewards_of_nan_while_an_agent_is_confirmed_are_no_fault_of_it(population, eval_envs):
    class Broken(gymnasium.RewardWrapper[Any, Any]):
        def reward(self, reward: Any) -> float:
            return math.nan

    with (
        make_envs("CartPole-v1", 2, wrappers=[Broken]) as sure_envs,
        pytest.raises(NonFiniteError, match="the reward nan"),
    ):
        run_step(mw.evaluate(population, eval_envs, every=1, stop_at=1.0, confirm_envs=sure_envs))


def test_what_cut_episodes_seem_to_reach_is_confirmed_by_whole_ones(population, eval_envs) -> None:
    cut = make_envs("CartPole-v1", 2, seed=5, env_args={"max_episode_steps": 5})
    evaluate = mw.evaluate(population, cut, every=1, stop_at=5.0, confirm_envs=eval_envs)
    ctx, record = run_step(evaluate)
    assert population.best.fitness == 5.0
    assert ctx.eval_value > 5.0
    assert "finish" in record.writes
    assert ctx.eval_steps > len(population) * 2 * 5 + 20 * 5


def test_generations_are_due_and_leave_a_lineage(population, envs, eval_envs, replay, tmp_path):
    file = tmp_path / "runs" / "lineage.jsonl"
    reported: list[tuple[int, Sequence[float]]] = []
    run_steps(
        mw.for_each(population, learning(envs, replay)),
        mw.evaluate(population, eval_envs, every=5),
        mw.evolve(population, Tournament(), Mutation(SEARCH, none=0.0), every=5, lineage=file),
        lambda ctx: reported.append((ctx.generation, ctx.get("fitness", ()))),
        steps=16,
    )

    assert [generation for generation, _ in reported] == [0] * 4 + [1] * 5 + [2] * 5 + [3] * 2
    assert reported[3][1] == ()
    lives = [json.loads(line) for line in file.read_text().splitlines()]
    assert [life["generation"] for life in lives] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert reported[4][1] == [life["fitness"] for life in lives[:3]]
    assert all(life["mutation"] == "first" for life in lives[:3])
    assert [life["fitness"] for life in lives[-3:]] == [None] * 3


def test_a_lineage_has_null_for_a_number_that_json_does_not_have(envs, tmp_path) -> None:
    search = Search(rho_clip=choice(math.inf, 1e9))
    population = Population.of(IMPALA, envs.spec, search, size=2, config={"rho_clip": 1e9})
    for agent in population:
        agent.note_evaluation(math.nan)
    file = tmp_path / "lineage.jsonl"
    with mw.evolve(population, Tournament(), Mutation(search), every=1, lineage=file):  # type: ignore[attr-defined]
        pass
    lives = [json.loads(line, parse_constant=pytest.fail) for line in file.read_text().splitlines()]
    assert [life["fitness"] for life in lives] == [None, None]
    assert {life["hyperparameters"]["rho_clip"] for life in lives} <= {None, 1e9}


def test_the_best_is_what_it_was_when_it_was_measured(population, envs, eval_envs, replay) -> None:
    """In the step that ends the run nothing is bred."""
    task = run_steps(
        mw.for_each(population, learning(envs, replay)),
        mw.evaluate(population, eval_envs, every=5, stop_at=5.0),
        mw.evolve(population, Tournament(), Mutation(none=0.0), every=5),
        steps=50,
    )
    assert task.ctx.total_step == 4
    assert population.generation == 0
    assert task.ctx.fitness == [agent.fitness for agent in population]


def test_the_best_is_never_a_child_that_has_inherited_its_fitness(population, eval_envs) -> None:
    for best in (2, 1, 2, 0):
        for agent in population:
            agent.note_evaluation(100.0 if agent.place == best else 1.0)
        assert population.best is population[best]
        population.evolve(Tournament(size=3), Mutation(none=0.0))
        assert population.best is population[best]


def test_a_signal_in_the_last_step_of_a_generation_does_not_skip_the_next(tmp_path) -> None:
    def run(folder: Path, *, interrupt_at: int = -1) -> Population:
        envs, eval_envs = (make_envs("CartPole-v1", 2, seed=seed) for seed in range(2))
        population = Population.of(DQN, envs.spec, SEARCH, size=3, config=SMALL)
        replay = ReplayBuffer(envs.spec, capacity=1_000)

        def interrupt(ctx: Context) -> None:
            if ctx.total_step == interrupt_at:
                os.kill(os.getpid(), signal.SIGTERM)
                while not ctx.finish:
                    threading.Event().wait(0.001)

        with Task() as task:
            parts = {"population": population, "replay": replay, "envs": envs, "task": task}
            task.use(mw.for_each(population, learning(envs, replay)))
            task.use(mw.evaluate(population, eval_envs, every=2))
            task.use(interrupt)
            task.use(mw.evolve(population, Tournament(), Mutation(SEARCH), every=2))
            task.use(mw.stop_at(train_iter=15))
            task.use(mw.checkpoint({**parts, "eval_envs": eval_envs}, folder, every=100))
            if (folder / "manifest.json").exists():
                mw.resume({**parts, "eval_envs": eval_envs}, folder)
            task.run()
        return population

    whole = run(tmp_path / "whole")
    with pytest.raises(SystemExit):
        run(tmp_path / "broken", interrupt_at=3)
    resumed = run(tmp_path / "broken")
    assert whole.generation == resumed.generation == 2
    for one, other in zip(whole, resumed, strict=True):
        assert one.birth == other.birth
        states = (leaves(agent.policy.state_dict()) for agent in (one, other))
        for (path, value), (where, found) in zip(*states, strict=True):
            assert path == where
            np.testing.assert_array_equal(value, found)


def test_agents_with_memory_resume_exactly_where_others_have_acted_in_their_envs() -> None:
    def run(steps: int, state: dict[str, Any] | None = None) -> dict[str, Any]:
        with make_envs("CartPole-v1", 2, seed=0) as envs, Task() as task:
            config = {"memory": "gru", "memory_size": 4, "hidden": (8,)}
            population = Population.of(PPO, envs.spec, size=2, config=config)
            learn = mw.for_each(population, lambda a: [mw.collect(a, envs, unroll=3), mw.train(a)])
            parts: dict[str, Any] = {"population": population, "envs": envs, "task": task}
            task.use(learn)
            for name, saved in (state or {}).items():
                parts[name].load_state_dict(saved)
            task.run(max_step=steps)
            return {name: part.state_dict() for name, part in parts.items()}

    whole, resumed = run(3)["population"], run(1, run(2))["population"]
    pairs = zip(leaves(whole), leaves(resumed), strict=True)
    assert all(np.array_equal(one, other) for (_, one), (_, other) in pairs)

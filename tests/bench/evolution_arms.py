"""Does evolution help? Five ways to spend the same env steps and updates, one run at a time.

    python -m tests.bench.evolution_arms run --arm evolution --seed 0 > evolution-0.json
    python -m tests.bench.evolution_arms table *.json

Env steps of evaluations count, and each env step, of whichever kind, pays for one update, so that
all arms spend the same of both. Each agent is evaluated equally often, by as many episodes; the
agent of the best evaluation (the newest of equal ones) is judged by 20 fresh greedy episodes. The
arms differ in their members, and in what becomes of these after an evaluation:

- evolution: a tournament of two, and mutations with their defaults;
- fixed: six settings drawn at random, one replay for all of them, and nothing changes;
- independent: the same with a replay of its own for each, which is random search;
- pbt: the worse third become copies of the better third, optimiser state included, and each
  setting of a copy is multiplied by 1.2 or 0.8 (Jaderberg et al. 2017, arXiv:1711.09846);
- default: one agent with the default settings, which gets all env steps and updates.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from ding_lite import Task, middleware as mw
from ding_lite.evolution import (
    Agent,
    Mutation,
    Population,
    Search,
    Tournament,
    integer,
    log_uniform,
)
from ding_lite.evolution.tournament import Selection
from ding_lite.rl import DQN, DQNConfig, Envs, ReplayBuffer, make_envs, mean_return
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware

ARMS = ("evolution", "fixed", "independent", "pbt", "default")
SEARCH = Search(
    lr=log_uniform(1e-4, 1e-2), batch_size=integer(16, 256), target_tau=log_uniform(1e-3, 1e-1)
)
SIZE = 6
NUM_ENVS = 8
TURN = 64
GENERATION_ENV_STEPS = 3_072
EPISODES = 2
JUDGED_EPISODES = 20
CATCH_UP = 8
SHARE_OF_EXPLORATION = 0.1


class Truncation(Tournament):
    """The worse third become copies of the better third."""

    losers: frozenset[int] = frozenset()
    """The places of members that have just become copies."""

    def select(self, agents: Sequence[Agent]) -> Selection:
        """Let each keep its place, or give it to a copy of a better one."""
        ranked = np.argsort([-agent.mean_fitness(self.window) for agent in agents], kind="stable")
        third = len(agents) // 3
        parents = list(range(len(agents)))
        for loser in ranked[-third:]:
            parents[int(loser)] = int(ranked[self._rng.integers(third)])
        self.losers = frozenset(ranked[-third:].tolist())
        return Selection(int(ranked[0]), tuple(parents))


class Perturbation(Mutation):
    """Changes every setting of members that have just become copies, and nothing else."""

    def __init__(self, truncation: Truncation, seed: int) -> None:
        super().__init__(SEARCH, none=1.0, seed=seed)
        self._truncation = truncation
        self._of_each = [
            Mutation(
                Search(**{name: parameter}), none=0.0, architecture=0.0, weights=0.0,
                hyperparameters=1.0, seed=seed + number,
            )
            for number, (name, parameter) in enumerate(SEARCH.parameters.items())
        ]  # fmt: skip

    def mutate(self, agent: Agent) -> str:
        """Multiply each setting of a copy by its factor up or down."""
        if agent.place not in self._truncation.losers:
            return "none"
        return ", ".join(mutation.mutate(agent) for mutation in self._of_each)


class Chosen:
    """Keeps a copy of the agent of the best evaluation; of equal ones of the newest."""

    __name__ = "chosen"

    def __init__(self, population: Population) -> None:
        self._population = population
        self._value = -np.inf
        self.agent = population[0]

    def __call__(self, ctx: Context) -> None:
        if "eval_value" in ctx and ctx.eval_value >= self._value:
            self._value, self.agent = float(ctx.eval_value), self._population.best.clone()


def run(arm: str, seed: int, *, env: str, max_env_steps: int) -> dict[str, Any]:
    """Spend the env steps as an arm does, and judge the agent that was chosen."""
    size = 1 if arm == "default" else SIZE
    epsilon_steps = round(SHARE_OF_EXPLORATION * max_env_steps / size)
    started = time.process_time()
    with (
        make_envs(env, NUM_ENVS, seed=seed) as envs,
        make_envs(env, EPISODES, seed=seed + 1) as eval_envs,
        make_envs(env, JUDGED_EPISODES, seed=seed + 1_000_003) as fresh_envs,
    ):
        population = Population.of(
            DQN,
            envs.spec,
            None if arm == "default" else SEARCH,
            size=size,
            seed=seed,
            config=DQNConfig(epsilon_steps=epsilon_steps),
        )
        chosen = Chosen(population)
        with Task() as task:
            replays = make_replays(task, population, envs, is_shared=arm != "independent")
            evolve = breeding(arm, seed)
            steps = max(1, GENERATION_ENV_STEPS // (size * TURN))

            def learn(agent: Agent) -> list[Middleware]:
                replay = replays[agent.place]
                collect = mw.collect(agent, envs, steps=TURN)
                return [collect, mw.add_to(replay), mw.train(agent, replay, updates=TURN)]

            task.use(mw.for_each(population, learn))
            task.use(catch_up(population, replays, every=steps))
            task.use(mw.evaluate(population, eval_envs, every=steps, episodes=EPISODES))
            task.use(chosen)
            if evolve is not None:
                task.use(mw.evolve(population, *evolve, every=steps))
            task.use(mw.env_step_budget(max_env_steps, every=steps))
            task.run()
        judged = mean_return(chosen.agent.policy, fresh_envs, episodes=JUDGED_EPISODES)
    return {
        "arm": arm,
        "env": env,
        "seed": seed,
        "env_steps": int(task.ctx.env_step + task.ctx.eval_steps),
        "eval_env_steps": int(task.ctx.eval_steps),
        "updates": int(task.ctx.train_iter),
        "chosen_at": chosen.agent.fitness,
        "judged": judged,
        "hyperparameters": chosen.agent.hyperparameters,
        "hidden": list(chosen.agent.config.hidden),
        "cpu_s": round(time.process_time() - started, 1),
    }


def breeding(arm: str, seed: int) -> tuple[Tournament, Mutation] | None:
    if arm == "evolution":
        return Tournament(seed=seed), Mutation(SEARCH, seed=seed)
    if arm == "pbt":
        truncation = Truncation(seed=seed)
        return truncation, Perturbation(truncation, seed)
    return None


def make_replays(
    task: Task, population: Population, envs: Envs, *, is_shared: bool
) -> list[ReplayBuffer]:
    """Make one replay for all agents, or one for each, and let random actions begin it."""
    count = 1 if is_shared else len(population)
    replays = [ReplayBuffer(envs.spec, capacity=50_000, seed=place) for place in range(count)]
    for replay in replays:
        task.use(mw.random_warmup(envs, replay, steps=max(256, 1_000 // count)))
    return replays * (len(population) // count)


def catch_up(population: Population, replays: Sequence[ReplayBuffer], *, every: int) -> Middleware:
    """Before an evaluation, do the updates that random actions and older evaluations pay for."""
    train = mw.for_each(
        population, lambda agent: [mw.train(agent, replays[agent.place], updates=CATCH_UP)]
    )

    def _catch_up(ctx: Context) -> None:
        if (ctx.total_step + 1) % every:
            return
        due = ctx.env_step + ctx.get("eval_steps", 0)
        while due - ctx.train_iter >= CATCH_UP * len(population):
            train(ctx)

    return _catch_up


def table(results: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        "| arm | mean | median | lowest | each seed | env steps | of evaluations | updates |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        own = sorted((r for r in results if r["arm"] == arm), key=lambda r: int(r["seed"]))
        if not own:
            continue
        judged = [float(result["judged"]) for result in own]
        counts = [
            f"{fmean(result[name] for result in own):,.0f}"
            for name in ("env_steps", "eval_env_steps", "updates")
        ]
        each = ", ".join(f"{value:.0f}" for value in judged)
        cells = [arm, *(f"{f(judged):.0f}" for f in (fmean, median, min)), each, *counts]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.evolution_arms")
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("run")
    one.add_argument("--arm", choices=ARMS, required=True)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--env", default="CartPole-v1")
    one.add_argument("--max-env-steps", type=int, default=60_000)
    several = verbs.add_parser("table")
    several.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    if options.verb == "table":
        print(table([json.loads(path.read_text()) for path in options.files]))
    else:
        steps = options.max_env_steps
        print(json.dumps(run(options.arm, options.seed, env=options.env, max_env_steps=steps)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

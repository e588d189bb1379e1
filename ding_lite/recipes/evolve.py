"""Evolve a population of policies in one call, as `ding-lite evolve` does."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError, kind_of
from ding_lite.evolution.agent import Agent
from ding_lite.evolution.population import Population
from ding_lite.evolution.search import Parameter, Search, integer, log_uniform
from ding_lite.middleware.checks import check_batch
from ding_lite.middleware.keep_best import KeepBestAgent
from ding_lite.middleware.population.evaluate import longest_evaluation
from ding_lite.middleware.report.evolution import draw_lives, show_generations
from ding_lite.options.derived import documented
from ding_lite.recipes.choices import Choices, checked_settings
from ding_lite.recipes.evolve_config import EvolutionConfig, ReplayEvolutionConfig
from ding_lite.recipes.plan import RunPlan, make_plan
from ding_lite.recipes.runs.run import Run
from ding_lite.recipes.saved_options import SavedOptions, search_text
from ding_lite.recipes.table import find_recipe_of_population
from ding_lite.rl.envs.making import EnvLike, EnvMaker, EnvWrapper
from ding_lite.rl.envs.sizes import check_envs_fit
from ding_lite.rl.envs.vector import Envs, make_envs
from ding_lite.rl.protocols import Policy
from ding_lite.rl.weights.flat_module import MakeModule
from ding_lite.rl.weights.optimizers import MakeOptimizer, unused_settings
from ding_lite.runtime.middleware import MakeMiddleware, Middleware
from ding_lite.runtime.task import Task

LINEAGE = "lineage.jsonl"
_STEP_SIZES = ("lr", "actor_lr", "critic_lr")
_VERDICT_SHARE = 0.1
"""The maximum ratio of env steps of a verdict below the target to training env steps."""


@dataclass(frozen=True, kw_only=True)
class EvolveResult:
    """The result of an evolution."""

    best: Agent
    """A copy of the agent at its best evaluation."""
    population: Population
    """All agents at the end of the run."""
    directory: Path
    """The directory of the run's metrics, pictures, lineage and checkpoint."""
    solved: bool | None
    """Whether 20 fresh greedy episodes of the best agent reached the target; None without a
    target."""
    numbers: dict[str, Any]
    """The numbers in the last line of `ding-lite evolve`."""


@dataclass(frozen=True, kw_only=True)
class EvolvePlan(RunPlan):
    """The plan of an evolution."""

    config: EvolutionConfig
    search: Search
    begun: SavedOptions

    @property
    def described(self) -> dict[str, Any]:
        search = {name: search_text(name, what) for name, what in self.search.parameters.items()}
        if self.begun.search is not None and self.begun.search.parameters == self.search.parameters:
            search = {**(self.begun.searched or {})}  # in its own words, which may be a `repr`
        return {**super().described, "search": search}


@documented("evolve")
def evolve(  # noqa: PLR0913, D417 - all of a run; all but four by name, and few at a time
    policy: str | type[Any] | Callable[..., Policy],
    env: EnvLike,
    search: Search | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    env_args: Mapping[str, Any] | None = None,
    wrappers: Sequence[EnvWrapper] = (),
    imports: Sequence[str] = (),
    network: MakeModule | None = None,
    actor: MakeModule | None = None,
    critic: MakeModule | None = None,
    optimizer: MakeOptimizer | None = None,
    device: str | None = None,
    use: Sequence[Middleware] | MakeMiddleware = (),
    config: str | os.PathLike[str] | None = None,
    population: int | None = None,
    num_envs: int | None = None,
    seed: int | None = None,
    target: float | None = None,
    max_env_steps: int | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    smoke: bool = False,
    quiet: bool = False,
    **more: Any,  # noqa: ANN401 - settings, which are checked by their own types
) -> EvolveResult:
    """Evolve a population until its best agent solves an environment, or `max_env_steps` is over.

    The agents differ in their initial weights and in the searched settings. They share the replay
    and the environments, in which they take turns. After each generation the best agents survive,
    and their mutated copies replace the others. Ctrl-C ends the run and saves everything; `resume`
    continues it exactly.

    Args:
        policy: A class or a name, such as `DQN` or `"dqn"`, a `TorchPolicy` of your own, or a
            function of the spec that makes a policy. Each agent has a policy of its own. The
            settings of that policy hold for all agents, except for the searched ones.
        env: An environment as `make_envs` takes it: an id of gymnasium's registry,
            `package.module:Env-v0`, `path/to/file.py:MyEnv`, a class or a function.
        search: The settings in which the agents differ, with their bounds. By default those of the
            preset, or learning rates and batch sizes around their usual values, without the
            settings that are given.
        settings: Settings of the policy and of evolution: a dict or an EasyDict.
        **more: Further settings by name, such as `gamma=0.98`; they override `settings`.

    Raises:
        ConfigError: A name is not known, or a value is out of range.
        MissingExtraError: The environment needs a package that is not installed.
        CheckpointError: The checkpoint to resume does not fit, or the disk is full.

    Example:
        >>> import tempfile, ding_lite
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     result = ding_lite.evolve(
        ...         "dqn", "CartPole-v1", population=2, smoke=True, quiet=True, out=f"{runs}/1"
        ...     )
        >>> result.numbers["generations"] > 0, sorted(result.best.hyperparameters)
        (True, ['batch_size', 'lr'])
    """
    choices = Choices(**locals())  # all arguments, of which it takes the options
    given = {**checked_settings(settings), **more}
    return run_evolution(plan_evolution(policy, env, search, given, choices))


def plan_evolution(
    policy: str | type[Any] | Callable[..., Policy],
    env: EnvLike,
    search: Search | None,
    settings: Mapping[str, Any],
    choices: Choices,
) -> EvolvePlan:
    recipe = find_recipe_of_population(policy, choices.maker(env))
    plan = make_plan(policy, env, settings, choices, recipe=recipe)
    if plan.options.smoke:
        config = cast(EvolutionConfig, plan.config)
        is_vector = EnvMaker.of(plan.options.env).takes_num_envs
        plan = dataclasses.replace(plan, config=config.for_smoke(cuts=not is_vector))
    if search is None:
        search = choices.in_file.search or choices.begun.search
    if search is None:
        search = _usual_search(plan)
    _check_search(search, plan)
    return EvolvePlan(**vars(plan), search=search, begun=choices.begun)


def _usual_search(plan: RunPlan) -> Search:
    """Return the search space of the preset, or the usual one, without the settings given."""
    search: Search = plan.values.get("search") or _default_search(plan.policy_config)
    given = plan.values.names_from("given", "file")
    return search.without({*given, *unused_settings(plan.parts.get("optimizer"))})


def _default_search(config: Any) -> Search:  # noqa: ANN401 - a dataclass of any kind
    """Return a search of learning rates (a fifth to five times) and batch sizes (1/4 to twice)."""
    parameters: dict[str, Parameter] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in _STEP_SIZES:
            bounds = (float(f"{each:.12g}") for each in (value / 5.0, value * 5.0))
            parameters[field.name] = log_uniform(*bounds)
        elif field.name == "batch_size" and value is not None:
            parameters[field.name] = integer(max(1, value // 4), value * 2)
    return Search(**parameters)


def _check_search(search: object, plan: RunPlan) -> None:
    if not isinstance(search, Search):
        raise ConfigError(
            f"`search` is {kind_of(search)}; a Search was expected: "
            f"Search(lr=log_uniform(1e-4, 1e-2))."
        )
    search.check(plan.policy_config)
    sizes = search.parameters.get("batch_size")
    if sizes is not None and isinstance(plan.config, ReplayEvolutionConfig):
        largest = max(map(int, cast(Iterable[int], sizes.examples())))
        check_batch(largest, capacity=plan.config.capacity)  # not when a mutation reaches it
    both = sorted(set(plan.values.names_from("given")) & set(search.parameters))
    if both:
        raise ConfigError(
            f"`{both[0]}` is searched, and was given as a setting, too: {plan.values[both[0]]!r}. "
            f"Leave it out of one of them."
        )


def run_evolution(plan: EvolvePlan) -> EvolveResult:
    plan.check_env()
    options, config = plan.options, plan.config
    with ExitStack() as ends:
        everywhere = _make_envs(plan, ends)
        envs = everywhere["envs"]
        elsewhere = {} if options.device == "cpu" else {"device": options.device}
        population = Population.of(
            partial(plan.recipe.policy, **elsewhere),
            envs.spec,
            plan.search,
            size=config.population,
            seed=options.seed,
            config=plan.policy_config,
            **plan.parts,
        )
        config.check_sizes(envs)
        task, agents = Task(), 2 * len(population)  # half of the env steps is for evaluations
        config = config.within(options.max_env_steps, envs.num_envs, agents=agents)
        # Before there is a directory, as it refuses settings that do not fit.
        stored = config.learn(task, population, envs, seed=options.seed)
        parts = {"population": population, **everywhere, "task": task, **stored}
        with plan.open_run() as run:
            best_agent = mw.keep_best(population, run.best)
            taken = _run(plan, run, config, parts, best_agent)
            numbers = run.judge(best_agent.agent.policy, eval_share=_VERDICT_SHARE)
            numbers |= {
                "population": len(population),
                "generations": population.generation,
                "hyperparameters": best_agent.agent.hyperparameters,
                **taken,
            }
            notes = [f"  lineage      {run.shown / LINEAGE}", taken["exceeded"]]
            if best_agent.agent.fitness is None:
                notes.append(
                    f"No agent was evaluated, so this is the first one: a generation has "
                    f"{config.eval_every:,} env steps, the run {options.max_env_steps:,}. Make "
                    f"generations shorter (--set eval_every=...) or the run longer."
                )
            run.explain(numbers, try_next="\n".join(filter(None, notes)))
    return EvolveResult(
        best=best_agent.agent,
        population=population,
        directory=run.shown,
        solved=numbers["solved"],
        numbers=numbers,
    )


def _make_envs(plan: EvolvePlan, ends: ExitStack) -> dict[str, Envs]:
    """Make the environments of training, of evaluations, and of whole episodes if those are cut."""
    options, config, count = plan.options, plan.config, plan.config.eval_episodes

    def make(env: EnvLike, num_envs: int, seed: int, **how: Any) -> Envs:  # noqa: ANN401 - of `make_envs`
        made = make_envs(env, num_envs, seed=seed, frame_stack=config.frame_stack, **how)
        return ends.enter_context(made)

    from_env = options.env if plan.vector is None else plan.vector
    train = make(from_env, options.num_envs, options.seed, **config.learning_from)
    check_envs_fit(train.spec, count, is_native=True, eval_episodes=count)
    maker = EnvMaker.of(options.env)
    most = config.eval_limit  # of vectors only a limit that was asked for, which `make` refuses
    if not maker.takes_num_envs:
        most = config.evaluation_limit(maker.spec().max_episode_steps)
    limit = {} if most is None else {"max_episode_steps": most}
    evaluate = make(options.env, count, options.seed_for("evaluation"), env_args=limit)
    seed = options.seed_for("confirmation")
    confirm = {"confirm_envs": make(options.env, count, seed)} if limit else {}
    return {"envs": train, "eval_envs": evaluate, **confirm}


def _run(
    plan: EvolvePlan,
    run: Run,
    config: EvolutionConfig,
    parts: Mapping[str, Any],
    best_agent: KeepBestAgent,
) -> dict[str, Any]:
    """Run the evolution; return the env steps of evaluations and any excess over the budget."""
    search, population = plan.search, best_agent.population
    options, eval_envs = run.options, parts["eval_envs"]
    generation = config.every(config.eval_every, options.num_envs)
    goal = options.target + config.target_margin
    evaluate = mw.evaluate(
        population,
        eval_envs,
        every=generation,
        stop_at=goal,
        episodes=config.eval_episodes,
        confirm=config.confirm_episodes,
        confirm_envs=parts.get("confirm_envs"),
        max_env_steps=options.max_env_steps,
    )
    breed = mw.evolve(
        population,
        config.tournament(options.seed_for("evolve/tournament")),
        config.mutation(search, options.seed_for("evolve/mutation")),
        every=generation,
        lineage=run.directory / LINEAGE,
    )
    budget = mw.env_step_budget(
        options.max_env_steps,
        every=generation,
        longest=longest_evaluation(eval_envs, config.eval_episodes * len(population)),
    )
    with parts["task"] as task:
        task.use(evaluate).use(best_agent).use(breed).use(budget)
        plan.save_and_report(task, run, parts, config)
        if not run.quiet:
            task.use(show_generations(population))
        run.resume(parts, stop_at=goal)
        if budget.had_ended(task.ctx):
            task.finish = True
        try:
            task.run()
        finally:
            lives = [*population.lives, *population.lives_now()]
            draw_lives(lives, run.directory, title=plan.title, target=options.goal)
    return {
        "eval_env_steps": int(task.ctx.get("eval_steps", 0)),
        "exceeded": budget.overrun(task.ctx),
    }

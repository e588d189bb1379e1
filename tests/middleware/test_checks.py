"""Periods in steps and in env steps, the same for all middleware that are due now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError
from ding_lite.evolution import Mutation, Population, Tournament
from ding_lite.rl import DQN, Envs, load_checkpoint
from ding_lite.rl.checkpoint.save_load import MANIFEST
from ding_lite.runtime import Context, Middleware
from ding_lite.runtime.middleware import LAST
from tests.middleware.running import run_steps

Make = Callable[..., Middleware]


@pytest.fixture
def population(envs: Envs) -> Population:
    return Population.of(DQN, envs.spec, size=2, config={"hidden": (4,)})


@pytest.fixture
def makers(policy: DQN, population: Population, eval_envs: Envs, tmp_path: Path) -> dict[str, Make]:
    """Return the factories that take a period of env steps, but for their period."""

    def evolve_evaluated(**period: Any) -> Middleware:
        evolve = mw.evolve(population, Tournament(), Mutation(none=1.0), **period)
        for agent in population:
            agent.note_evaluation(1.0)
        return evolve

    return {
        "evaluate": lambda **period: mw.evaluate(policy, eval_envs, **period),
        "evaluate_population": lambda **period: mw.evaluate(population, eval_envs, **period),
        "evolve": evolve_evaluated,
        "checkpoint": lambda **period: mw.checkpoint(policy, tmp_path / "saved", **period),
        "throughput": mw.throughput,
        "report": lambda **period: mw.report(lambda *_: None, **period),
        "log": mw.log,
        "jsonl": lambda **period: mw.jsonl(tmp_path / "metrics.jsonl", **period),
        "tensorboard": lambda **period: mw.tensorboard(tmp_path / "events", **period),
        "wandb": mw.wandb,
        "mlflow": mw.mlflow,
    }


def test_a_period_is_given_in_one_unit_as_a_whole_number(makers: dict[str, Make]) -> None:
    for make in makers.values():
        with pytest.raises(ConfigError, match="`every` 5 and `every_env_steps` 40 was given; exac"):
            make(every=5, every_env_steps=40)
        with pytest.raises(ConfigError, match="`every` is 0; it must be a whole number from 1"):
            make(every=0)
        with pytest.raises(ConfigError, match=r"`every_env_steps` is 1\.5"):
            make(every_env_steps=1.5)
    for name in makers.keys() - {"tensorboard", "wandb", "mlflow"}:  # these have a usual period
        with pytest.raises(ConfigError, match="No period was given; exactly one of `every`"):
            makers[name]()


def run(
    make: Make, has_happened: Callable[[Context], bool], *, steps: list[int], **period: int
) -> list[int]:
    """Run steps of 7 env steps, in parts with a resume between them; return the due env steps."""
    due: list[int] = []
    state: dict[str, Any] | None = None

    def note(ctx: Context) -> Iterator[Any]:
        yield
        yield LAST  # a checkpoint is saved after the way out
        if has_happened(ctx):
            due.append(ctx.env_step)

    def count(ctx: Context) -> None:
        ctx.env_step = ctx.get("env_step", 0) + 7
        ctx.keep("env_step")

    for part in steps:
        state = run_steps(note, count, make(**period), steps=part, state=state).state_dict()
    return due


@pytest.mark.parametrize("steps", [[12], [5, 1, 6], [6, 6]])
def test_middleware_are_due_at_multiples_also_over_a_resume(makers, population, tmp_path, steps):
    reported: list[int] = []

    def has_saved(ctx: Context) -> bool:
        saved: Path = tmp_path / "saved"
        return (saved / MANIFEST).exists() and load_checkpoint(saved).meta["env_step"] == (
            ctx.env_step
        )

    makers["report"] = lambda **period: mw.report(lambda _, x: reported.append(x), **period)
    happened: dict[str, Callable[[Context], bool]] = {
        "evaluate": lambda ctx: "eval_value" in ctx,
        "evaluate_population": lambda ctx: "eval_value" in ctx,
        "checkpoint": has_saved,
        "throughput": lambda ctx: "memory_mb" in ctx.metrics,
        "report": lambda ctx: ctx.env_step in reported,
    }
    for name, has_happened in happened.items():
        due = run(makers[name], has_happened, steps=steps, every_env_steps=20)
        assert due == [21, 42, 63, 84], name

    def has_bred(ctx: Context) -> bool:
        for agent in population:
            agent.note_evaluation(1.0)
        return "generation" in ctx.metrics

    bred = run(makers["evolve"], has_bred, steps=steps, every_env_steps=20)
    assert bred == [21, 42, 63, 84]


def test_a_period_that_is_shorter_than_a_step_is_due_in_every_step(makers: dict[str, Make]) -> None:
    due = run(
        makers["throughput"], lambda ctx: "memory_mb" in ctx.metrics, steps=[3], every_env_steps=2
    )
    assert due == [7, 14, 21]

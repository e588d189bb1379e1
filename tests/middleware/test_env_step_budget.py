"""An evolution ends within its env steps, behind an evaluation."""

from __future__ import annotations

import pytest

from ding_lite import middleware as mw
from ding_lite.middleware.env_step_budget import EnvStepBudget
from ding_lite.runtime import Context, Task
from tests.middleware.running import run_steps


def run(budget: EnvStepBudget, evaluations: list[int]) -> Task:
    """Take generations of two steps with 50 env steps each."""

    def spend(ctx: Context) -> None:
        ctx.env_step = ctx.get("env_step", 0) + 50
        ctx.eval_steps = ctx.get("eval_steps", 0)
        if ctx.total_step % 2:
            ctx.eval_steps += evaluations[ctx.total_step // 2]
        ctx.keep("env_step", "eval_steps")

    return run_steps(spend, budget, steps=2 * len(evaluations))


@pytest.mark.parametrize(
    ("longest", "evaluations", "expected"),
    [
        # Six generations take 960; a fifth leaves 200, and a sixth may take 180.
        (80, [60] * 20, 960),
        # Without a useful limit the newest tells: 4 generations have taken 550; the next one may
        # take 100 and half more than 80.
        (None, [10, 20, 40, 80, 160], 810),
        (400, [10, 20, 40, 80, 160], 810),
    ],
)
def test_it_ends_where_the_next_evaluation_might_take_too_much(longest, evaluations, expected):
    budget = mw.env_step_budget(1_000, every=2, longest=longest)
    ctx = run(budget, evaluations).ctx
    assert ctx.env_step + ctx.eval_steps == expected
    assert budget.overrun(ctx) is None


def test_an_overrun_is_reported_with_its_reason() -> None:
    budget = mw.env_step_budget(500, every=2, longest=None)
    fault = budget.overrun(run(budget, [10, 900]).ctx) or ""
    assert fault.startswith("610 env steps more than 500 were made: the newest evaluation took 900")
    budget = mw.env_step_budget(120, every=100)
    fault = budget.overrun(run(budget, [0] * 5).ctx) or ""
    why = "the run ends with a whole step of the pipeline."
    assert fault == f"30 env steps more than 120 were made: {why}"


def test_a_run_that_goes_on_knows_whether_it_had_ended() -> None:
    budget = mw.env_step_budget(1_000, every=2, longest=80)
    task = run(budget, [60] * 20)
    for max_env_steps, has_ended in ((1_000, True), (2_000, False)):
        again = mw.env_step_budget(max_env_steps, every=2, longest=80)
        again.load_state_dict(budget.state_dict())
        assert again.had_ended(task.ctx) is has_ended
    fresh = mw.env_step_budget(1_000, every=2, longest=80)
    assert not fresh.had_ended(Context(total_step=0))

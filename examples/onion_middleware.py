"""Three middleware of your own around a DQN: code before and after the rest of the step.

A generator function with one `yield` surrounds the later middleware of the step. The code before
the `yield` runs before them, the code behind it after them, and their exceptions are raised at the
`yield`, where they may be handled. Here the weights are broken once, on purpose.
"""

import sys
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter

import torch

from ding_lite import Context, Middleware, Task, middleware as mw
from ding_lite.errors import NonFiniteError
from ding_lite.recipes import Run, parse_options, run_program
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs


def tell_the_way(name: str) -> Middleware:
    """Print when the first step reaches this middleware, and when it returns."""

    def _tell_the_way(ctx: Context) -> Iterator[None]:
        if ctx.total_step == 0:
            sys.stderr.write(f"into {name}\n")
        yield
        if ctx.total_step == 0:
            sys.stderr.write(f"out of {name}\n")

    return _tell_the_way


def time_steps(report: Callable[[float], None]) -> Middleware:
    """Report the seconds that the later middleware take in each step."""

    def _time_steps(ctx: Context) -> Iterator[None]:
        started = perf_counter()
        yield
        report(perf_counter() - started)

    return _time_steps


def recover(policy: DQN, *, every: int) -> Middleware:
    """Restore the last good state of a policy when a number is not finite."""
    good = policy.state_dict()

    def _recover(ctx: Context) -> Iterator[None]:
        nonlocal good
        if ctx.total_step % every == 0:
            good = policy.state_dict()
        try:
            yield
        except NonFiniteError as error:
            policy.load_state_dict(good)
            sys.stderr.write(f"step {ctx.total_step}: {error}\n  went back to the good weights\n")

    return _recover


def break_weights(policy: DQN, *, at_step: int) -> Middleware:
    """Set the weights to NaN once, as a far too high learning rate would."""

    def _break_weights(ctx: Context) -> None:
        if ctx.total_step == at_step:
            policy.load_weights({k: v * torch.nan for k, v in policy.weights().items()})

    return _break_weights


def main() -> None:
    """Train with the three middleware."""
    options = parse_options(__doc__, env="CartPole-v1", max_env_steps=20_000, target=475.0)
    envs = make_envs(options.env, num_envs=8, seed=options.seed)
    eval_envs = make_envs(options.env, num_envs=20, seed=options.seed + 1)
    config = DQNConfig(lr=2e-3, hidden=(64, 64), target_tau=0.01, seed=options.seed)
    seconds: list[float] = []
    policy = DQN(envs.spec, config)
    replay = ReplayBuffer(envs.spec, capacity=50_000, seed=options.seed)

    with Run("onion_middleware", options, config=config) as run:
        with Task() as task:
            task.use(tell_the_way("the outer layer"))
            task.use(recover(policy, every=50))
            task.use(time_steps(seconds.append))
            task.use(tell_the_way("the inner layer"))
            task.use(mw.collect(policy, envs, steps=8))
            task.use(mw.add_to(replay))
            task.use(break_weights(policy, at_step=160))
            task.use(mw.train(policy, replay, updates=8))
            task.use(mw.evaluate(policy, eval_envs, every=125, stop_at=options.target))
            task.use(mw.stop_at(env_step=options.max_env_steps))
            task.use(run.time(task, every=125))
            task.use(mw.jsonl(run.metrics, every=125))
            task.use(mw.log(every=125))
            task.run()
        sys.stderr.write(f"a step took {1e3 * median(seconds):.2f} ms\n")
        run.conclude(policy)


if __name__ == "__main__":
    run_program(main)

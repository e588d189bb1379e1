"""Programs as users write them, with types: mypy --strict has nothing to say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import ding_lite
from ding_lite import Agent, Context, Middleware, Task, middleware as mw
from ding_lite.evolution import Population
from ding_lite.recipes import export_policy, load_policy
from ding_lite.rl import (
    DQN,
    R2D2,
    DQNConfig,
    Envs,
    Memory,
    Policy,
    PrioritizedReplay,
    Replay,
    ReplayBuffer,
    Transitions,
    linear,
    make_envs,
    mean_return,
)
from ding_lite.runtime import StepTimer


def dqn_on_cartpole() -> None:
    envs = make_envs("CartPole-v1", num_envs=8, seed=0)
    eval_envs = make_envs("CartPole-v1", num_envs=5, seed=1)
    policy = DQN(envs.spec, DQNConfig(lr=1e-3, hidden=(128, 128), double=True))
    replay = ReplayBuffer(envs.spec, capacity=50_000)
    epsilon = linear(1.0, 0.05, steps=10_000)

    with Task() as task:
        assert_type(task, Task)
        task.use_step_wrapper(StepTimer(print_per_step=500))
        task.use(mw.evaluate(policy, eval_envs, every=250, stop_at=475.0))
        task.use(mw.collect(policy, envs, steps=8, epsilon=epsilon))
        task.use(mw.add_to(replay), filter_labels=["standalone", "node.0"])
        task.use(mw.train(policy, replay, batch_size=128, updates=2), lock=True)
        task.use(mw.checkpoint(policy, "runs/cartpole", every=1_000))
        task.use(mw.log(every=100)).use(mw.log(every=1_000))
        task.run(max_step=20_000)


def prioritized_dqn() -> None:
    envs = make_envs("CartPole-v1", num_envs=8, seed=0)
    policy = DQN(envs.spec)
    replay = PrioritizedReplay(envs.spec, capacity=50_000, alpha=0.6)

    with Task() as task:
        task.use(mw.collect(policy, envs, steps=8))
        task.use(mw.add_to(replay))
        task.use(mw.train(policy, replay, beta=linear(0.4, 1.0, steps=50_000)))
        task.use(mw.update_priorities(replay))
        task.run(max_step=20_000)


def evaluate(task: Task, policy: DQN, envs: Envs, stop_at: float) -> Middleware:
    """Be a factory of the user's own, as for a second node."""

    def _evaluate(ctx: Context) -> None:
        ctx.setdefault("train_iter", -1)
        if task.router.is_active:
            latest = task.wait_parallel_ctx(newer_than={"train_iter": ctx.train_iter})
            if latest is None:
                return
            policy.load_weights(latest.state_dict)
            ctx.train_iter = latest.train_iter
            ctx.keep("train_iter")
        ctx.eval_value = mean_return(policy, envs)
        if ctx.eval_value >= stop_at:
            ctx.finish = True

    return _evaluate


def function(ctx: Context) -> None:
    ctx.loss = ctx["loss"] + 1
    ctx.metrics["loss"] = ctx.get("loss", 0.0)


def generator(ctx: Context) -> Iterator[None]:
    ctx.before = True
    yield
    ctx.after = True


async def coroutine(ctx: Context) -> None:
    ctx.seen = True


async def async_generator(ctx: Context) -> AsyncIterator[None]:
    yield


class CallableObject:
    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, ctx: Context) -> None:
        ctx.times = self.times


def around(fn: Middleware) -> Middleware:
    """Be a step wrapper of the user's own."""

    def wrapped(ctx: Context) -> Iterator[None]:
        out = fn(ctx)
        yield
        del out

    return wrapped


def every_shape() -> None:
    task = Task(async_mode=True, n_async_workers=2, ctx=Context(loss=0.0))
    for middleware in (function, generator, coroutine, async_generator, CallableObject(3)):
        task.use(middleware)
    task.use(lambda ctx: ctx.keep("loss"))
    task.use(task.serial(function, generator)).use(task.parallel(coroutine, function))
    task.use_step_wrapper(around)
    task.on("evaluated", lambda value: None).emit("evaluated", 3.0)
    task.forward(function).backward().renew().sync()
    task.finish = True
    assert_type(task.finish, bool)
    assert_type(task.ctx, Context)


class LastBatch:
    """A replay of the user's own: any object with these methods will do."""

    def __init__(self) -> None:
        self.last: list[Transitions] = []

    @property
    def capacity(self) -> int:
        return 1

    def __len__(self) -> int:
        return len(self.last)

    def add(self, transitions: Transitions) -> None:
        self.last = [transitions]

    def sample(self, batch_size: int) -> Transitions:
        return self.last[0]


def protocols(envs: Envs) -> tuple[Policy, Replay]:
    replay = LastBatch()
    policy = DQN(envs.spec)
    task = Task()
    task.use(mw.collect(policy, envs, steps=envs.num_envs))
    task.use(mw.add_to(replay))
    task.use(mw.train(policy, replay))
    return policy, replay


def trained() -> R2D2:
    result = ding_lite.train("dqn", "CartPole-v1", max_env_steps=400)
    found = load_policy(result.directory)
    found.predict([0.0, 0.0, 0.0, 0.0])
    export_policy(found, "policy.onnx")
    mean_return(found, make_envs("CartPole-v1", 2))
    policy: DQN = result.policy
    assert_type(policy.train_iter, int)
    recurrent: R2D2 = load_policy("runs/r2d2")
    assert_type(recurrent.make_memory(2), Memory)
    return recurrent


def evolving(envs: Envs, replay: Replay) -> None:
    def learn(agent: Agent) -> list[Middleware]:
        return [mw.collect(agent, envs, steps=16), mw.add_to(replay), mw.train(agent, replay)]

    population = Population.of(DQN, envs.spec, size=2)
    Task().use(mw.for_each(population, learn)).use(mw.evaluate(population, envs, every=2))
    population.best.policy.predict([0.0, 0.0, 0.0, 0.0])

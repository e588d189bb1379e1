"""Mistakes that mypy finds before the program runs: each marked line must be refused."""

from __future__ import annotations

from ding_lite import Context, Task, middleware as mw
from ding_lite.rl import DQN, DQNConfig, Envs, ReplayBuffer, make_envs, mean_return
from ding_lite.settings import Settings, as_config


def no_argument() -> None: ...


def two_arguments(ctx: Context, task: Task) -> None: ...


def wants_a_list(ctx: list[int]) -> None: ...


def a_pipeline(task: Task) -> None:
    task.use(no_argument)  # error: arg-type
    task.use(two_arguments)  # error: arg-type
    task.use(wants_a_list)  # error: arg-type
    task.use(None)  # error: arg-type
    task.use(no_argument())  # error: arg-type: "None"
    task.use(lambda: None)  # error: arg-type
    task.use_step_wrapper(no_argument)  # error: arg-type
    task.run("3")  # error: arg-type
    task.run(max_steps=3)  # error: call-arg: did you mean "max_step"?
    task.runs()  # error: attr-defined: maybe "run"?
    task.finish = "yes"  # error: assignment
    Task(True)  # error: call-arg
    Task(async_mode="yes")  # error: arg-type
    Task(workers=3)  # error: call-arg


def environments() -> None:
    make_envs("CartPole-v1", "8")  # error: arg-type
    make_envs("CartPole-v1", 8, 0)  # error: call-arg
    make_envs("CartPole-v1", 8, mode="fast")  # error: arg-type


def settings(envs: Envs) -> None:
    DQNConfig(1e-3)  # error: call-arg
    DQNConfig(learning_rate=1e-3)  # error: call-arg
    DQNConfig(lr="fast")  # error: arg-type
    DQNConfig(loss="mae")  # error: arg-type
    DQNConfig().lr = 1e-3  # error: misc: read-only
    DQN(envs)  # error: arg-type
    DQN(envs.spec, 1e-3)  # error: arg-type
    as_config(DQNConfig, {"lr": 1e-3}).learning_rate  # error: attr-defined
    as_config(DQNConfig, 3)  # error: arg-type
    Settings.from_environ().node_id + 1  # error: operator


class OnlyActs:
    """Not a policy: it cannot learn."""

    def act(self, obs: object, *, explore: bool = True) -> object: ...


def stages(policy: DQN, envs: Envs, replay: ReplayBuffer) -> None:
    mw.collect(policy, envs)  # error: call-overload
    mw.collect(policy, envs, 8)  # error: call-overload
    mw.collect(policy, replay, steps=8)  # error: call-overload
    mw.collect(envs, policy, steps=8)  # error: call-overload
    mw.collect(policy, envs, unroll=8)  # error: call-overload
    mw.add_to(policy)  # error: arg-type: "Replay | EpisodeBuffer"
    mw.train(policy, replay, 128)  # error: call-arg
    mw.train(OnlyActs(), replay)  # error: arg-type: "Policy"
    mw.train(policy, replay, beta=0.4)  # error: arg-type: "Schedule | None"
    mw.update_priorities(replay)  # error: arg-type: "Prioritized"
    mw.evaluate(policy, envs, every="often")  # error: call-overload
    mean_return(policy)  # error: call-arg

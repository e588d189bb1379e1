"""Env steps a second of two collectors elsewhere: `python tests/bench/distributed_peers.py NAME`.

`sample_factory` (its APPO, with `numpy<2`) and `rllib` (its APPO, `ray[rllib]`) are each to be
installed in an environment of its own. The clock is that of `bench_impala`, beside which to run
it: the wall's, from when learning has gone on for a while, with as many collectors, envs and
steps of a rollout.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from time import perf_counter
from typing import Any

NUM_ENVS, UNROLL = 16, 20
WARM_UP_S, SECONDS = 10.0, 30.0


def sample_factory() -> float:
    """Train its APPO with two workers on the CPU."""
    train: Any = import_module("sample_factory.train")
    arguments: Any = import_module("sample_factory.cfg.arguments")
    envs: Any = import_module("sample_factory.envs.env_utils")
    observer: Any = import_module("sample_factory.algo.runners.runner").AlgoObserver
    marks: list[tuple[float, int]] = []

    def on_training_step(_self: object, runner: Any, _iteration: int) -> None:
        marks.append((perf_counter(), sum(runner.env_steps.values())))
        if marks[-1][0] >= marks[0][0] + WARM_UP_S + SECONDS:
            runner.cfg.train_for_env_steps = 0

    counting = type("Counting", (observer,), {"on_training_step": on_training_step})
    envs.register_env("CartPole-v1", make_env)
    with tempfile.TemporaryDirectory() as folder:
        options = {
            **{"algo": "APPO", "env": "CartPole-v1", "device": "cpu", "train_dir": folder},
            **{"num_workers": 2, "num_envs_per_worker": NUM_ENVS, "worker_num_splits": 2},
            **{"rollout": UNROLL, "batch_size": 2 * NUM_ENVS * UNROLL, "num_epochs": 1},
            "use_rnn": False,
        }
        argv = [f"--{name}={value}" for name, value in options.items()]
        parser, _ = arguments.parse_sf_args(argv)
        _, runner = train.make_runner(arguments.parse_full_cfg(parser, argv))
        runner.register_observer(counting())
        runner.init()
        runner.run()
    return rate(marks)


def make_env(name: str, _cfg: object, _env_config: object, render_mode: str | None = None) -> Any:
    """Make an environment for Sample Factory, in one of its own processes."""
    gymnasium: Any = import_module("gymnasium")
    return gymnasium.make(name, render_mode=render_mode)


def rllib() -> float:
    """Train its APPO with two env runners on the CPU."""
    ray: Any = import_module("ray")
    # Of a machine of two cores it would wait for more: it wants one for each process.
    ray.init(address="local", num_cpus=4, include_dashboard=False)
    config = import_module("ray.rllib.algorithms.appo").APPOConfig().environment("CartPole-v1")
    config = config.env_runners(
        num_env_runners=2, num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=UNROLL
    )
    config = config.training(train_batch_size_per_learner=2 * NUM_ENVS * UNROLL)
    algorithm: Any = config.reporting(min_time_s_per_iteration=1).build_algo()
    marks: list[tuple[float, int]] = []
    while not marks or perf_counter() < marks[0][0] + WARM_UP_S + SECONDS:
        found = algorithm.train()["env_runners"].get("num_env_steps_sampled_lifetime", 0)
        if found:
            marks.append((perf_counter(), int(found)))
    algorithm.stop()
    ray.shutdown()
    return rate(marks)


def rate(marks: list[tuple[float, int]]) -> float:
    """Return env steps a second from the end of the warm-up on."""
    late = [mark for mark in marks if mark[0] >= marks[0][0] + WARM_UP_S]
    (began, before), (ended, after) = late[0], late[-1]
    return (after - before) / (ended - began)


if __name__ == "__main__":
    peers: dict[str, Callable[[], float]] = {"sample_factory": sample_factory, "rllib": rllib}
    print(f"{sys.argv[1]}: {peers[sys.argv[1]]():,.0f} env steps/s")

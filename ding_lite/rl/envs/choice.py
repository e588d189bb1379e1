"""The choice of the fastest mode of stepping environments, by measurement.

Stepping one after the other is fastest for environments with fast env steps, worker processes for
slow ones, and an array program, if there is one, for many environments. A few env steps are
measured, of environments that are not used otherwise. All modes play the same episodes, so the
choice changes only the duration of a run.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable
from statistics import median
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.rl.envs.actions import RandomActions
from ding_lite.rl.envs.checks.faults import raising_env_errors
from ding_lite.rl.envs.making import EnvMaker, EnvsMode
from ding_lite.rl.envs.native_cartpole import OURS
from ding_lite.rl.envs.sources import Env, EnvLoop, NativeVector, Source
from ding_lite.rl.envs.workers import WorkerSource, num_cores
from ding_lite.rl.spec import EnvSpec

logger = logging.getLogger(__name__)

ROUND_TRIP_S = 60e-6
"""Seconds of a round trip to worker processes, without the part of each process."""
ROUND_TRIP_OF_EACH_S = 30e-6
"""Further seconds of a round trip for each worker process."""
MIN_GAIN = 1.5
"""The minimum speedup by processes, because they take cores from other work."""
MIN_SAVING_S = 1e-3
"""The minimum saving in a step of all environments that is worth starting processes."""
_MIN_STEPS, _MAX_STEPS = 3, 64
_ENOUGH_S = 0.03


def choose(
    maker: EnvMaker,
    env: Env,
    spec: EnvSpec,
    num_envs: int,
    make_source: Callable[[str], Source],
) -> EnvsMode:
    mode: EnvsMode
    kind = maker.native_kind()
    if kind == "theirs":  # its episodes differ: a measurement must not decide
        mode, why = "native", "there is a program that steps all of them at once"
    else:
        cores = 1 if multiprocessing.current_process().daemon else num_cores()
        native = make_source("native") if kind == "ours" else None
        mode, why = choose_mode(env, spec, num_envs, num_cores=cores, native=native)
        if native is not None:
            native.close()
    name = maker.name
    logger.info("stepping %d environments of %s in mode %s: %s", num_envs, name, mode, why)
    return mode


def choose_mode(
    env: Env,
    spec: EnvSpec,
    num_envs: int,
    *,
    num_cores: int,
    native: Source | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[EnvsMode, str]:
    """Return the fastest mode and the reason; discard `env` and `native` afterwards."""
    if num_envs == 1:
        return "sync", "there is only one"
    if num_cores == 1 and native is None:
        return "sync", "there is one processor core"
    one = EnvLoop([env], seeds=[0], spec=spec)
    step_s = seconds_of_a_step(one, spec, 1, clock=clock)
    best: EnvsMode = "sync"
    best_s = num_envs * step_s
    why = (
        f"an env step takes {step_s * 1e6:.0f} us; one of all {num_envs} about "
        f"{best_s * 1e6:.0f} us one after the other"
    )
    if native is not None:
        native_s = seconds_of_a_step(native, spec, num_envs, clock=clock)
        why += f", {native_s * 1e6:.0f} us as one array program"
        if native_s < best_s:
            best, best_s = "native", native_s
    if num_cores == 1:
        return best, f"{why}; there is one processor core"
    workers = min(num_cores, num_envs)
    there_s = -(-num_envs // workers) * step_s + ROUND_TRIP_S + workers * ROUND_TRIP_OF_EACH_S
    why += f", {there_s * 1e6:.0f} us in {workers} processes"
    pays = best_s > max(MIN_GAIN * there_s, there_s + MIN_SAVING_S)
    return ("async" if pays else best), why


def seconds_of_a_step(source: Source, spec: EnvSpec, num_envs: int, *, clock: Clock) -> float:
    """Return the median seconds of a step with random legal actions, without resets.

    On a busy machine other processes interrupt some steps, which hardly changes the median.
    """
    actions = RandomActions(spec, num_envs, seed=0)
    frames = source.reset()
    measured: list[float] = []
    while len(measured) <= _MIN_STEPS or (
        len(measured) <= _MAX_STEPS and sum(measured[1:]) < _ENOUGH_S
    ):
        action = actions.draw(spec.action_mask(frames))
        begun = clock.now()
        frames, _, terminated, truncated = source.step(action)
        measured.append(clock.now() - begun)
        ended_N = terminated | truncated
        if ended_N.any():
            frames[ended_N] = source.reset_where(ended_N)
    return median(measured[1:])  # the first step may include preparations


def make_source_of(maker: EnvMaker, mode: str, *, spec: EnvSpec, seeds: list[int]) -> Source:
    if mode == "async":
        workers = min(len(seeds), max(2, num_cores()))
        return WorkerSource(maker, spec=spec, seeds=seeds, num_workers=workers)
    registered = maker.registered
    if mode == "sync" or registered is None:
        return EnvLoop(maker.make(len(seeds)), seeds=seeds, spec=spec)

    entry_point = registered.vector_entry_point
    if isinstance(entry_point, str) and entry_point in OURS:
        settings = {**registered.kwargs, **maker.args}
        settings.pop("max_episode_steps", None)
        limit = maker.time_limit(None)
        return OURS[entry_point](seeds, max_episode_steps=limit, settings=settings)
    with raising_env_errors(f"The vector form of {spec.env_id}", "__init__"):
        vector: VectorEnv[Any, Any, Any] = gymnasium.make_vec(
            registered, len(seeds), vectorization_mode="vector_entry_point", **maker.args
        )
    return NativeVector(vector, seed=seeds[0], spec=spec)

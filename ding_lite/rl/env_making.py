"""From an environment's name to something that makes it, and how many of it are best stepped.

One after the other is fastest for environments that compute little; in processes of their own
for those that compute long. Which it is, is measured: a few env steps of one that is thrown
away. Both play the same episodes, so what is chosen changes how long a run takes and nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec as Registration, load_env_creator
from gymnasium.vector import AutoresetMode

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.errors import ConfigError, MissingExtraError, did_you_mean
from ding_lite.rl.env_forms import supported_action_space, supported_obs_space
from ding_lite.rl.env_sources import OURS, Env
from ding_lite.rl.spec import EnvSpec

EnvsMode: TypeAlias = Literal["auto", "native", "sync", "async"]
EnvWrapper: TypeAlias = Callable[[Env], Env]

NATIVE_FROM = 5
"""An array program costs the same for few environments as for many; fewer than these are quicker
one after the other. It is not measured each time, as a run that goes on must find the same."""
ROUND_TRIP_S = 60e-6
"""What it takes to tell processes to step and to hear that they have; and for each of them:"""
ROUND_TRIP_OF_EACH_S = 30e-6
MIN_GAIN = 1.5
"""Processes take cores from whatever else is to be done; they must be clearly faster."""
MIN_SAVING_S = 1e-3
"""Less than that, at a step of all environments, is not worth starting processes for."""
_MIN_STEPS, _MAX_STEPS = 3, 64
_ENOUGH_S = 0.03


@dataclass(frozen=True)
class EnvMaker:
    """Makes environments of one kind, here or in another process.

    Args:
        registered: What gymnasium knows about it.
        settings: Keywords for its constructor.
        wrappers: Applied to each environment, the first one innermost.
    """

    registered: Registration
    settings: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[EnvWrapper] = ()

    def __call__(self, **settings: Any) -> Env:  # noqa: ANN401 - of the environment
        """Make one.

        Raises:
            MissingExtraError: If it needs a package that is not installed.
            ConfigError: If it does not take the settings.
        """
        env_id = self.registered.id
        try:
            env: Env = gymnasium.make(
                self.registered, disable_env_checker=True, **{**self.settings, **settings}
            )
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            extra = 'pip install "ding-lite[box2d]"' if "box2d" in str(error).lower() else None
            raise MissingExtraError(
                f"{env_id} needs a package that is not installed. "
                f"{f'Install it: {extra}' if extra else str(error).rstrip('.')}."
            ) from error
        except TypeError as error:
            if not self.settings:
                raise
            raise ConfigError(
                f"{env_id} could not be made with `settings` {dict(self.settings)}: {error}."
            ) from error
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env

    @property
    def max_episode_steps(self) -> int | None:
        """The time limit, in env steps; gymnasium takes one among the settings, -1 for none."""
        limit = self.settings.get("max_episode_steps", self.registered.max_episode_steps)
        return None if limit in (None, -1) else int(limit)

    def spec_of(self, env: Env, *, frame_stack: int) -> EnvSpec:
        """Say what an environment that was made looks like.

        Raises:
            ConfigError: If a space of it is not supported.
        """
        env_id = self.registered.id
        return EnvSpec(
            env_id=env_id,
            obs_space=supported_obs_space(env_id, env.observation_space),
            action_space=supported_action_space(env_id, env.action_space),
            max_episode_steps=self.max_episode_steps,
            frame_stack=frame_stack,
        )

    def prefers_native(self, num_envs: int) -> bool:
        """Tell whether one array program is the best way to step so many.

        That of somebody else's has episodes of its own, and is taken for any number: with more
        of them, a run shall not become another one in kind.
        """
        kind = self.native_kind()
        return kind == "theirs" or (kind == "ours" and num_envs >= NATIVE_FROM)

    def native_kind(self) -> Literal["ours", "theirs"] | None:
        """Tell whether all environments can be stepped as one array program, and by whom."""
        entry_point = self.registered.vector_entry_point
        if entry_point is None or self.wrappers or self.registered.additional_wrappers:
            return None
        if entry_point in OURS:
            return "ours"
        try:
            creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        except ImportError:  # it needs a package that the plain form may do without
            return None
        mode = getattr(creator, "metadata", {}).get("autoreset_mode")
        return "theirs" if mode in (AutoresetMode.DISABLED, AutoresetMode.SAME_STEP) else None


def find_registered(env_id: str) -> Registration:
    """Look an environment up in gymnasium's registry.

    Raises:
        ConfigError: If there is none of that name.
    """
    try:
        return gymnasium.spec(env_id)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigError(
            f"There is no environment {env_id!r} in gymnasium's registry."
            f"{did_you_mean(str(env_id), gymnasium.registry)} An environment of your own must be "
            f"registered first (gymnasium.register)."
        ) from error


def ids_of_native() -> list[str]:
    """Name the environments of the registry that `make_envs` steps as one array program."""
    found = (env_id for env_id, one in gymnasium.registry.items() if EnvMaker(one).native_kind())
    return sorted(found)


@dataclass(frozen=True)
class Choice:
    """How environments are best stepped, and why."""

    mode: Literal["sync", "async"]
    why: str


def choose_mode(env: Env, num_envs: int, *, num_cores: int, clock: Clock = SYSTEM_CLOCK) -> Choice:
    """Measure an environment and say whether processes of their own would pay for many of it.

    Args:
        env: One of them, to be thrown away afterwards.
        num_envs: How many are to be stepped.
        num_cores: Processor cores that may be used.
        clock: Tells how long env steps take.
    """
    if num_envs == 1 or num_cores == 1:
        few = "there is only one" if num_envs == 1 else "there is one processor core"
        return Choice("sync", few)
    step_s = seconds_of_a_step(env, clock=clock)
    workers = min(num_cores, num_envs)
    here_s = num_envs * step_s
    there_s = -(-num_envs // workers) * step_s + ROUND_TRIP_S + workers * ROUND_TRIP_OF_EACH_S
    why = (
        f"an env step takes {step_s * 1e6:.0f} us; one of all {num_envs} about "
        f"{here_s * 1e6:.0f} us here, and {there_s * 1e6:.0f} us in {workers} processes"
    )
    pays = here_s > max(MIN_GAIN * there_s, there_s + MIN_SAVING_S)
    return Choice("async" if pays else "sync", why)


def seconds_of_a_step(env: Env, *, clock: Clock) -> float:
    """Take a few env steps with random actions; return the median of what they take.

    On a busy machine other processes come in between now and then; the median is hardly
    disturbed by that.
    """
    env.action_space.seed(0)
    env.reset(seed=0)
    env.step(env.action_space.sample())  # the first one may still prepare something
    measured: list[float] = []
    ended = False
    while len(measured) < _MIN_STEPS or (len(measured) < _MAX_STEPS and sum(measured) < _ENOUGH_S):
        if ended:
            env.reset()
        action = env.action_space.sample()
        begun = clock.now()
        _, _, terminated, truncated, _ = env.step(action)
        measured.append(clock.now() - begun)
        ended = bool(terminated or truncated)
    return median(measured)

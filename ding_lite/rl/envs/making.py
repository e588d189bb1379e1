"""Makers of environments, found by name in gymnasium's registry.

A maker holds the registry's entry, the settings and the wrappers of an environment. It can be
pickled, so that another process makes the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec as Registration, load_env_creator
from gymnasium.vector import AutoresetMode

from ding_lite.errors import ConfigError, DingLiteError, MissingExtraError, did_you_mean
from ding_lite.rl.envs.checks import (
    RAISED,
    Env,
    close_all,
    env_error,
    exit_fault,
    raising_env_errors,
)
from ding_lite.rl.envs.forms import supported_action_space, supported_obs_space
from ding_lite.rl.envs.native_cartpole import OURS
from ding_lite.rl.spec import EnvSpec

EnvsMode: TypeAlias = Literal["auto", "native", "sync", "async"]
EnvWrapper: TypeAlias = Callable[[Env], Env]


@dataclass(frozen=True)
class EnvMaker:
    """Makes environments of one kind, here or in another process.

    Args:
        registered: Its entry in gymnasium's registry.
        settings: Keywords for its constructor.
        wrappers: Applied to each environment, the first one innermost.
    """

    registered: Registration
    settings: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[EnvWrapper] = ()

    def __call__(self, **settings: Any) -> Env:  # noqa: ANN401 - of the environment
        """Make an environment.

        Raises:
            MissingExtraError: If it needs a package that is not installed.
            ConfigError: If it does not take the settings.
            EnvError: If it or a wrapper raises.
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
        except DingLiteError:
            raise
        except (SystemExit, KeyboardInterrupt) as error:
            if (fault := exit_fault(env_id, "__init__", error)) is None:
                raise
            raise fault from error
        except RAISED as error:
            if not self.settings or not isinstance(error, TypeError):
                raise env_error(env_id, "__init__", error) from error
            raise ConfigError(
                f"{env_id} could not be made with `settings` {dict(self.settings)}: {error}."
            ) from error
        for wrapper in self.wrappers:
            name = getattr(wrapper, "__name__", type(wrapper).__name__)
            with raising_env_errors(env_id, f"the wrapper {name}"):
                env = wrapper(env)
            if not isinstance(env, gymnasium.Env):
                raise ConfigError(
                    f"The wrapper `{name}` of {env_id} returned a {type(env).__name__}; a "
                    f"gymnasium environment was expected. Return the environment that it made."
                )
        return env

    def make(self, num_envs: int) -> list[Env]:
        """Make several environments; if one cannot be made, close those before it."""
        envs: list[Env] = []
        try:
            for _ in range(num_envs):
                envs.append(self())
        except BaseException:
            close_all(envs)
            raise
        return envs

    @property
    def max_episode_steps(self) -> int | None:
        """The time limit, in env steps; gymnasium takes one among the settings, -1 for none."""
        limit = self.settings.get("max_episode_steps", self.registered.max_episode_steps)
        return None if limit in (None, -1) else int(limit)

    def spec_of(self, env: Env, *, frame_stack: int) -> EnvSpec:
        """Return the spec of an environment.

        Raises:
            ConfigError: If a space of it is not supported.
            EnvError: If it has none.
        """
        env_id = self.registered.id
        with raising_env_errors(env_id, "its spaces"):
            obs_space, action_space = env.observation_space, env.action_space
        return EnvSpec(
            env_id=env_id,
            obs_space=supported_obs_space(env_id, obs_space),
            action_space=supported_action_space(env_id, action_space),
            max_episode_steps=self.max_episode_steps,
            frame_stack=frame_stack,
        )

    def native_kind(self) -> Literal["ours", "theirs"] | None:
        """Return which array program, if any, steps all environments at once.

        One of another package has episodes of its own.
        """
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

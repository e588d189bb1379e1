"""The choices for a run: of a call or the command line, of a file, and of an earlier run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

from ding_lite.errors import ConfigError, kind_of
from ding_lite.io.files import path_fault
from ding_lite.options.run_options import ALSO_SETTINGS, OF_CALLS, OF_ENVS, OF_FILES
from ding_lite.recipes.saved_options import SavedOptions, read_config, run_begun
from ding_lite.rl.envs.making import EnvLike, EnvMaker, maker_again
from ding_lite.rl.envs.naming import full_name


class Choices:
    """The options that were chosen for a run, by name; None means that an option was not chosen."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - they have types of their own
        known = (name for name in OF_CALLS if name != "env")
        self.given = {name: given[name] for name in known if given.get(name) is not None}
        for name in self.given.keys() & {"out", "config"}:
            self.given[name] = _path(name, self.given[name])
        self.given["report"] = tuple(map(full_name, given.get("report") or ()))
        use = given.get("use", ())
        if not (isinstance(use, list | tuple) or callable(use)):
            raise ConfigError(
                f"`use` is {kind_of(use)}; a list of middleware was expected: "
                f"use=[mw.report(fn, every=50)]."
            )
        if str(getattr(use, "__module__", None)).startswith("ding_lite.middleware."):
            raise ConfigError(
                "`use` is one middleware; a list was expected, or a function that makes one: "
                "use=[...]."
            )

    @property
    def values(self) -> dict[str, Any]:
        """The options that are settings, or that a file may have."""
        return {n: self.given[n] for n in (*OF_FILES, *ALSO_SETTINGS) if n in self.given}

    @cached_property
    def in_file(self) -> SavedOptions:
        return read_config(self.given["config"]) if "config" in self.given else SavedOptions()

    @cached_property
    def begun(self) -> SavedOptions:
        out = self.given.get("out")
        return run_begun(out) if out and self.given.get("resume") else SavedOptions()

    def maker(self, env: EnvLike) -> EnvMaker:
        """Return the maker of a run's environments, or of further ones like a vector environment's.

        Arguments, wrappers and imports that are not given come from the file of settings, or from
        the start of the resumed run.
        """
        about: dict[str, Any] = {n: self.given[n] for n in OF_ENVS if self.given.get(n)}
        if not isinstance(env, VectorEnv):
            args = about.pop("env_args", None)
            return self.begun.complete(self.in_file.complete(EnvMaker.of(env, args=args, **about)))
        if about:
            raise ConfigError(
                f"`env_args`, `wrappers` and `imports` are for environments that are yet to be "
                f"made, and the environment is {kind_of(env)}. Give a function that makes it, "
                f"arguments and wrappers included: lambda num_envs: gymnasium.make_vec(..., "
                f"num_envs=num_envs)."
            )
        if (maker := maker_again(env)) is None:
            raise ConfigError(
                f"The environment is {kind_of(env)}, and a run needs more of them, for its "
                f"evaluations. Give a function that makes them: "
                f"lambda num_envs: gymnasium.make_vec(..., num_envs=num_envs)."
            )
        return maker


def checked_settings(settings: object) -> Mapping[str, Any]:
    """Return the argument `settings`; an empty mapping for None."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"`settings` is {kind_of(settings)}; a dict or an EasyDict was expected: "
            f'settings={{"lr": 1e-3}}.'
        )
    return settings


def _path(name: str, value: Any) -> Path:  # noqa: ANN401 - whatever is given
    try:
        path = Path(os.path.expanduser(value))
    except TypeError as error:
        raise ConfigError(f"`{name}` is {value!r}; a path was expected.") from error
    if fault := path_fault(os.fspath(value)):
        raise ConfigError(f"`{name}` is {value!r:.120}; {fault}")
    return path

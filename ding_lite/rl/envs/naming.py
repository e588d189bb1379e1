"""Names of environments: finding environments by name, and naming them for other processes.

An environment is named by its id in gymnasium's registry (`CartPole-v1`), by a module that
registers it (`package.module:Env-v0`), or by the class or function that makes it
(`path/to/file.py:MyEnv`, `package.module:MyEnv`, or the object itself).
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.vector import VectorEnv, VectorWrapper

from ding_lite.errors import (
    ConfigError,
    DingLiteError,
    EnvError,
    MissingExtraError,
    did_you_mean,
    pip_line,
)
from ding_lite.io.importing import (
    find_again,
    find_member,
    import_fault,
    import_place,
    is_file,
    place_of,
)
from ding_lite.rl.envs.checks.faults import RAISED

Make: TypeAlias = Callable[..., Any]
"""Makes an environment: a class or a function."""

_REGISTERED_BY = {"ALE": ("ale_py", "atari"), "MinAtar": ("minatar.gym", "minatar")}
"""The module that registers the ids of a namespace, and the extra that installs it."""


def find_env(name: str) -> Registration | Make:
    place, _, member = name.rpartition(":")
    if not place:
        return find_registered(name)
    module = import_env_module(place)
    if member in gymnasium.registry:
        return find_registered(member)
    found: Any = getattr(module, member, None) if member.isidentifier() else None
    if callable(found):
        made: Make = found
        return made
    known = [key for key, value in vars(module).items() if _makes_envs(key, value, module)]
    known += [key for key, one in gymnasium.registry.items() if _is_of(one, module.__name__)]
    raise ConfigError(
        f"{place} has no environment `{member}`: neither a class or function of that name, nor "
        f"an id that it registers with gymnasium.{did_you_mean(member, known)} Its environments "
        f"and functions are: {', '.join(known) or 'none'}."
    )


def import_env_module(place: str) -> ModuleType:
    try:
        return import_place(place)
    except DingLiteError:
        raise
    except RAISED as error:
        raise EnvError(import_fault(place, error)) from error


def find_registered(env_id: str) -> Registration:
    _register_package(env_id)
    try:
        return gymnasium.spec(env_id)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigError(
            f"There is no environment {env_id!r:.200} in gymnasium's registry."
            f"{did_you_mean(str(env_id)[:200], gymnasium.registry)} An environment of your own is "
            f"named with its file, path/to/file.py:MyEnv, or with the module that registers it, "
            f"package.module:Env-v0."
        ) from error


def _register_package(env_id: str) -> None:
    """Import the package that registers the ids of a namespace, such as `ALE/`."""
    namespace = str(env_id).partition("/")[0]
    if env_id in gymnasium.registry or namespace not in _REGISTERED_BY:
        return
    module, extra = _REGISTERED_BY[namespace]
    try:
        package: Any = importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{env_id} needs a package that is not installed. Install it: {pip_line(extra)}."
        ) from error
    if env_id not in gymnasium.registry and hasattr(package, "register_envs"):
        package.register_envs()


def short_name(env: str | Make) -> str:
    if isinstance(env, str):
        return env.rpartition(":")[2]
    if isinstance(env, partial):
        return short_name(env.func)
    name = getattr(env, "__name__", type(env).__name__)
    return str(name).strip("<>")


def name_of(made: object) -> str | None:
    """Return the name by which other processes find a class or function; None if it has none."""
    module, name = getattr(made, "__module__", None), getattr(made, "__qualname__", "")
    if module is None or not name.isidentifier():
        return None
    if module in ("__main__", "__mp_main__"):
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        return f"{os.path.abspath(file)}:{name}" if os.path.isfile(file) else None  # not "<stdin>"
    found = getattr(sys.modules.get(module), name, None)
    return f"{place_of(module)}:{name}" if found is made else None


def described(made: object) -> dict[str, Any] | None:
    """Describe a function with its arguments in plain values; None if no name finds it."""
    if isinstance(made, partial):
        inner = described(made.func)
        return None if inner is None or made.args else {**inner, "args": dict(made.keywords)}
    name = name_of(made)
    return None if name is None else {"name": name}


def undescribed(about: Mapping[str, Any]) -> Make:
    place, _, name = find_again(about["name"]).rpartition(":")
    found: Make = find_member(place, name)
    return partial(found, **about["args"]) if "args" in about else found


def full_name(env: str) -> str:
    """Return a name with the absolute path of its file, if it has one."""
    place, _, member = env.rpartition(":")
    return f"{os.path.abspath(place)}:{member}" if place and is_file(place) else env


def _makes_envs(name: str, value: object, module: ModuleType) -> bool:
    """Return whether a class makes environments, or a function of the module may do so."""
    if not isinstance(value, type):
        is_own = getattr(value, "__module__", None) == module.__name__
        return is_own and inspect.isfunction(value) and not name.startswith("_")
    is_wrapper = issubclass(value, gymnasium.Wrapper | VectorWrapper)
    is_env = issubclass(value, gymnasium.Env | VectorEnv) and not is_wrapper
    return is_env and not value.__module__.startswith("gymnasium.")


def _is_of(registered: Registration, module: str) -> bool:
    entry = registered.entry_point
    found = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    return found == module

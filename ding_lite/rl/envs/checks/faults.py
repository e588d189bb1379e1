"""Errors that name an environment, for its exceptions and for malformed return values."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any, TypeAlias

import gymnasium
from gymnasium.vector import VectorEnv

from ding_lite.errors import DingLiteError, EnvError, MissingExtraError, kind_of, pip_line
from ding_lite.interruption import is_interrupted, is_of_a_signal

Env: TypeAlias = gymnasium.Env[Any, Any]

RAISED: tuple[type[BaseException], ...] = (Exception, SystemExit, GeneratorExit)
"""The exceptions of a user's code that are converted; Ctrl-C is not one."""


_EXTRAS = {"box2d": "box2d", "atari": "ale_py", "mujoco": "mujoco", "video": "pygame"}
"""The extras with packages of environments, and a word in the error if a package is missing."""


class raising_env_errors:
    """Converts exceptions of a user's code into an `EnvError` that names the environment.

    It is a class because `contextlib.contextmanager` does not catch StopIteration.
    """

    def __init__(self, name: str, where: str) -> None:
        self._name, self._where = name, where

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        fault = None if error is None else fault_of(self._name, self._where, error)
        if fault is not None:
            raise fault from error


def fault_of(name: str, where: str, error: BaseException) -> DingLiteError | None:
    """Return the error for an exception that an environment raised in a method.

    An empty `where` names no method, for a function that wraps an environment. Return None for an
    error of this package, and for one that a signal raised outside a run.
    """
    if isinstance(error, DingLiteError) or not isinstance(error, (*RAISED, KeyboardInterrupt)):
        return None
    place = f" in `{where}`" if where else ""
    if isinstance(error, SystemExit | KeyboardInterrupt) and is_of_a_signal(error):
        if is_interrupted():
            return EnvError(f"{name}: a second signal came{place}.")
        return None
    if isinstance(error, SystemExit):
        what = f"called sys.exit({error.code!r})"
        return EnvError(
            f"{name} {what}{place}, which would end the whole program. Let it raise an error, "
            f"or end the episode (`terminated` or `truncated`)."
        )
    if isinstance(error, gymnasium.error.DependencyNotInstalled):  # such as pygame, in `reset`
        return missing_package(name, error)
    text = text_of(error)
    detail = f": {text.rstrip('.')}" if text else " without a message"
    what = "the environment, or wrap it (make_envs(..., wrappers=[...]))" if where else "it"
    return EnvError(
        f"{name} raised {type(error).__name__}{place}{detail}. The traceback shows where; mend "
        f"{what}."
    )


def missing_package(name: str, error: BaseException) -> MissingExtraError:
    text = str(error)
    extra = next((extra for extra, word in _EXTRAS.items() if word in text.lower()), None)
    advice = text.rstrip(".") if extra is None else f"Install it: {pip_line(extra)}"
    what = "is not installed"
    if broken := _broken_import(error):  # such as a shared library that is missing
        what = f"cannot be imported: {str(broken).rstrip('.')}"
        advice = "Mend it" if extra is None else f"Mend it, or install it anew: {pip_line(extra)}"
    return MissingExtraError(f"{name} needs a package that {what}. {advice}.")


def _broken_import(error: BaseException | None) -> ImportError | None:
    """Return the error of an installed module that cannot be imported, if that is the cause."""
    while error is not None:
        if isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError):
            return error
        error = error.__cause__
    return None


def close_all(envs: Iterable[Env | VectorEnv[Any, Any, Any]]) -> None:
    """Close all environments, then raise the first of their errors, if any."""
    errors = []
    for env in envs:
        try:
            env.close()
        except RAISED as error:
            errors.append(error)
    if errors:
        raise errors[0]


def obs_and_info(name: str, answer: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise EnvError(
            f"{name} returned {shown(answer)} from `reset`; a tuple of two was expected: obs, "
            f"info. Environments written for gym before 0.26 return the first one only."
        )
    if not isinstance(answer[1], dict):
        raise _info_fault(name, answer[1], "reset")
    return answer


def five_values(name: str, answer: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401
    if not isinstance(answer, tuple) or len(answer) != 5:
        found = f"{len(answer)} values" if isinstance(answer, tuple) else kind_of(answer)
        raise EnvError(wrong_count(name, found))
    if answer[4].__class__ is not dict and not isinstance(answer[4], dict):
        raise _info_fault(name, answer[4], "step")
    five: tuple[Any, Any, Any, Any, dict[str, Any]] = answer
    return five


def _info_fault(name: str, info: Any, where: str) -> EnvError:  # noqa: ANN401
    return EnvError(
        f"{name} gave the info {shown(info)} from `{where}`; a dict was expected. "
        f"Return {{}} where there is nothing to tell."
    )


def wrong_count(name: str, found: str) -> str:
    told = (
        f"{name} returned {found} from `step`; a tuple of five was expected: obs, reward, "
        f"terminated, truncated, info."
    )
    old = " Environments written for gym before 0.26 do so: tell `terminated` from `truncated`."
    return told + old if found == "4 values" else told


def shown(value: Any) -> str:  # noqa: ANN401
    return " ".join(reprlib.repr(value).split())


def text_of(error: BaseException) -> str:
    """Return an error's text in one line."""
    return " ".join(str(error).split())

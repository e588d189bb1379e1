"""Import modules of users by the name of a file, or by their own name."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from ding_lite.errors import ConfigError, DingLiteError, did_you_mean

_MOST_SHOWN = 200
_IMPORTING: ContextVar[str | None] = ContextVar("ding_lite_importing", default=None)
"""The file or module of the user that is being imported."""
_PLACE = "__ding_lite_place__"
"""The attribute of a module with the absolute path by which it was imported."""


def is_file(place: str) -> bool:
    return place.endswith(".py") or os.sep in place


def import_place(place: str) -> ModuleType:
    """Import a file, such as `path/to/file.py`, or a module, such as `package.module`."""
    return import_file(place) if is_file(place) else import_module(place)


def find_again(name: str) -> str:
    """Return the saved name of a file, or of a class in one, even if the file has moved.

    A file that is no longer in its place is looked for in the working directory, as modules are.
    """
    place, colon, member = name.rpartition(":") if ".py:" in name else (name, "", "")
    file = os.path.basename(place)
    if not place.endswith(".py") or os.path.isfile(place):
        return name
    if not os.path.isfile(file):
        raise ConfigError(
            f"There is no file {_shown(place)}, and no {_shown(file)} in {Path.cwd()}. If it has "
            f"moved, run this in the folder that has it."
        )
    return f"{os.path.abspath(file)}{colon}{member}"


def without_folders(about: Any) -> Any:  # noqa: ANN401 - as JSON has it
    """Return a description in plain values without the folders of its files, which may move.

    A file then has the name of the module that it is when a script imports it.

    Example:
        >>> without_folders({"env": "/old/tasks.py:Corridor", "imports": ["/old/mine.py"]})
        {'env': 'tasks:Corridor', 'imports': ['mine']}
    """
    if isinstance(about, Mapping):
        return {key: without_folders(value) for key, value in about.items()}
    if isinstance(about, list | tuple):
        return [without_folders(one) for one in about]
    if not isinstance(about, str):
        return about
    place, colon, member = about.rpartition(":") if ".py:" in about else (about, "", "")
    if place.endswith(".py"):
        return f"{os.path.basename(place).removesuffix('.py')}{colon}{member}"
    return about


def find_member(place: str, name: str) -> Any:  # noqa: ANN401 - a class or a function
    """Import a file or a module, and return a class or a function of it."""
    try:
        module = import_place(place)
    except DingLiteError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(import_fault(place, error)) from error
    found = getattr(module, name, None) if name.isidentifier() else None
    if not callable(found):
        own = [
            k for k, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
        ]
        raise ConfigError(
            f"{place} has no class or function `{name}`.{did_you_mean(name, own)} It has: "
            f"{', '.join(own) or 'none'}."
        )
    return found


def import_fault(place: str, error: BaseException) -> str:
    """Describe an error that a module of the user has raised while it was imported."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    file = frame.f_code.co_filename
    where = "" if file.startswith("<") else f" in line {line} of {file}"  # not of importlib
    advice = "Mend it, or name another module."
    if "no known parent package" in str(error):
        advice = (
            "A file is imported by itself, and not as a part of its package. Name the module "
            "instead: package.module:NAME."
        )
    raised = f"{place} raised {type(error).__name__} while it was imported{where}"
    return f"{raised}: {error}. {advice}"


def import_file(place: str) -> ModuleType:
    """Import a file as `python place` would, so that other processes find it by its name.

    Its folder becomes the first entry of `sys.path`.
    """
    path = Path(place)
    if not os.path.isfile(path):  # unlike a Path, it takes any text
        raise ConfigError(f"There is no file {_shown(place)} (looked for in {Path.cwd()}).")
    if path.suffix != ".py" or "." in path.stem:
        raise ConfigError(
            f"The file is {path.name}; other processes can only import a name without dots that "
            f"ends in .py. Rename it."
        )
    _look_in(path.resolve().parent)
    module = _imported(path.stem, place)
    found = getattr(module, "__file__", None)
    if found is None or not os.path.isfile(found) or not path.samefile(found):
        raise ConfigError(
            f"{place} has the name of another module, `{path.stem}` ({found or 'built in'}), so "
            f"that other processes could not import it. Rename the file."
        )
    setattr(module, _PLACE, os.path.abspath(place))
    return module


def place_of(module: str) -> str:
    """Return the path of the file by which a module was imported, or else the module's name."""
    place: str = getattr(sys.modules.get(module), _PLACE, module)
    return place


def import_module(place: str) -> ModuleType:
    if not all(part.isidentifier() for part in place.split(".")):
        raise ConfigError(
            f"{_shown(place)} is no name of a module, such as package.module. A file is named with "
            f"its ending: path/to/file.py."
        )
    try:
        return _imported(place, place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        hint = f" A file is named with its ending: {place}.py." if "." not in place else ""
        raise ConfigError(
            f"There is no module `{error.name}` (looked for in {Path.cwd()}, and where Python "
            f"looks).{hint}"
        ) from error


def _imported(name: str, place: str) -> ModuleType:
    token = _IMPORTING.set(place)
    try:
        return importlib.import_module(name)
    finally:
        _IMPORTING.reset(token)


def refuse_while_importing() -> None:
    """Raise an error if a program of the user begins a run while this module imports it.

    Without that, loading a policy would train again, and overwrite the run that it is loaded from.
    """
    if (place := _IMPORTING.get()) is not None:
        raise ConfigError(
            f"{place} was imported because a class or function of it is needed, and it begins a "
            f'run when it is imported. Put that part below `if __name__ == "__main__":`.'
        )


@contextmanager
def only_programs_in_files() -> Iterator[None]:
    """Hide the `__file__` of a program from standard input, `<stdin>`, within a `with` block.

    A process that multiprocessing starts would run that file again.
    """
    program = vars(sys.modules["__main__"])
    file = program.get("__file__")
    hidden = file is not None and not os.path.isfile(file)
    if hidden:
        del program["__file__"]
    try:
        yield
    finally:
        if hidden:
            program["__file__"] = file


def look_here() -> None:
    """Let imports find the modules of the working directory, as `python -m` does."""
    if not sys.flags.safe_path:
        _look_in(Path.cwd())


def _look_in(folder: Path) -> None:
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...")

"""Read the options and settings of a run from a file of settings or from an earlier run."""

from __future__ import annotations

import argparse
import ast
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ding_lite.errors import ConfigError
from ding_lite.evolution.search import (
    Choice,
    Parameter,
    Range,
    Search,
    choice,
    integer,
    log_uniform,
    uniform,
)
from ding_lite.io.importing import find_again
from ding_lite.io.reading import read_file
from ding_lite.io.signature import is_signed
from ding_lite.options.run_options import OF_FILES
from ding_lite.options.words import Searched, read_value, searched
from ding_lite.recipes.evolve_config import LOWERED_BY_SMOKE
from ding_lite.recipes.runs.directory import (
    code_of,
    read_description,
    saved_description,
    saved_report,
)
from ding_lite.rl.envs.atari import ATARI_ARGS, play_atari
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.rl.envs.naming import described, find_registered, short_name, undescribed

_OF_ENVS = {"env_args": dict, "wrappers": list, "imports": list}
"""Keys about the environment that a file of settings may have, with their types."""
_OF_WRAPPERS = {"name": str, "args": dict}
"""Keys of a wrapper in such a file, with their types."""
_MOST_BYTES = 1 << 16
"""Limit of a TOML file: reading a key of very many parts takes minutes."""
_PARAMETERS = {kind.__name__: kind for kind in (Range, Choice)}


@dataclass(frozen=True, kw_only=True)
class SavedOptions:
    """The options and settings of a file or of an earlier run.

    Args:
        place: The path of the file or of the run.
        options: Options by name, including `env` and its arguments, wrappers and imports.
        settings: Settings of the policy and of training.
        searched: The search space of an evolution, as text; None without an evolution.
        is_trusted: Whether the user's code that it names may be imported.
        described: The whole description that a run has saved.
    """

    place: Path = Path()
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    searched: Mapping[str, str] | None = None
    is_trusted: bool = True
    described: Mapping[str, Any] = field(default_factory=dict)

    @property
    def report(self) -> tuple[str, ...]:
        """The functions to which the run has reported; ConfigError unless this user named them."""
        return saved_report(self.described)

    @property
    def values(self) -> dict[str, Any]:
        """The settings, and the options that a file may have."""
        of_files = {key: self.options[key] for key in OF_FILES if key in self.options}
        return {**of_files, **self.settings}

    def values_for(self, env: EnvMaker) -> dict[str, Any]:
        """Return the values without the target of another environment."""
        return {k: v for k, v in self.values.items() if k != "target" or self._is_of(env)}

    def complete(self, env: EnvMaker) -> EnvMaker:
        """Return the maker with missing arguments, wrappers and imports taken from here."""
        about = self.options
        if not self._is_of(env):
            return env
        self._check_full_name(env)
        if about.get("env_args", {}) is None and not env.args:
            raise ConfigError(
                f"The arguments of the environment of {self.place} cannot be found again, as JSON "
                f"has no such values. Give them: train(..., env_args={{...}})."
            )
        args, wrappers = about.get("env_args") or {}, list(about.get("wrappers") or ())
        if described(play_atari) in wrappers:  # the setting `atari` adds it again
            wrappers.remove(described(play_atari))
            args = {name: value for name, value in args.items() if name not in ATARI_ARGS}
        code = {
            name: found
            for name, found in (("wrappers", wrappers), ("imports", about.get("imports")))
            if found and not getattr(env, name)
        }
        is_lost = None in code.get("wrappers", ())
        if is_lost or (code and not self.is_trusted):
            why = "were not saved by you on this machine, and may run anything"
            raise ConfigError(
                f"The {' and '.join(code)} of {self.place} "
                f"{'cannot be found again, as one is no function of a module' if is_lost else why}:"
                f" {code}. Give them: train(..., {next(iter(code))}=[...]), or `--import`."
            )
        return EnvMaker.of(
            env.env,
            args={**args, **env.args},
            wrappers=env.wrappers or [undescribed(one) for one in code.get("wrappers", ())],
            imports=env.imports or [find_again(str(one)) for one in about.get("imports") or ()],
        )

    def _check_full_name(self, env: EnvMaker) -> None:
        """Refuse the last part of the saved name if no environment is registered by it."""
        saved = self.options.get("env")
        if env.env != short_name(env.env) or saved in (None, env.env) or env.imports:
            return
        try:
            find_registered(env.env)
        except ConfigError as error:
            raise ConfigError(
                f"There is no environment {env.env!r} in gymnasium's registry; the full name of "
                f"that of {self.place} was expected: {saved}."
            ) from error

    def _is_of(self, env: EnvMaker) -> bool:
        return short_name(self.options.get("env") or env.env) == short_name(env.env)

    @property
    def search(self) -> Search | None:
        """The search space of an evolution; None without an evolution."""
        if self.searched is None:
            return None
        return Search(**{name: _parameter(name, text) for name, text in self.searched.items()})


def run_begun(directory: Path) -> SavedOptions:
    """Read the description of a run; empty if there is no run."""
    return _of_run(directory, saved_description(directory) or {})


def read_config(path: Path) -> SavedOptions:
    """Read settings and options from a TOML file, or from the `config.json` of a run."""
    try:
        if path.suffix == ".json":
            described = read_description(path)
            if not isinstance(described.get("config"), dict):
                raise ValueError("it is no config.json of a run, as it has no `config`")
            if (described.get("options") or {}).get("smoke"):  # which has lowered these values
                described["options"].pop("max_env_steps", None)
                for name in LOWERED_BY_SMOKE if "population" in described["config"] else ():
                    described["config"].pop(name, None)
            return _of_run(path, described)
        content = read_file(path, most=_MOST_BYTES)
        text = content.decode("utf-8-sig")  # editors on Windows add a BOM
        values = tomllib.loads(text, parse_float=read_value)  # 1e5 is a count, as for `--set`
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"`config` is {str(path)!r}, which cannot be read: {error}. A TOML file with lines "
            f"such as `lr = 1e-3`, or the config.json of a run, was expected."
        ) from error
    options = {name: values.pop(name) for name in _OF_ENVS if name in values}
    for name, value in options.items():
        if not isinstance(value, _OF_ENVS[name]):
            raise ConfigError(
                f"`{name}` in {path} is {value!r}; a {_OF_ENVS[name].__name__} was expected: "
                f"env_args = {{length = 12}}, wrappers = ['tasks.py:Scaled'], "
                f"imports = ['tasks.py']."
            )
    if "wrappers" in options:
        options["wrappers"] = [_wrapper(path, one) for one in options["wrappers"]]
    search = values.pop("search", None)
    if not isinstance(search, dict | None):
        raise ConfigError(
            f"`search` in {path} is {search!r}; a table was expected: "
            f'search = {{lr = "1e-4:1e-2:log", batch_size = "8:64"}}.'
        )
    return SavedOptions(place=path, options=options, settings=values, searched=search)


def _wrapper(path: Path, given: object) -> Mapping[str, Any]:
    """Return a wrapper in a file of settings as the description of a run has it."""
    about: Any = {"name": given} if isinstance(given, str) else given
    is_known = isinstance(about, dict) and all(
        isinstance(value, _OF_WRAPPERS.get(key, ())) for key, value in about.items()
    )
    if not is_known or ":" not in about.get("name", ""):
        raise ConfigError(
            f"A wrapper in {path} is {given!r}; expected is its name with its file or module, or "
            f"a table of name and args: wrappers = ['tasks.py:scaled', "
            f"{{name = 'tasks.py:Scaled', args = {{by = 2.0}}}}]."
        )
    return dict(about)


def _of_run(place: Path, about: Mapping[str, Any]) -> SavedOptions:
    options, settings = about.get("options") or {}, dict(about.get("config") or {})
    return SavedOptions(
        place=place,
        options=options,
        searched=settings.pop("search", None),
        settings=settings,
        is_trusted=is_signed(code_of(options), about.get("signature")),
        described=about,
    )


def parameter_of(one: Searched) -> Parameter:
    """Return the parameter that the command line describes; its errors name the setting."""
    try:
        return _parameter_of(one)
    except ConfigError as error:
        raise ConfigError(f"The search of `{one.name}` is refused: {error}") from error


def _parameter_of(one: Searched) -> Parameter:
    values: tuple[Any, ...] = one.values
    if not one.is_range:
        return choice(*values)
    low, high = values
    if one.is_log:
        return log_uniform(low, high)
    is_whole = isinstance(low, int) and isinstance(high, int)
    return integer(low, high) if is_whole else uniform(low, high)


def search_text(name: str, parameter: Parameter) -> str:
    """Return a parameter as the command line describes it, or its `repr` if that has no form."""
    text = (":" if isinstance(parameter, Range) else "|").join(map(str, parameter.examples()))
    text += ":log" if isinstance(parameter, Range) and parameter.is_log else ""
    with suppress(argparse.ArgumentTypeError, ConfigError):
        if parameter_of(searched(f"{name}={text}")) == parameter:
            return text
    return repr(parameter)


def _parameter(name: str, text: str) -> Parameter:
    """Return the parameter with this `repr`, or of this form on the command line."""
    with suppress(argparse.ArgumentTypeError):
        return parameter_of(searched(f"{name}={text}"))
    try:
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            values = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
            return _PARAMETERS[call.func.id](**values)
    except (KeyError, TypeError, ValueError, SyntaxError):
        pass
    raise ConfigError(
        f"The search of `{name}` is {text!r:.120}, which cannot be read. Give it: "
        f"search=Search({name}=...), `--search {name}=LOW:HIGH`, or in a TOML file "
        f'search = {{{name} = "LOW:HIGH"}}.'
    )

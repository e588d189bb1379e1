"""The description of a run: its options, settings, command and versions, saved at its start."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.errors import ConfigError
from ding_lite.io.importing import without_folders
from ding_lite.io.signature import sign
from ding_lite.recipes.options import Options
from ding_lite.recipes.runs.directory import code_of
from ding_lite.settings.config import default_values
from ding_lite.version import __version__

_SAVED = ("seed", "max_env_steps", "target", "smoke", "nodes")
_SAVED_WHERE_UNUSUAL = ("criterion", "population", "num_envs", "report")
"""Options in the description of a run if they are not defaults and not among its settings."""
_MAY_CHANGE = {"max_env_steps", "target", "smoke", "device", "compile", "report"}
"""Options that a resumed run may change, as they do not affect learning."""


def describe_run(example: str, options: Options, config: object) -> dict[str, Any]:
    config, chosen, usual = plain(config), vars(options), default_values(Options)
    known = config if isinstance(config, Mapping) else {}
    unusual = [n for n in _SAVED_WHERE_UNUSUAL if chosen[n] != usual[n] and n not in known]
    about = {name: chosen[name] for name in (*_SAVED, *unusual)}
    saved = plain(about | {"target": options.goal, **options.env_description})
    report, code = saved.get("report"), code_of(saved)
    packages = ("torch", "numpy", "gymnasium")
    return {
        "example": example,
        "options": saved,
        **({"report_signature": sign({"report": report})} if report else {}),
        "config": config,
        "command": _command(sys.orig_argv),
        "versions": {
            "python": platform.python_version(),
            "ding_lite": __version__,
            **{package: version(package) for package in packages},
        },
        **({"signature": sign(code)} if code else {}),
    }


def _command(words: Sequence[str]) -> list[str] | None:
    """Return the command line, if it was `ding-lite` or a program; None in a notebook, say.

    Example:
        >>> _command(["/usr/bin/python3", "-m", "ding_lite", "train", "dqn", "CartPole-v1"])
        ['ding-lite', 'train', 'dqn', 'CartPole-v1']
        >>> _command(["python", "examples/dqn_cartpole.py", "--seed", "1"])
        ['python', 'examples/dqn_cartpole.py', '--seed', '1']
    """
    if words[1:3] == ["-m", "ding_lite"]:
        return ["ding-lite", *words[3:]]
    program = Path(words[1] if len(words) > 1 else "")
    if program.name == "ding-lite":
        return ["ding-lite", *words[2:]]
    return ["python", *words[1:]] if program.suffix == ".py" else None


def check_same(
    directory: Path,
    then: Mapping[str, Any],
    now: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> None:
    """Refuse to resume a run with other options or settings than at its start.

    A setting that the run has not saved, because its version did not have it, counts as the
    default.
    """
    if then.get("example") != now["example"]:
        raise ConfigError(
            f"The run in {directory} is one of `{then.get('example')}`, and this program is "
            f"`{now['example']}`. Resume it with the program that has begun it."
        )
    # A trial run may go on at length, but a trial would end a longer run for good.
    may_change = _MAY_CHANGE - {"smoke"} if now["options"]["smoke"] else _MAY_CHANGE
    facts = []
    for section in ("options", "config"):
        before, after = {**defaults, **(then.get(section) or {})}, now[section] or {}
        before = {name: before[name] for name in before if name in after or name not in defaults}
        facts += [
            f"`{name}` is {after.get(name)!r}, and was {before.get(name)!r}"
            for name in {**before, **after}
            if name not in may_change
            and without_folders(before.get(name)) != without_folders(after.get(name))
        ]
    if facts:
        raise ConfigError(
            f"The run in {directory} was begun in another way: "
            f"{'; '.join(dict.fromkeys(facts))}. Resume it as "
            f"it was begun, or begin another run in another directory."
        )


def changed_versions(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the packages of which a resumed run has another version than before."""
    before, after = then.get("versions") or {}, now["versions"]
    return ", ".join(
        f"{name} {after[name]} instead of {before.get(name)}"
        for name in after
        if before.get(name) != after[name]
    )


def plain(values: Any) -> Any:  # noqa: ANN401 - as JSON has it
    """Return values as JSON reads them again; settings become those that `as_config` takes."""
    return json.loads(json.dumps(values, default=_plain))


def _plain(value: object) -> object:
    """Convert a setting for JSON: a dataclass to a dict for `as_config`, other types to text."""
    if isinstance(value, np.generic):
        return value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)

"""Describe the parts of a run in plain values, and compare saved parts with a program's."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ding_lite.errors import CheckpointError, with_article
from ding_lite.io.importing import without_folders
from ding_lite.io.places import folders_of
from ding_lite.io.signature import sign
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.rl.envs.naming import name_of
from ding_lite.rl.policies.base.open_policy import OpenPolicy
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings.config import default_values

logger = logging.getLogger(__name__)

PARTS, POLICY = "parts", "policy"
_NAMELESS = "code without a name"
_MOST_OF_A_NAME = 5_000
"""Limit of the characters of an environment's name, which may contain a path."""


def describe(part: object) -> dict[str, Any]:
    """Describe a part of a run in plain values, from which such a policy can be made again.

    Returns:
        `kind`, the name of its class; and, if it has them, `config`, its settings; `env`, its
        environment; `given`, the names of parts from the user, such as a network; and `class`, the
        import name of a class of the user. A name is None if the object cannot be imported. A
        description that names code of the user has a `signature`, also of the `folders` from
        which its modules are imported.
    """
    about: dict[str, Any] = {"kind": type(part).__name__}
    config = getattr(part, "config", None)
    if dataclasses.is_dataclass(config):
        about["config"] = _plain(config)
    spec = getattr(part, "spec", None)
    if isinstance(spec, EnvSpec):
        about["env"] = {"env_id": spec.env_id, "frame_stack": spec.frame_stack}
        if isinstance(spec.maker, EnvMaker):
            about["env"]["made_by"] = describe_maker(spec.maker)
    if isinstance(part, OpenPolicy) and part.parts:
        about["given"] = {name: name_of(one) for name, one in part.parts.items()}
    if hasattr(part, "act") and not type(part).__module__.startswith("ding_lite."):
        about["class"] = name_of(type(part))
    if named := named_code(about):
        if folders := folders_of(imported_places(parts_of(named))):
            about["folders"] = named["folders"] = folders
        about["signature"] = sign(named)
    return about


def describe_maker(maker: EnvMaker) -> dict[str, Any]:
    """Describe the maker of an environment in values that JSON has.

    None stands for the arguments of the environment, or for a wrapper, if JSON has no such values:
    another environment would be made from their texts.
    """
    about = maker.described()
    if "env_args" in about:
        about["env_args"] = _as_saved(about["env_args"])
    if "wrappers" in about:
        about["wrappers"] = [_as_saved(wrapper) for wrapper in about["wrappers"]]
    return about


def _as_saved(value: Any) -> Any:  # noqa: ANN401 - whatever an environment takes
    """Return a value with Python's numbers in place of NumPy's; None if JSON cannot hold it."""
    try:
        return _without_numpy(value)
    except TypeError:
        return None


def _without_numpy(value: Any) -> Any:  # noqa: ANN401 - whatever an environment takes
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Mapping):
        return {str(key): _without_numpy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_without_numpy(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"JSON has no {type(value).__name__}")


def named_code(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of the user's code in a description, which loading the policy imports."""
    env = about.get("env", {})
    named = {key: about[key] for key in ("given", "class") if about.get(key)}
    if "made_by" in env or ":" in str(env.get("env_id")):
        named["env"] = [env.get("env_id"), env.get("made_by")]
    if named and "folders" in about:
        named["folders"] = about["folders"]
    return named


def parts_of(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts that named code has, by the names of the arguments that replace them."""
    given = named.get("given") or {}
    parts = dict(given) if isinstance(given, dict) else {"policy": given}
    return {**parts, **{key: named[key] for key in ("class", "env") if key in named}}


def imported_places(parts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the modules and files that are imported for parts of signed code."""
    for part in parts.values():
        yield from filter(None, _imported_for(part))  # an id of gymnasium has no place


def _imported_for(part: Any) -> Iterator[str]:  # noqa: ANN401 - as JSON has it
    """Yield what a name imports, or an environment's id and how it is made."""
    if isinstance(part, str):
        yield part.rpartition(":")[0]
    elif part is not None:
        env_id, made_by = part
        how: Mapping[str, Any] = {"env": env_id} if made_by is None else made_by
        for name in (how.get("env"), *(one["name"] for one in how.get("wrappers", ()) if one)):
            yield from _imported_for(name)
        yield from how.get("imports", ())


def described_policy(meta: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the name and the description of the policy in a checkpoint's `meta`.

    The name is None if the policy is the only part.
    """
    alone, parts = meta.get(POLICY), described_parts(meta)
    if isinstance(alone, dict) and _is_description(alone):
        return None, alone
    for name, about in (parts or {}).items():
        if "config" in about and "env" in about:
            return name, about
    if alone is not None or (parts is None and meta.get(PARTS)):
        raise CheckpointError(
            "The description of the policy in the checkpoint is damaged: its `kind` and names were "
            "expected as texts, and its `env`, `config` and `given` as dicts. Take another "
            "checkpoint, or a copy of it."
        )
    raise CheckpointError(
        f"The checkpoint holds {_listed(parts)}, and no policy among them. Save one "
        f"with `mw.checkpoint`."
    )


def described_parts(meta: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return the descriptions of a checkpoint's parts; None if there are none or they are wrong."""
    parts = meta.get(PARTS)
    if not isinstance(parts, dict):
        return None
    return parts if all(map(_is_description, parts.values())) else None


def _is_description(about: object) -> bool:
    """Return whether a value has the form that `describe` returns, as far as that is read here."""
    if not isinstance(about, dict) or not isinstance(about.get("kind"), str):
        return False
    env, given = about.get("env", {}), about.get("given", {})
    if not all(isinstance(one, dict) for one in (env, given, about.get("config", {}))):
        return False
    env_id = env.get("env_id", "")
    names = [*given.values(), about.get("class"), env_id]
    return (
        all(isinstance(name, str | None) for name in names)
        and env_id is not None
        and len(env_id) <= _MOST_OF_A_NAME
        and isinstance(env.get("made_by", {}), dict)
    )


def _plain(value: object) -> object:
    """Convert a setting to a value that a checkpoint can hold and that compares equal later."""
    if isinstance(value, tuple | list):
        return tuple(_plain(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(one) for name, one in vars(value).items()}
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def check_resumable(meta: Mapping[str, Any], parts: Mapping[str, object]) -> None:
    """Refuse to resume with other parts, environments, settings or code than those in a `meta`.

    A setting that an earlier version did not have counts as its default. A warning names code that
    has no name to compare.
    """
    saved, wanted = described_parts(meta), {name: describe(part) for name, part in parts.items()}
    kinds = [
        {name: about["kind"] for name, about in (one or {}).items()} for one in (saved, wanted)
    ]
    if saved is None or kinds[0] != kinds[1]:
        raise CheckpointError(
            f"The checkpoint holds {_listed(saved)}; this program has {_listed(wanted)}. Resume "
            f"with the program, and the choice of policy, that saved it."
        )
    nameless: dict[str, None] = {}  # in order
    for name, about in wanted.items():
        # The files of a run may have moved.
        envs = [without_folders(one.get("env", {})) for one in (saved[name], about)]
        part: Any = parts[name]
        usual = default_values(type(part.config)) if "config" in about else {}
        default = {key: _plain(value) for key, value in usual.items()}
        configs = [default | one.get("config", {}) for one in (saved[name], about)]
        codes = [_code_of(one) for one in (saved[name], about)]
        facts = _changes(*envs) or _changes(*configs) or _changes(*codes, is_same=_is_same_code)
        if facts:
            raise CheckpointError(
                f"The `{name}` is not the one that was saved: {'; '.join(facts)}. Resume "
                f"with what it was, or begin another run."
            )
        nameless |= dict.fromkeys([key for code in codes for key in code if code[key] == _NAMELESS])
        nameless |= dict.fromkeys(_nameless_of_env(about.get("env", {}).get("made_by", {})))
    if nameless:
        logger.warning(
            "the code of this run was not compared with the saved one where it has no name to be "
            "found by, as a lambda or an object has none: %s",
            ", ".join(nameless),
        )


def _is_equal(then: object, now: object) -> bool:
    return then == now or repr(then) == repr(now)  # NaN does not equal itself


def _changes(
    then: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    is_same: Callable[[Any, Any], bool] = _is_equal,
) -> list[str]:
    different = [key for key in {**then, **now} if not is_same(then.get(key), now.get(key))]
    return [f"`{key}` is {now.get(key)!r}, was {then.get(key)!r}" for key in different]


def _code_of(about: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the user's parts and class."""
    names = {**about.get("given", {}), **({"class": about["class"]} if "class" in about else {})}
    return {key: str(without_folders(name) or _NAMELESS) for key, name in names.items()}


def _is_same_code(then: str | None, now: str | None) -> bool:
    """Compare two names; a script that is run by its file is in no package."""
    if then is None or now is None:
        return False
    ends = then.endswith(f".{now}") or now.endswith(f".{then}")
    return ends or then == now or _NAMELESS in (then, now)


def _nameless_of_env(made_by: Mapping[str, Any]) -> list[str]:
    return [
        key
        for key, value in made_by.items()
        if value is None or (key == "wrappers" and None in value)
    ]


def _listed(parts: Mapping[str, Any] | None) -> str:
    if not parts:
        return "a policy alone"
    return ", ".join(f"{with_article(about['kind'])} as `{name}`" for name, about in parts.items())

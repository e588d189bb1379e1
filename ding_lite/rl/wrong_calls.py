"""Errors for calls of a policy or a buffer that are written as in other packages."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ParamSpec, TypeVar

from ding_lite.errors import ConfigError, did_you_mean, kind_of
from ding_lite.rl.batch import Rollout

_ACT = (
    "`policy.act(obs, explore=False)` returns the best actions for observations [N, ...], and "
    "`policy.predict(obs)` that for one observation of an environment of gymnasium"
)
_PREDICT = "It returns the best action alone: `action = policy.predict(obs)`"
_RUN = (
    "A whole run is `ding_lite.train(...)`, or a Task with `mw.collect`, `mw.add_to` and `mw.train`"
)
_SPACES = (
    "The sizes of a network are `envs.spec.obs_shape`, and `envs.spec.num_actions` or, for a Box, "
    "`envs.spec.action_shape`; the spaces are `envs.spec.obs_space` and `envs.spec.action_space`"
)
_MODULE = "`policy.module` is the network, a plain nn.Module for inference"
ELSEWHERE = {
    **dict.fromkeys(("select_action", "get_action", "choose_action"), _ACT),
    **dict.fromkeys(
        ("save", "load"),
        "`save_checkpoint(folder, policy.state_dict())` saves it, "
        "and `policy.load_state_dict(load_checkpoint(folder).state)` loads it",
    ),
    **dict.fromkeys(("forward", "parameters", "named_parameters", "train", "eval"), _MODULE),
    "to": 'The device is an argument: `DQN(spec, device="cuda")`',
    "update": f"`policy.learn(batch)` does one update. {_RUN}",
    **dict.fromkeys(("single_observation_space", "single_action_space"), _SPACES),
}
"""The advice for what policies, modules and environments have in other packages, by name."""
_P = ParamSpec("_P")
_R = TypeVar("_R")
_ADVICE = {"act": _ACT, "predict": _PREDICT, "learn": f"It does one update of a batch. {_RUN}"}


class Elsewhere:
    """A class attribute that raises AttributeError with the advice for a name in ELSEWHERE."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> object:
        raise AttributeError(f"{owner.__name__} has no `{self._name}`. {ELSEWHERE[self._name]}.")


def explained(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a method raise ConfigError, with what to write, if its arguments cannot be right.

    `method` is `__init__`, `act`, `predict` or `learn` of a policy, which has `_settings_type`, or
    `__init__` of a buffer.
    """

    @functools.wraps(method)
    def call(*args: _P.args, **named: _P.kwargs) -> _R:
        try:
            return method(*args, **named)
        except (TypeError, AttributeError) as error:
            if fault := _fault_of(method, args, named):
                raise ConfigError(fault) from error
            raise

    return call


def _fault_of(
    method: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]
) -> str | None:
    """Return what is wrong with the arguments and what to write; None if they may be right."""
    policy, name = type(args[0]).__name__, method.__name__
    signature = inspect.signature(method)
    known = [*signature.parameters][1:]
    listed = f"Its arguments are {', '.join(f'`{each}`' for each in known)}."
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        if name != "__init__":
            return f"`{policy}.{name}`: {error}. {listed} {_ADVICE[name]}."
        if not hasattr(args[0], "_settings_type"):
            return f"`{policy}`: {error}. {listed} Write `{_example(policy, signature)}`."
        config = type(args[0])._settings_type()
        known_settings = [field.name for field in fields(config)]
        own = [each for each in named if each in known_settings]
        if own:
            text = ", ".join(f"{each}={named[each]!r}" for each in own)
            return (
                f"`{policy}` has no argument `{own[0]}`, which is one of its settings. Write "
                f"`{policy}(spec, {config.__name__}({text}))`."
            )
        unknown = [each for each in named if each not in known]
        hint = ""
        if unknown:  # no setting is a network or a function
            settings = [] if callable(named[unknown[0]]) else known_settings
            hint = did_you_mean(unknown[0], [*known, *settings])
        return (
            f"`{policy}`: {error}.{hint} {listed} `spec` is `envs.spec`, and `config` a "
            f"{config.__name__} of {', '.join(known_settings)}."
        )
    batch = args[1] if len(args) > 1 else None
    if name == "learn" and isinstance(batch, Rollout):
        return f"`{policy}.learn` got a Rollout; a list of them was expected: `learn([rollout])`."
    if name == "learn" and not is_dataclass(batch) and not isinstance(batch, list | tuple):
        return f"`{policy}.learn` got {kind_of(batch)}. {_ADVICE[name]}."
    return None


def _example(name: str, signature: inspect.Signature) -> str:
    """Return a call of a buffer with the spec and what must be given by name."""
    needed = [
        f"{each.name}=..."
        for each in signature.parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty
    ]
    return f"{name}({', '.join(['envs.spec', *needed])})"


def takes(fn: Callable[..., object], *args: object, **named: object) -> bool:
    """Return whether a function can be called with these arguments, as its signature says."""
    try:
        inspect.signature(fn).bind(*args, **named)
    except (TypeError, ValueError):  # ValueError: some functions in C have no signature
        return False
    return True

"""Makers of environments.

A maker holds the name or class of an environment, with arguments and wrappers. It can be pickled,
so that another process makes the environment. It can also be described in plain values, so that a
run's checkpoint contains it.
"""

from __future__ import annotations

import copy
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, Literal, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec as Registration, load_env_creator
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv

from ding_lite.errors import ConfigError, DingLiteError, EnvError, kind_of
from ding_lite.io.importing import find_again, is_file
from ding_lite.rl.envs.checks.faults import (
    Env,
    close_all,
    fault_of,
    missing_package,
    obs_and_info,
    raising_env_errors,
    text_of,
)
from ding_lite.rl.envs.checks.wrapper import CheckedEnv
from ding_lite.rl.envs.forms import supported_action_space, supported_obs_space
from ding_lite.rl.envs.naming import (
    Make,
    described,
    find_env,
    full_name,
    import_env_module,
    name_of,
    short_name,
    undescribed,
)
from ding_lite.rl.envs.native_cartpole import OURS
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings.rules import check_all, whole

logger = logging.getLogger(__name__)

EnvsMode: TypeAlias = Literal["auto", "native", "sync", "async"]
EnvWrapper: TypeAlias = Callable[[Any], Any]
"""Takes an environment, and returns a wrapped one."""
EnvLike: TypeAlias = "str | Make | EnvMaker | VectorEnv[Any, Any, Any]"
"""An environment's name, a class or function that makes it, a maker, or a vector environment."""

_OF_VECTORS = {"num_envs", "vectorization_mode", "vector_kwargs", "wrappers"}
"""Keyword arguments of `gymnasium.make_vec` that are not the environment's."""
_PLAIN = (bool, int, float, str, list, tuple, dict, type(None))


@dataclass(frozen=True)
class EnvMaker:
    """Makes environments of one kind, in this or another process.

    Args:
        env: The environment's name, or the class or function that makes it.
        args: Its keyword arguments; `max_episode_steps` is the time limit, -1 for none.
        wrappers: Applied to each environment, the first one innermost.
        imports: Modules and files to import first.
    """

    env: str | Make
    args: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[EnvWrapper] = ()
    imports: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        env: EnvLike,
        *,
        args: Mapping[str, Any] | None = None,
        wrappers: Sequence[EnvWrapper] = (),
        imports: Sequence[str] = (),
    ) -> EnvMaker:
        """Return the maker of an environment; arguments given with a maker are added to its own."""
        _check_list("wrappers", wrappers, callable, "functions around each environment")
        names = "names of modules and files"
        _check_list("imports", imports, lambda one: isinstance(one, str), names)
        args = {} if args is None else args
        if not isinstance(args, Mapping):
            raise ConfigError(
                f"`env_args` is {kind_of(args)}; a dict of the keywords of the environment "
                f'was expected: env_args={{"length": 12}}.'
            )
        if isinstance(env, EnvMaker):
            args, wrappers = {**env.args, **args}, (*env.wrappers, *wrappers)
            imports = (*env.imports, *imports)
            env = env.env
        elif isinstance(env, str):
            env = full_name(env)
        elif isinstance(env, VectorEnv):
            if args:
                raise ConfigError(
                    f"`env_args` is {dict(args)}, but the environment is {kind_of(env)}, "
                    f"which has been made already. Leave `env_args` out, or give a function that "
                    f"makes it: lambda num_envs: gymnasium.make_vec(..., num_envs=num_envs)."
                )
            env = _once(env)
        elif isinstance(env, gymnasium.Env) or not callable(env):
            raise ConfigError(
                f"The environment is {kind_of(env)}; expected is its name (CartPole-v1, "
                f"module:Env-v0, path/to/file.py:MyEnv), or the class or function that makes it: "
                f"each of those that are stepped together is made anew."
            )
        elif isinstance(env, partial) and _is_plain(env):
            args, env = {**env.keywords, **args}, env.func
        files = [os.path.abspath(place) if is_file(place) else place for place in imports]
        return cls(env, dict(args), tuple(wrappers), tuple(files))

    @cached_property
    def name(self) -> str:
        if isinstance(self.env, str) and self.registered is not None:
            return self.registered.id
        return short_name(self.env)

    @cached_property
    def registered(self) -> Registration | None:
        """The entry in gymnasium's registry; None if a class or a function makes it."""
        found = self._made_by
        return found if isinstance(found, Registration) else None

    @cached_property
    def _made_by(self) -> Registration | Make:
        for place in self.imports:
            import_env_module(place)
        return find_env(self.env) if isinstance(self.env, str) else self.env

    def __getstate__(self) -> dict[str, Any]:
        """Leave out a class that was found by its name: other processes find it by the name."""
        state = dict(vars(self))
        if self.registered is None and isinstance(self.env, str):
            state.pop("_made_by", None)
        return state

    def __str__(self) -> str:
        return self.name

    @property
    def is_plain(self) -> bool:
        """Whether an id of gymnasium's registry is enough to make the environment."""
        has_more = self.args or self.wrappers or self.imports
        return isinstance(self.env, str) and ":" not in self.env and not has_more

    def described(self) -> dict[str, Any]:
        """Describe the maker in plain values; None replaces objects that no name finds."""
        env = self.env if isinstance(self.env, str) else name_of(self.env)
        about = {
            "env_args": dict(self.args),
            "wrappers": [described(wrapper) for wrapper in self.wrappers],
            "imports": list(self.imports),
        }
        return {"env": env, **{key: value for key, value in about.items() if value}}

    @classmethod
    def from_description(cls, about: Mapping[str, Any], *, name: str) -> EnvMaker:
        """Return the maker of a description by `described`; raise if a part is not found."""
        wrappers = about.get("wrappers", ())
        if about["env"] is None or None in wrappers:
            what = "The environment" if about["env"] is None else "A wrapper of the environment"
            raise ConfigError(
                f"{what} {name} cannot be found again: it was no class or function at the top of a "
                f"module or a file. Put it there, or give the environment: "
                f"load_policy(..., env=...)."
            )
        made = cls.of(
            about["env"],
            args=about.get("env_args"),
            wrappers=[undescribed(one) for one in wrappers],
            imports=about.get("imports", ()),
        )
        env = find_again(made.env) if isinstance(made.env, str) else made.env
        return replace(made, env=env, imports=tuple(map(find_again, made.imports)))

    def __call__(self, **args: Any) -> Any:  # noqa: ANN401 - an environment, or several as one
        """Make an environment, or a vector environment if its function makes one."""
        name, args = self.name, {**self.args, **args}
        made = self._made(args)
        kind = VectorEnv if isinstance(made, VectorEnv) else gymnasium.Env
        if not isinstance(made, kind):
            raise ConfigError(
                f"`{name}` returned {kind_of(made)}; an environment of gymnasium was expected "
                f"(gymnasium.Env, not one of the older package gym)."
            )
        for wrapper in self.wrappers:
            called = short_name(wrapper)
            with raising_env_errors(f"The wrapper `{called}` of {name}", ""):
                made = wrapper(made)
            if not isinstance(made, kind):
                raise ConfigError(
                    f"The wrapper `{called}` of {name} returned {kind_of(made)}; a gymnasium "
                    f"{'vector ' if kind is VectorEnv else ''}environment was expected. Return "
                    f"the environment that it made."
                )
        return made

    def _made(self, args: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever a function returns
        found, name = self._made_by, self.name
        try:
            if isinstance(found, Registration):
                return gymnasium.make(found, disable_env_checker=True, **args)
            limit = args.pop("max_episode_steps", None)
            env = found(**args)
            if limit in (None, -1):
                return env
            if isinstance(env, VectorEnv):
                env.close()
                raise ConfigError(
                    f"`max_episode_steps` (or `episode_limit`, `eval_limit`) is {limit}, and "
                    f"{name} makes a vector environment, of which the parts were not made here. "
                    f"Limit them there."
                )
            return gymnasium.wrappers.TimeLimit(env, limit)
        except DingLiteError:
            raise
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            raise missing_package(name, error) from error
        except BaseException as error:
            is_wrong = isinstance(error, ValueError) and "max_episode_steps" in str(error)
            if is_wrong or (isinstance(error, TypeError) and (args or "argument" in str(error))):
                raise ConfigError(
                    f"{name} could not be made with the arguments {args}: "
                    f"{text_of(error).rstrip('.')}. Give others: env_args={{...}}, or "
                    f"--env-arg NAME=VALUE."
                ) from error
            if (fault := fault_of(name, "__init__", error)) is None:
                raise
            raise fault from error

    def make(self, num_envs: int) -> list[Env]:
        envs: list[Env] = []
        try:
            for _ in range(num_envs):
                envs.append(self())
        except BaseException:
            close_all(envs)
            raise
        return envs

    @property
    def takes_num_envs(self) -> bool:
        """Whether a function with an argument `num_envs` makes a vector environment."""
        if isinstance(self._made_by, Registration):
            return False
        try:
            return "num_envs" in inspect.signature(self._made_by).parameters
        except (TypeError, ValueError):  # some functions written in C have no signature
            return False

    @property
    def reward_threshold(self) -> float | None:
        """The return that counts as solved; None if the registry has none."""
        return None if self.registered is None else self.registered.reward_threshold

    def time_limit(self, env: Any) -> int | None:  # noqa: ANN401 - an environment, or several
        own = self.registered or getattr(env, "spec", None)
        limit = self.args.get("max_episode_steps", getattr(own, "max_episode_steps", None))
        return None if limit in (None, -1) else int(limit)

    def spec(self, *, frame_stack: int = 1) -> EnvSpec:
        check_all(whole(1, frame_stack=frame_stack))
        env = self(num_envs=1) if self.takes_num_envs else self()
        try:
            return self.spec_of(env, frame_stack=frame_stack)
        finally:
            close_all([env])

    def spec_of(self, env: Env | VectorEnv[Any, Any, Any], *, frame_stack: int) -> EnvSpec:
        env_id = self.name
        maker: EnvMaker = self
        single = "single_" if isinstance(env, VectorEnv) else ""
        obs_space = _space_of(env_id, env, f"{single}observation_space")
        action_space = _space_of(env_id, env, f"{single}action_space")
        if isinstance(env, VectorEnv):
            maker = (None if self.wrappers else maker_again(env)) or self
            env_id = maker.name
        action_space = supported_action_space(env_id, action_space)
        _check_sample(env_id, action_space)
        spec = EnvSpec(
            env_id=env_id,
            obs_space=supported_obs_space(env_id, obs_space),
            action_space=action_space,
            max_episode_steps=self.time_limit(env),
            frame_stack=frame_stack,
            maker=None if maker.is_plain else maker,
        )
        if self.native_kind() != "ours" and _gives_action_masks(env, spec):
            spec = replace(spec, has_action_mask=True)
        if frame_stack > 1 and spec.packing is not None:
            raise ConfigError(
                f"`frame_stack` is {frame_stack}, but the observations of {env_id} "
                f"{'have an action mask' if spec.has_action_mask else 'have several parts'}, and "
                f"only plain vectors and images are stacked. Leave it at 1; one vector of several "
                f"frames is made by gymnasium's wrappers, `FlattenObservation("
                f"FrameStackObservation(env, {frame_stack}))`: make_envs(..., wrappers=[...])."
            )
        return spec

    def native_kind(self) -> Literal["ours", "theirs"] | None:
        """Return which array program, if any, steps all environments at once.

        The episodes of another package's program (`theirs`) differ from those of `sync` mode.
        """
        if self.registered is None or self.wrappers or self.registered.additional_wrappers:
            return None
        entry_point = self.registered.vector_entry_point
        if entry_point is None:
            return None
        if entry_point in OURS:
            return "ours"
        try:
            creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        except ImportError:  # a missing package, which the plain form may not need
            return None
        mode = getattr(creator, "metadata", {}).get("autoreset_mode")
        return "theirs" if mode in (AutoresetMode.DISABLED, AutoresetMode.SAME_STEP) else None


def _space_of(env_id: str, env: object, name: str) -> Any:  # noqa: ANN401 - whatever it is
    with raising_env_errors(env_id, name):
        try:
            return getattr(env, name)
        except AttributeError as error:
            if error.name != name:  # the environment computes its space, and failed
                raise
            raise EnvError(f"{env_id} has no `{name}`; set it in `__init__`.") from error


def _check_sample(env_id: str, space: Space[Any]) -> None:
    with raising_env_errors(env_id, "action_space.sample"):
        drawn = copy.deepcopy(space).sample()  # a copy keeps the generator of the space unchanged
        is_own = space.contains(drawn)
    if not is_own:
        raise EnvError(
            f"{env_id} has the action space {space}, and its `sample` returned {drawn!r}, which it "
            f"does not contain; an action of its own was expected. Mend `sample`, or the bounds."
        )


def _gives_action_masks(env: Any, spec: EnvSpec) -> bool:  # noqa: ANN401
    try:
        if isinstance(env, VectorEnv):
            with raising_env_errors(spec.env_id, "reset"):
                answer = env.reset(seed=0)
            _, info = obs_and_info(spec.env_id, answer)
        else:
            _, info = CheckedEnv(env, index=0, spec=spec).reset(seed=0)
            if getattr(env.unwrapped, "_np_random", True) is None:
                _warn_of_no_seed(spec.env_id)
    except EnvError:  # it is raised again, with the right number, when the episodes begin
        return False
    if "action_mask" not in info:
        if callable(getattr(getattr(env, "unwrapped", env), "action_masks", None)):
            logger.warning(
                "%s has a method `action_masks`, which is not called: masks are taken from "
                '`info["action_mask"]` of `reset` and `step`. A wrapper can put them there',
                spec.env_id,
            )
        return False
    if not spec.num_choices:
        raise ConfigError(
            f'{spec.env_id} returns `info["action_mask"]`, but has the action space '
            f"{spec.action_space}; masks of choices (Discrete, MultiDiscrete) are supported. Drop "
            f"it from the info with a wrapper: make_envs(..., wrappers=[...])."
        )
    return True


@cache
def _warn_of_no_seed(env_id: str) -> None:
    logger.warning(
        "%s did not begin its `reset` with `super().reset(seed=seed)`, which gymnasium's checker "
        "refuses; unless the seed decides all that is random in it, no run can be repeated",
        env_id,
    )


def maker_again(vector: VectorEnv[Any, Any, Any]) -> EnvMaker | None:
    """Return a maker of environments like the members of a vector that gymnasium has made.

    Return None if the vector has no id of the registry, or has its own wrappers.
    """
    spec: object = vector.spec  # some packages have another object there
    registry = gymnasium.registry
    if not isinstance(spec, Registration) or spec.id not in registry or spec.kwargs.get("wrappers"):
        return None
    args = {key: value for key, value in spec.kwargs.items() if key not in _OF_VECTORS}
    return EnvMaker(spec.id, args)


def _once(vector: VectorEnv[Any, Any, Any]) -> Make:
    left = [vector]
    spec: object = vector.spec
    name = spec.id if isinstance(spec, Registration) else type(vector.unwrapped).__name__

    def hand_over() -> VectorEnv[Any, Any, Any]:
        if not left:
            raise ConfigError(
                f"The vector environment {name} is in use, and others like it are needed: for "
                f"evaluations, or to watch what was trained. Give a function that makes one: "
                f"lambda num_envs: gymnasium.make_vec(..., num_envs=num_envs)."
            )
        return left.pop()

    hand_over.__name__ = name
    return hand_over


def _check_list(
    name: str,
    given: Any,  # noqa: ANN401 - of any type
    fits: Callable[[object], bool],
    what: str,
) -> None:
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(map(fits, given)):
        raise ConfigError(f"`{name}` is {given!r}; a list of {what} was expected: {name}=[...].")


def _is_plain(made: partial[Any]) -> bool:
    """Return whether a partial function has only keyword arguments that can be written down."""
    values = made.keywords.values()
    is_limited = "max_episode_steps" in made.keywords  # in `args` it would be a time limit
    return not made.args and not is_limited and all(isinstance(one, _PLAIN) for one in values)


def ids_of_native() -> list[str]:
    return sorted(env_id for env_id in gymnasium.registry if EnvMaker(env_id).native_kind())

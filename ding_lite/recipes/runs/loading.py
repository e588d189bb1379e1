"""Load the policy of a run from its checkpoint alone."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.io.files import named
from ding_lite.io.importing import find_again, find_member
from ding_lite.io.places import look_in
from ding_lite.io.signature import is_signed
from ding_lite.middleware.checkpoints.description import (
    described_parts,
    described_policy,
    imported_places,
    named_code,
    parts_of,
)
from ding_lite.middleware.checkpoints.resume import fitting
from ding_lite.nest import leaves
from ding_lite.recipes.runs.directory import BEST, CHECKPOINT, CONFIG, has_best, has_checkpoint
from ding_lite.recipes.runs.results import runs_in
from ding_lite.recipes.table import RECIPES, FunctionConfig, Recipe, find_recipe
from ding_lite.rl.checkpoint.save_load import MANIFEST, load_checkpoint
from ding_lite.rl.envs.making import EnvLike, EnvMaker
from ding_lite.rl.networks.conv import Conv
from ding_lite.rl.policies.base.config import without_unused
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.weights.flat_module import MakeModule
from ding_lite.rl.weights.optimizers import MakeOptimizer
from ding_lite.settings.config import as_config


def load_policy(  # noqa: PLR0913 - all but one by name, and few at a time
    directory: str | os.PathLike[str],
    *,
    last: bool = False,
    env: EnvLike | None = None,
    policy: type[Any] | Callable[..., Policy] | None = None,
    network: MakeModule | None = None,
    actor: MakeModule | None = None,
    critic: MakeModule | None = None,
    optimizer: MakeOptimizer | None = None,
    device: str = "cpu",
    trust: bool = False,
) -> Any:  # noqa: ANN401 - of the class that the run has trained
    """Load the policy that a run has saved.

    A type checker learns its class by an annotation, `policy: DQN = load_policy(run)`.
    `policy.spec.env_id` is the environment for which it was trained. The user's network, optimiser,
    policy and environment are imported by name if they are classes or functions at the top level of
    a module or a file. A run that this user has not saved on this machine could name any code, so
    its code is imported only with `trust`, and so is code that has moved since.

    Args:
        directory: The directory of a run, or of a checkpoint of `middleware.checkpoint`.
        last: Load the newest weights of a run, even if `middleware.keep_best` has saved those of
            the best evaluation.
        env: The environment, as `make_envs` takes it. It is needed if the checkpoint cannot name
            it: if it was a lambda or a class of a notebook, or has moved.
        policy: The class of the policy, or the function of the spec that makes it, likewise.
        network: The network of the policy, likewise.
        actor: The actor of the policy, likewise.
        critic: The critic of the policy, likewise.
        optimizer: The optimiser of the policy, likewise.
        device: The device of the networks, as PyTorch names it.
        trust: Import the code that the run names, even if this user has not saved it on this
            machine, or the code has moved. Objects that are given as arguments are not imported by
            name.

    Raises:
        CheckpointError: There is no checkpoint, it is damaged, a part of the policy cannot be
            found, or the run names code and is not trusted, or the code has moved.
        ConfigError: A module or a file that the checkpoint names does not exist any more.
        MissingExtraError: The environment needs a package that is not installed.
    """
    path = find_policy(directory, last=last)
    if not (path / MANIFEST).exists():
        _refuse_without_checkpoint(Path(os.path.expanduser(directory)))
    saved = load_checkpoint(path, only=_policy_among)
    name, about = described_policy(saved.meta)
    given = {"network": network, "actor": actor, "critic": critic, "optimizer": optimizer}
    if not trust:
        replaced = {name for name, part in {**given, "env": env, "class": policy}.items() if part}
        _check_signature(about, replaced, path)
    found = _parts(about, given, path)
    more = found if device == "cpu" else {**found, "device": device}
    with fitting(name or "policy", path):
        saved_env = about["env"]
        if env is None:
            env = saved_env["env_id"]
            if "made_by" in saved_env:
                env = _saved_env(saved_env["made_by"], saved_env["env_id"])
        spec = EnvMaker.of(env).spec(frame_stack=saved_env["frame_stack"])
        recipe = _recipe(about, policy, spec, path)
        of_run = {} if recipe.policy_config is FunctionConfig else about["config"]
        settings = without_unused(of_run, found)
        config = as_config(recipe.policy_config, settings)
        state = saved.state if name is None else saved.state[name]
        if policy is None and "class" not in about:
            _check_sizes(config, spec.frame_stack, state)
        loaded = recipe.policy(spec, config, **more)
        loaded.load_state_dict(state)
    return loaded


def _check_sizes(config: object, frame_stack: int, state: object) -> None:
    """Refuse settings of a network with more weights than were saved, before it is made."""
    hidden: Sequence[int] = getattr(config, "hidden", ())
    convs: Sequence[Conv] = getattr(config, "convs", None) or ()
    memory: int = getattr(config, "memory_size", 0) if getattr(config, "memory", None) else 0
    least = memory**2 + sum(wide * next_ for wide, next_ in pairwise(hidden)) + sum(hidden)
    least += sum(conv.channels * conv.kernel**2 for conv in convs)
    saved = sum(math.prod(leaf.shape) for _, leaf in leaves(state) if hasattr(leaf, "shape"))
    least = max(least, frame_stack)  # each observation has weights of its own
    if least > saved:
        raise CheckpointError(
            f"its settings describe {least:,} weights or more, and {saved:,} numbers are saved. "
            f"Take another checkpoint, or a copy of it."
        )


def _refuse_without_checkpoint(folder: Path) -> NoReturn:
    if runs := [str(run) for run in runs_in(folder) if run != folder and has_checkpoint(run)]:
        raise CheckpointError(
            f"There is no checkpoint in {named(folder)}, which is a folder of runs. Give one of "
            f"them: {', '.join(runs[:8])}{', ...' if len(runs) > 8 else '.'}"
        )
    if (folder / CONFIG).exists():
        raise CheckpointError(
            f"The run in {named(folder)} has not saved a checkpoint yet. Wait until it has, or go "
            f"on with it by --resume."
        )
    raise CheckpointError(
        f"There is no run or checkpoint in {named(folder)}. `ding-lite runs` lists the runs of "
        f"runs/."
    )


def _saved_env(made_by: Mapping[str, Any], name: str) -> EnvMaker:
    if made_by.get("env_args", {}) is None:
        raise ConfigError(
            f"The arguments of the environment {name} cannot be found again, as JSON has no such "
            f"values. Give the environment with them: load_policy(..., env=...)."
        )
    return EnvMaker.from_description(made_by, name=name)


def _check_signature(about: Mapping[str, Any], replaced: Collection[str], path: Path) -> None:
    """Refuse unsigned code in the policy's description, except for parts that are `replaced`.

    Signed code must be where it was when it was signed, or be installed.
    """
    named = named_code(about)
    parts = parts_of(named).items()
    imported = {name: part for name, part in parts if name not in replaced and part}
    if imported and not is_signed(named, about.get("signature")):
        shown = ", ".join(f"{name} {_shown(place)}" for name, place in imported.items())
        raise CheckpointError(
            f"The run in {path} names code that is imported to load it: {shown}. It was not saved "
            f"by you on this machine, and may run anything. If you trust it: load_policy(..., "
            f"trust=True), or --trust on the command line."
        )
    if fault := look_in(named.get("folders", {}), imported_places(imported)):
        raise CheckpointError(
            f"The run in {path} is loaded with {fault}. Another one may run anything. Put it back, "
            f"or if you trust the one that is found by its name now: load_policy(..., "
            f"trust=True), or --trust on the command line."
        )


def _shown(place: object) -> str:
    if isinstance(place, list):  # of an environment: its id, and how it is made
        place = place[1] or place[0]
    return textwrap.shorten(str(place), 200)


def _parts(about: Mapping[str, Any], given: Mapping[str, object], path: Path) -> dict[str, object]:
    """Return the user's parts of a policy: those given now, else those imported by name."""
    parts = {name: part for name, part in given.items() if part is not None}
    saved = about.get("given")
    for name, place in (saved if isinstance(saved, dict) else {}).items():
        if name in parts:
            continue
        if name not in given or not isinstance(place, str):
            raise CheckpointError(
                f"The policy in {path} has a {name} of your own, which cannot be found again: it "
                f"was no class or function at the top of a module or a file. Give it: "
                f"load_policy({str(path)!r}, {name}=...)."
            )
        module, _, member = find_again(place).rpartition(":")
        parts[name] = find_member(module, member)
    return parts


def _recipe(about: Mapping[str, Any], policy: object, spec: EnvSpec, path: Path) -> Recipe:
    if policy is not None:
        return find_recipe(policy, lambda: spec)
    for recipe in RECIPES.values():
        if recipe.policy.__name__ == about["kind"] and "class" not in about:
            return recipe
    place = about.get("class")
    recipe_of_own = find_recipe(find_again(place), lambda: spec) if isinstance(place, str) else None
    if recipe_of_own is None or recipe_of_own.policy_config is FunctionConfig:
        raise CheckpointError(
            f"The policy in {path} is a {about['kind']}, which is none of ours: "
            f"{', '.join(one.policy.__name__ for one in RECIPES.values())}. Give its class, or the "
            f"function of the spec that makes it: load_policy({str(path)!r}, policy=...)."
        )
    return recipe_of_own


def _policy_among(meta: Mapping[str, Any]) -> tuple[str] | None:
    """Return the name of the policy in a checkpoint; None if it contains only a policy."""
    try:
        name, _ = described_policy(meta)
    except CheckpointError as error:
        kinds = [about.get("kind") for about in (described_parts(meta) or {}).values()]
        if "Population" not in kinds:
            raise
        raise CheckpointError(
            "This is the checkpoint of a population, which has no newest policy. Load the policy "
            "of its best evaluation, which is in best/ after the first one: without `last`, or "
            "without --last on the command line."
        ) from error
    return None if name is None else (name,)


def find_policy(directory: str | os.PathLike[str], *, last: bool = False) -> Path:
    """Return the path of the checkpoint that `load_policy` reads; it need not exist."""
    path = Path(os.path.expanduser(directory))
    if (path / MANIFEST).exists():
        return path
    return path / (BEST if has_best(path) and not last else CHECKPOINT)

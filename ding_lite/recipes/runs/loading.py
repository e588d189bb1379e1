"""Load the policy of a run from its checkpoint alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ding_lite.errors import CheckpointError
from ding_lite.middleware.checkpoint import described_policy, fitting
from ding_lite.recipes.runs.directory import BEST, CHECKPOINT, has_best
from ding_lite.recipes.table import RECIPES
from ding_lite.rl.checkpoint.save_load import MANIFEST, load_checkpoint
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.protocols import Policy
from ding_lite.settings import as_config


def load_policy(directory: str | os.PathLike[str], *, last: bool = False) -> Policy:
    """Make the policy that a run has saved, as it was then.

    `policy.spec.env_id` says which environment it was trained for.

    Args:
        directory: Of a run, or of a checkpoint that `middleware.checkpoint` has written.
        last: Of a run, take the newest weights, also where `middleware.keep_best` has saved
            those of the best evaluation.

    Raises:
        CheckpointError: There is no checkpoint, it is damaged, or its policy is of no known kind.
        MissingExtraError: The environment needs a package that is not installed.
    """
    path = find_policy(directory, last=last)
    saved = load_checkpoint(path, only=_policy_among)
    name, about = described_policy(saved.meta)
    recipes = {recipe.policy.__name__: recipe for recipe in RECIPES.values()}
    if about["kind"] not in recipes:
        raise CheckpointError(
            f"The policy in {path} is a {about['kind']}, which is none of ours: "
            f"{', '.join(recipes)}. Make one yourself, and give it what "
            f"`load_checkpoint({str(path)!r})` returns."
        )
    recipe = recipes[about["kind"]]
    with fitting(name or "policy", path):
        env, config = about["env"], as_config(recipe.policy_config, about["config"])
        with make_envs(env["env_id"], 1, mode="sync", frame_stack=env["frame_stack"]) as envs:
            policy = recipe.policy(envs.spec, config)
        policy.load_state_dict(saved.state if name is None else saved.state[name])
    return policy


def _policy_among(meta: Mapping[str, Any]) -> tuple[str] | None:
    """Choose the policy among what a checkpoint holds; None where it holds nothing else."""
    name, _ = described_policy(meta)
    return None if name is None else (name,)


def find_policy(directory: str | os.PathLike[str], *, last: bool = False) -> Path:
    """Return the checkpoint that `load_policy` takes; it need not be there."""
    path = Path(directory)
    if (path / MANIFEST).exists():
        return path
    return path / (BEST if has_best(path) and not last else CHECKPOINT)

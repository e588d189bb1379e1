"""The policy of a run, made again."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite import Task, middleware as mw
from ding_lite.errors import CheckpointError
from ding_lite.recipes import load_policy
from ding_lite.recipes.table import find_recipe
from ding_lite.rl.checkpoint.save_load import load_checkpoint, save_checkpoint
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.policies.impala import IMPALA, IMPALAConfig
from ding_lite.rl.policies.ppo import PPO, PPOConfig
from ding_lite.rl.protocols import Policy
from ding_lite.testing import run_step

SPEC = EnvMaker.of("CartPole-v1").spec()


def small(seed: int = 0) -> DQN:
    return DQN(SPEC, DQNConfig(hidden=(8,), seed=seed))


def save(policy: Any, folder: Path | str) -> None:
    run_step(mw.checkpoint(policy, folder, every=1))


@pytest.mark.parametrize("alone", [True, False])
def test_a_policy_acts_as_the_one_that_was_saved(tmp_path: Path, alone: bool) -> None:
    with make_envs("CartPole-v1", 1, frame_stack=2) as envs:
        policy = DQN(envs.spec, DQNConfig(hidden=(8,), n_step=5, seed=3))
    parts = {"agent": policy, "task": Task()}
    save(policy if alone else parts, tmp_path)

    loaded = load_policy(tmp_path)
    assert (loaded.config, loaded.spec) == (policy.config, policy.spec)
    obs = np.random.default_rng(0).random((64, 8), dtype=np.float32)
    np.testing.assert_array_equal(
        loaded.act(obs, explore=False), policy.act(obs, explore=False), strict=True
    )


def test_an_infinite_setting_is_loaded(tmp_path: Path) -> None:
    with make_envs("CartPole-v1", 1) as envs:
        policy = IMPALA(envs.spec, IMPALAConfig(rho_clip=math.inf))
    run_step(mw.checkpoint(policy, tmp_path, every=1))
    assert load_policy(tmp_path).config == policy.config


def test_of_a_run_the_best_policy_is_taken_unless_the_last_one_is_wanted(tmp_path: Path) -> None:
    best, last = small(1), small(2)
    save(last, tmp_path / "checkpoint")
    assert same(load_policy(tmp_path), last)  # there was no evaluation yet

    run_step(mw.keep_best(best, tmp_path / "best"), eval_value=-120.0)
    assert same(load_policy(tmp_path), best)
    assert same(load_policy(tmp_path, last=True), last)
    assert same(load_policy(tmp_path / "checkpoint"), last)
    assert same(load_policy(tmp_path / "best", last=True), best)


def test_runs_in_a_folder_are_named_if_it_has_no_checkpoint(tmp_path: Path) -> None:
    policy = small()
    for name in ("a", "b"):
        save(policy, tmp_path / name / "checkpoint")
        (tmp_path / name / "config.json").touch()
    with pytest.raises(CheckpointError, match=rf"Give one of them: {tmp_path}/a, {tmp_path}/b\."):
        load_policy(tmp_path)
    with pytest.raises(CheckpointError, match=rf"Give that of the checkpoint, {tmp_path}/a/check"):
        load_checkpoint(tmp_path / "a")


def same(one: Policy, other: Policy) -> bool:
    a, b = one.weights(), other.weights()
    return all(bool((a[name] == b[name]).all()) for name in a)


def test_an_unknown_policy_is_named_in_the_error(tmp_path: Path) -> None:
    class Hidden(DQN):
        pass

    save(Hidden(SPEC), tmp_path)
    with pytest.raises(CheckpointError, match="is a Hidden, which is none of ours: DQN"):
        load_policy(tmp_path)
    assert type(load_policy(tmp_path, policy=Hidden)) is Hidden


def test_the_class_of_a_file_is_found_from_any_folder(tmp_path, monkeypatch) -> None:
    file = tmp_path / "elsewhere" / "in_a_file.py"
    file.parent.mkdir()
    file.write_text("from ding_lite.rl import DQN\nclass InAFile(DQN):\n    pass\n")
    monkeypatch.setattr("sys.path", [*sys.path])
    policy = find_recipe(f"{file}:InAFile", lambda: SPEC).policy(SPEC, None)
    save(policy, tmp_path / "run")

    # Another process, started in another folder.
    monkeypatch.setattr("sys.path", [place for place in sys.path if place != str(file.parent)])
    monkeypatch.delitem(sys.modules, "in_a_file")
    assert type(load_policy(tmp_path / "run")).__name__ == "InAFile"


def test_code_that_a_run_from_elsewhere_names_is_imported_only_on_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = DQN(SPEC, optimizer=torch.optim.RMSprop)
    save(policy, tmp_path / "run")
    assert same(load_policy(tmp_path / "run"), policy)

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    with pytest.raises(CheckpointError, match=r"optimizer torch.optim.rmsprop:RMSprop.*--trust"):
        load_policy(tmp_path / "run")
    assert same(load_policy(tmp_path / "run", trust=True), policy)
    assert same(load_policy(tmp_path / "run", optimizer=torch.optim.RMSprop), policy)


CART = """
import gymnasium
class Cart(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
"""


@pytest.mark.parametrize("name", ["own_tasks:Cart", "own_tasks.py:Cart"])
def test_a_signed_run_imports_code_from_where_it_was_and_from_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    project, back = tmp_path / "project", tmp_path / "back"
    path = [*sys.path]

    def go_to(folder: Path) -> None:
        """As if a new process started in the folder."""
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [*path])
        monkeypatch.delitem(sys.modules, "own_tasks", raising=False)

    go_to(project)
    Path("own_tasks.py").write_text(CART)
    sys.path.insert(0, str(project))
    with make_envs(name, 1) as envs:
        save(DQN(envs.spec), "run")

    go_to(back)
    shutil.copytree(project / "run", "run")
    Path("own_tasks.py").write_text("raise SystemExit('code of a stranger has run')")
    assert load_policy("run").spec.env_id == "Cart"
    is_file = name.startswith("own_tasks.py")
    go_to(back)
    sys.path.insert(0, str(back))  # as in a notebook
    if not is_file:
        with pytest.raises(CheckpointError, match=rf"was in {project} .*found in {back}.*--trust"):
            load_policy("run")
    (project / "own_tasks.py").unlink()
    go_to(back)
    with pytest.raises(CheckpointError, match=r"not (there|found) any more.*trust=True"):
        load_policy("run")
    Path("own_tasks.py").write_text(CART)
    sys.path.insert(0, str(back))
    assert load_policy("run", trust=True).spec.env_id == "Cart"
    go_to(back)
    assert load_policy("run", env="CartPole-v1").spec.env_id == "CartPole-v1"


def test_the_folders_of_a_signed_run_cannot_be_changed(tmp_path: Path) -> None:
    policy = DQN(SPEC, optimizer=torch.optim.RMSprop)
    save(policy, tmp_path / "run")
    saved = load_checkpoint(tmp_path / "run")
    about = {**saved.meta["policy"], "folders": {"torch": [str(tmp_path)]}}
    save_checkpoint(tmp_path / "run", saved.state, meta={**saved.meta, "policy": about})
    with pytest.raises(CheckpointError, match="was not saved by you"):
        load_policy(tmp_path / "run")


@pytest.mark.parametrize(
    "about",
    [
        {"env": {"env_id": "evil:Env-v0", "frame_stack": 1}},
        {"env": {"env_id": "x", "frame_stack": 1, "made_by": {"env": "evil.py:make"}}},
        {"env": {"env_id": "x", "frame_stack": 1, "made_by": {"env": "x", "imports": ["evil"]}}},
        {"given": {"network": "evil:Net"}},
        {"class": "evil:Policy", "kind": "Policy"},
    ],
)
def test_a_crafted_checkpoint_imports_nothing(tmp_path, monkeypatch, about) -> None:
    save(small(), tmp_path / "run")
    saved = load_checkpoint(tmp_path / "run")
    meta = {**saved.meta, "policy": {**saved.meta["policy"], **about, "signature": "0" * 64}}
    save_checkpoint(tmp_path / "run", saved.state, meta=meta)
    (tmp_path / "evil.py").write_text("raise SystemExit('code of the checkpoint has run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CheckpointError, match=r"names code.*evil"):
        load_policy(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("env", env) for env in (None, "x", ["made_by"])),
        *(("env", {"env_id": one, "frame_stack": 1}) for one in (5, ["a:b"], None, "x" * 9_000)),
        ("env", {"env_id": "x", "frame_stack": 1, "made_by": [1]}),
        *(("given", [1]), ("given", "os:system"), ("given", {"network": [1]}), ("given", {1: {}})),
        *(("class", [1]), ("class", {"a": 1}), ("class", 3)),
        *(("config", None), ("config", [1]), ("kind", None), ("kind", [1])),
    ],
)
def test_a_damaged_description_of_a_policy_is_refused(tmp_path, name, value) -> None:
    policy = small()
    for saved_as in (policy, {"agent": policy, "task": Task()}):
        save(saved_as, tmp_path)
        saved = load_checkpoint(tmp_path)
        meta = {**saved.meta}
        if saved_as is policy:
            meta["policy"] = {**meta["policy"], name: value}
        else:
            meta["parts"] = {**meta["parts"], "agent": {**meta["parts"]["agent"], name: value}}
        save_checkpoint(tmp_path, saved.state, meta=meta)
        for trust in (False, True):
            with pytest.raises(CheckpointError, match=r"description .* is damaged"):
                load_policy(tmp_path, trust=trust)


@pytest.mark.parametrize(
    "settings",
    [
        {"hidden": (30_000, 30_000)},
        {"hidden": (10**12, 64)},
        {"hidden": (1,) * 10_000},
        {"memory_size": 10**6},
        {"convs": ({"channels": 10**6, "kernel": 100, "stride": 1},)},
    ],
    ids=["wide", "wider", "deep", "memory", "convs"],
)
def test_settings_of_more_weights_than_were_saved_are_refused_before_a_network_is_made(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    policy = PPO(SPEC, PPOConfig(hidden=(8,), memory="gru", memory_size=8))
    save(policy, tmp_path)
    assert same(load_policy(tmp_path), policy)
    saved = load_checkpoint(tmp_path)
    about = saved.meta["policy"]
    meta = {**saved.meta, "policy": {**about, "config": {**about["config"], **settings}}}
    save_checkpoint(tmp_path, saved.state, meta=meta)
    with pytest.raises(CheckpointError, match=r"describe [0-9,]+ weights or more, and [0-9,]+ num"):
        load_policy(tmp_path)

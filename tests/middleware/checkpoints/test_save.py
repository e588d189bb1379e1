"""Checkpoints: when they are written, and when the last good one is left alone."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import nn

from ding_lite import middleware as mw
from ding_lite.errors import CheckpointError, NonFiniteError
from ding_lite.middleware.checkpoints.description import described_policy
from ding_lite.middleware.checkpoints.save import not_finite
from ding_lite.rl import (
    DQN,
    DQNConfig,
    Envs,
    EnvSpec,
    TorchPolicy,
    TorchPolicyConfig,
    Transitions,
    make_envs,
)
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.checkpoint.save_load import load_checkpoint, save_checkpoint
from ding_lite.runtime import Context, Task
from ding_lite.settings.config import as_config
from ding_lite.testing import run_step
from tests.middleware.running import run_steps


def saved_step(directory: Path) -> int:
    step: int = load_checkpoint(directory).meta["total_step"]
    return step


def test_it_saves_every_so_many_steps_and_at_the_end(policy: DQN, tmp_path: Path) -> None:
    steps: list[int | None] = []

    def note(ctx: Context) -> None:
        exists = (tmp_path / "manifest.json").exists()
        steps.append(saved_step(tmp_path) if exists else None)

    run_steps(mw.checkpoint(policy, tmp_path, every=3), note, steps=8)

    assert steps == [None, None, None, 2, 2, 2, 5, 5]  # it saves behind the step
    assert saved_step(tmp_path) == 7


def test_it_saves_what_generators_before_it_change_on_their_way_out(tmp_path: Path) -> None:
    class Counting:
        count = 0

        def __call__(self, ctx: Context) -> Iterator[None]:
            yield
            self.count += 1

        def state_dict(self) -> dict[str, int]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    parts = {"counting": Counting()}
    run_steps(parts["counting"], mw.checkpoint(parts, tmp_path, every=1), steps=3)
    assert load_checkpoint(tmp_path).state["counting"] == {"count": 3}


def test_an_interrupted_run_is_saved_before_its_reports_end(policy, tmp_path: Path) -> None:
    class Slow:
        def __call__(self, ctx: Context) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *how: object) -> None:
            found.append(saved_step(tmp_path))

    found: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_steps(mw.checkpoint(policy, tmp_path, every=1_000), Slow(), steps=1)
    assert found == [0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])  # as a second Ctrl-C, or a bug
def test_what_ends_a_step_in_its_middle_leaves_the_last_good_one_alone(policy, tmp_path, error):
    def fail(ctx: Context) -> None:
        if ctx.total_step == 4:
            raise error

    with pytest.raises(error):
        run_steps(mw.checkpoint(policy, tmp_path, every=3), fail, steps=10)
    assert saved_step(tmp_path) == 2


def test_a_directory_that_cannot_be_made_is_known_before_the_first_step(policy, tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be made"):
        run_step(mw.checkpoint(policy, tmp_path / "file" / "checkpoint", every=1))


def parts_of_a_run(
    folder: Path, *, env: str = "CartPole-v1", hidden: tuple[int, ...] = (16,), lr: float = 2e-3
) -> dict[str, Any]:
    """Make a small run that checkpoints all its parts."""
    envs = make_envs(env, 2, seed=0)
    policy = DQN(envs.spec, DQNConfig(hidden=hidden, lr=lr, n_step=1, batch_size=8))
    task = Task()
    parts = {"policy": policy, "task": task}
    task.use(mw.collect(policy, envs, steps=2))
    task.use(mw.checkpoint(parts, folder, every=5))
    return parts


@pytest.mark.parametrize("ends", [False, True])
def test_resume_returns_the_counters_and_whether_a_stage_has_ended_the_run(tmp_path, ends) -> None:
    def end(ctx: Context) -> None:
        ctx.finish = ends and ctx.total_step == 6
        if ctx.finish:
            os.kill(os.getpid(), signal.SIGINT)  # in the same step

    task = parts_of_a_run(tmp_path)["task"].use(end)
    with pytest.raises(KeyboardInterrupt) if ends else nullcontext():
        task.run(max_step=None if ends else 7)
    counters = mw.resume(parts_of_a_run(tmp_path), tmp_path)
    assert counters == {"total_step": 6, "env_step": 14, "train_iter": 0, "finish": ends}


def test_the_newest_evaluation_is_kept_until_there_is_a_newer_one(tmp_path: Path) -> None:
    def run(values: dict[int, float], *, resume: bool) -> object:
        def evaluate(ctx: Context) -> None:
            if ctx.total_step in values:
                ctx.eval_value = values[ctx.total_step]

        task = Task()
        parts = {"task": task}
        task.use(mw.checkpoint(parts, tmp_path, every=100))
        task.use(evaluate)
        if resume:
            mw.resume(parts, tmp_path)
        task.run(max_step=3)
        return load_checkpoint(tmp_path).meta.get("eval_value")

    assert run({}, resume=False) is None
    assert run({3: 7.0}, resume=True) == 7.0
    assert run({}, resume=True) == 7.0
    assert run({10: 8.0}, resume=True) == 8.0


def test_a_checkpoint_describes_its_parts(tmp_path: Path) -> None:
    parts_of_a_run(tmp_path)["task"].run(max_step=1)
    meta = load_checkpoint(tmp_path).meta
    assert meta["parts"]["task"] == {"kind": "Task"}
    name, about = described_policy(meta)
    assert (name, about["kind"]) == ("policy", "DQN")
    assert about["env"] == {"env_id": "CartPole-v1", "frame_stack": 1}
    assert as_config(DQNConfig, about["config"]) == DQNConfig(hidden=(16,), n_step=1, batch_size=8)


def test_a_policy_that_was_saved_alone_is_described_too_and_a_missing_one_is_not(policy, tmp_path):
    run_step(mw.checkpoint(policy, tmp_path, every=1))
    name, about = described_policy(load_checkpoint(tmp_path).meta)
    assert (name, about["kind"]) == (None, "DQN")
    with pytest.raises(CheckpointError, match=r"holds a policy alone; this program has a DQN as"):
        mw.resume(parts_of_a_run(tmp_path), tmp_path)
    run_step(mw.checkpoint({"task": Task()}, tmp_path, every=1))
    with pytest.raises(CheckpointError, match=r"holds a Task as `task`, and no policy among them"):
        described_policy(load_checkpoint(tmp_path).meta)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"env": "Acrobot-v1"}, r"`env_id` is 'Acrobot-v1', was 'CartPole-v1'"),
        ({"lr": 1e-3}, r"The `policy` is not the one that was saved: `lr` is 0.001, was 0.002"),
        ({"hidden": (8, 8)}, r"`hidden` is \(8, 8\), was \(16,\)"),
        (lambda parts: parts.update(more=Part()), "holds a DQN as `policy`, a Task as `task`"),
        (lambda parts: parts.pop("task"), r"holds a DQN as `policy`, a Task as `task`"),
        (
            lambda parts: parts["task"].use(mw.keep_best(parts["policy"], "best")),
            r"The `task` in .* Only saved: none. Only in this program: 'keep.*version of ding_lite",
        ),
    ],
)
def test_changed_parts_are_refused_by_name(tmp_path: Path, change: Any, fault: str) -> None:
    parts_of_a_run(tmp_path)["task"].run(max_step=1)
    parts = parts_of_a_run(tmp_path, **(change if isinstance(change, dict) else {}))
    if callable(change):
        change(parts)
    with pytest.raises(CheckpointError, match=fault):
        mw.resume(parts, tmp_path)
    with pytest.raises(CheckpointError, match="There is no checkpoint in"):
        mw.resume(parts, tmp_path / "elsewhere")


def test_a_setting_that_was_not_saved_had_its_default(tmp_path: Path) -> None:
    parts_of_a_run(tmp_path)["task"].run(max_step=1)
    saved = load_checkpoint(tmp_path)
    del saved.meta["parts"]["policy"]["config"]["lr"]
    save_checkpoint(tmp_path, saved.state, meta=saved.meta)
    mw.resume(parts_of_a_run(tmp_path), tmp_path)
    with pytest.raises(CheckpointError, match=r"`lr` is 0\.5, was 0\.002\. Resume"):
        mw.resume(parts_of_a_run(tmp_path, lr=0.5), tmp_path)


def rectified(spec: EnvSpec) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def smooth(spec: EnvSpec) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def own_code(
    network: Any = rectified, optimizer: Any = torch.optim.Adam, wrappers: Any = ()
) -> dict[str, Any]:
    with make_envs("CartPole-v1", 1, mode="sync", wrappers=wrappers) as envs:
        return {"policy": DQN(envs.spec, network=network, optimizer=optimizer)}


@pytest.mark.parametrize(
    ("now", "fault"),
    [
        ({"network": smooth}, r"`network` is '.*test_save:smooth', was '.*test_save:rectified'"),
        ({"optimizer": torch.optim.AdamW}, r"`optimizer` is '.*:AdamW', was '.*:Adam'\. Resume"),
        ({"optimizer": None}, r"`optimizer` is None, was '.*:Adam'"),
        ({"network": None}, r"`network` is None, was '.*test_save:rectified'"),
        ({"network": lambda spec: rectified(spec), "optimizer": None}, "`optimizer` is None"),
    ],
)
def test_other_code_of_the_user_is_refused_by_name(tmp_path: Path, now, fault) -> None:
    run_step(mw.checkpoint(own_code(), tmp_path, every=1))
    mw.resume(own_code(), tmp_path)
    with pytest.raises(CheckpointError, match=fault):
        mw.resume(own_code(**now), tmp_path)


@dataclass(frozen=True, kw_only=True)
class BoundsConfig(TorchPolicyConfig):
    low: float = math.nan
    high: float = math.inf


class Bounds(TorchPolicy[BoundsConfig]):
    def build(self) -> None:
        self.net = nn.Linear(4, 2)

    def choose(self, obs: Any, explore: bool) -> Any:
        return self.net(obs).argmax(-1)

    def loss(self, batch: Any) -> Any:
        return self.net(batch.obs).clamp(self.config.low, self.config.high).sum(-1), {}


def test_settings_that_are_no_finite_numbers_are_those_of_a_resumed_policy(tmp_path: Path) -> None:
    with make_envs("CartPole-v1", 1, mode="sync") as envs:
        run_step(mw.checkpoint({"policy": Bounds(envs.spec)}, tmp_path, every=1))
        mw.resume({"policy": Bounds(envs.spec)}, tmp_path)
        with pytest.raises(CheckpointError, match=r"`high` is 1\.0, was inf"):
            mw.resume({"policy": Bounds(envs.spec, {"high": 1.0})}, tmp_path)


@pytest.mark.parametrize("added", ["network", "optimizer"])
def test_code_that_the_saved_policy_did_not_have_is_refused(tmp_path: Path, added: str) -> None:
    run_step(mw.checkpoint(own_code(**{added: None}), tmp_path, every=1))
    with pytest.raises(CheckpointError, match=r"`policy` (is not the one|.* does not fit)"):
        mw.resume(own_code(), tmp_path)


@pytest.mark.parametrize(
    "place",
    [
        "/moved/to/test_save.py",  # run as a script; now a module of a package
        "tests.middleware.checkpoints.test_save",
        "test_save",
    ],
)
def test_the_same_code_from_elsewhere_is_accepted(tmp_path: Path, place: str, caplog) -> None:
    run_step(mw.checkpoint(own_code(), tmp_path, every=1))
    saved = load_checkpoint(tmp_path)
    given = saved.meta["parts"]["policy"]["given"]
    assert given.keys() == {"network", "optimizer"}
    given.update(network=f"{place}:rectified", optimizer="torch.optim.adam:Adam")
    save_checkpoint(tmp_path, saved.state, meta=saved.meta)
    mw.resume(own_code(), tmp_path)
    assert not caplog.records


def test_code_without_a_name_is_not_compared_and_one_warning_names_it(tmp_path, caplog) -> None:
    def nameless() -> dict[str, Any]:
        return own_code(lambda spec: rectified(spec), wrappers=[lambda env: env])

    first, again = nameless(), nameless()
    parts = {"policy": first["policy"], "other": first["policy"]}
    run_step(mw.checkpoint(parts, tmp_path, every=1))
    mw.resume({"policy": again["policy"], "other": again["policy"]}, tmp_path)
    (record,) = caplog.records
    assert record.getMessage().endswith("as a lambda or an object has none: network, wrappers")


def test_a_class_of_the_same_name_from_elsewhere_is_refused(tmp_path: Path) -> None:
    with make_envs("CartPole-v1", 1) as envs:
        parts = {"policy": Plain(envs.spec)}
    run_step(mw.checkpoint(parts, tmp_path, every=1))
    saved = load_checkpoint(tmp_path)
    saved.meta["parts"]["policy"]["class"] = "/old/agents.py:Plain"
    save_checkpoint(tmp_path, saved.state, meta=saved.meta)
    with pytest.raises(CheckpointError, match=r"`class` is '.*test_save:Plain', was 'agents:Plain"):
        mw.resume(parts, tmp_path)


def test_a_state_that_does_not_fit_a_part_is_refused_by_name(tmp_path: Path) -> None:
    with make_envs("CartPole-v1", 1) as envs:
        policy = DQN(envs.spec, DQNConfig(hidden=(4,)))
    parts = {"policy": policy}
    run_step(mw.checkpoint(parts, tmp_path, every=1))
    whole = load_checkpoint(tmp_path)
    wrongs: list[dict[str, Any]] = [{"rng": None}, {"env_step": "x"}, {"adam": 3}, {"q_net": {}}]
    for wrong in wrongs:
        state = {"policy": {**whole.state["policy"], **wrong}}
        save_checkpoint(tmp_path, state, meta=whole.meta)
        with pytest.raises(CheckpointError, match=r"The `policy` in .*(not what|does not fit)"):
            mw.resume(parts, tmp_path)
    save_checkpoint(tmp_path, {}, meta=whole.meta)
    with pytest.raises(CheckpointError, match=r"The `policy` in .* is not what"):
        mw.resume(parts, tmp_path)
    save_checkpoint(tmp_path, whole.state, meta={"parts": [1]})
    with pytest.raises(CheckpointError, match="this program has a DQN"):
        mw.resume(parts, tmp_path)


class Plain:
    """A policy in plain PyTorch: an optimiser of its own, and no base of this package."""

    n_step, gamma, config = 1, 0.99, None

    def __init__(self, spec: EnvSpec, remark: object = None) -> None:
        torch.set_num_threads(2)
        self.spec = spec
        self.net = torch.nn.Linear(4, 2)
        self.adam = torch.optim.Adam(self.net.parameters())
        self.remark = remark
        self.first_loss: object = None

    def act(self, obs: NumpyArray, *, explore: bool = True) -> NumpyArray:
        actions: NumpyArray = self.net(torch.from_numpy(obs)).argmax(-1).numpy()
        return actions

    def learn(self, batch: Transitions) -> dict[str, float]:
        loss = self.net(torch.as_tensor(batch.obs)).square().mean()
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        self.first_loss = self.remark
        return {"loss": loss.item()}

    def state_dict(self) -> dict[str, Any]:
        state = {"net": self.net.state_dict(), "adam": self.adam.state_dict()}
        return {**state, "first_loss": self.first_loss}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.adam.load_state_dict(state["adam"])


def learn_plainly(envs: Envs, directory: Path, policy: Plain, *, steps: int) -> None:
    own: Any = policy
    run_steps(
        mw.collect(own, envs, steps=4),
        mw.train(own),
        mw.checkpoint(own, directory, every=1_000),
        steps=steps,
    )


def test_a_policy_in_plain_pytorch_is_saved_with_its_optimiser(envs: Envs, tmp_path: Path) -> None:
    policy = Plain(envs.spec)
    learn_plainly(envs, tmp_path, policy, steps=2)
    assert torch.get_num_threads() == 1  # as with policies of this package
    other = Plain(envs.spec)
    other.load_state_dict(load_checkpoint(tmp_path).state)
    moments = other.adam.state_dict()["state"][0]
    assert torch.equal(moments["exp_avg"], policy.adam.state_dict()["state"][0]["exp_avg"])


def test_what_cannot_be_saved_is_refused_before_the_run_or_behind_the_first_update(envs, tmp_path):
    policy = Plain(envs.spec)
    policy.first_loss = print
    own: Any = policy
    for refuse in (mw.checkpoint, mw.keep_best):
        more: dict[str, Any] = {"every": 9} if refuse is mw.checkpoint else {}
        with pytest.raises(CheckpointError, match=r"`policy\.first_loss` is a builtin_function"):
            refuse(own, tmp_path, **more)

    with pytest.raises(CheckpointError, match=r"`policy\.first_loss` is a builtin_function"):
        learn_plainly(envs, tmp_path, Plain(envs.spec, remark=print), steps=100)


class Part:
    """A part of a run that is no policy, or a middleware, with a state that it is given."""

    __name__ = "odd"

    def __init__(self, value: object = None) -> None:
        self.value = value

    def __call__(self, ctx: Context) -> None:
        ctx.train_iter = 1

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value = state["value"]


def test_any_part_is_checked_before_the_run_and_behind_its_first_step(policy, tmp_path) -> None:
    fault = r"^`mine\.value` is a function, which .* of them\.(\n|$)"
    steps = list[int]()

    for part in (Part(saved_step), Part()):

        def change(ctx: Context, part: Part = part) -> None:
            steps.append(ctx.total_step)
            part.value = saved_step

        checkpoint = mw.checkpoint({"policy": policy, "mine": part}, tmp_path, every=50)
        with pytest.raises(CheckpointError, match=fault):
            run_steps(checkpoint, change, steps=100)
    assert steps == [0]  # of the second one
    with pytest.raises(CheckpointError, match=r"^`state\.value` is a function, .* of them\.$"):
        save_checkpoint(tmp_path, {"value": saved_step})


def test_the_state_of_other_middleware_is_checked_behind_the_first_step(tmp_path: Path) -> None:
    with Task() as task:
        task.use(mw.checkpoint({"task": task}, tmp_path, every=1_000)).use(Part(print))
        with pytest.raises(CheckpointError, match=r"odd.* is a builtin_function") as caught:
            task.run(max_step=100)
    assert "in middleware `checkpoint`" in caught.value.__notes__[0]
    assert task.ctx.total_step == 0


def test_arrays_and_tensors_of_any_float_are_looked_at_and_single_numbers_are_not() -> None:
    bad = {"array": np.array([1.0, np.nan]), "half": torch.tensor([torch.inf]).bfloat16()}
    good = {"array": np.zeros(2), "whole": torch.tensor([3]), "schedule": np.inf, "text": "nan"}
    assert not_finite({"a": [bad, good]}) == [("a", 0, "array"), ("a", 0, "half")]


class Masked(torch.nn.Module):
    """A network with the mask of an attention: infinite from the beginning."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.mask: torch.Tensor
        self.register_buffer("mask", torch.full((3, 3), -torch.inf, dtype=torch.bfloat16).triu(1))
        self.last = torch.nn.Linear(4, 2)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(obs)
        return out


@pytest.mark.parametrize("is_best", [False, True])
def test_an_infinite_buffer_is_saved_and_a_weight_that_becomes_so_is_not(envs, tmp_path, is_best):
    policy = DQN(envs.spec, DQNConfig(batch_size=8), network=Masked)
    save = mw.keep_best(policy, tmp_path) if is_best else mw.checkpoint(policy, tmp_path, every=2)

    def poison(ctx: Context) -> None:
        ctx.eval_value = ctx.total_step
        ctx.train_iter = ctx.total_step + 1
        if ctx.total_step == 4:
            policy.load_weights({k: v + torch.inf for k, v in policy.weights().items()})

    fault = r"'last.* no longer finite after update [56], so the policy was not saved"
    with pytest.raises(NonFiniteError, match=fault):
        run_steps(poison, save, steps=10)
    assert saved_step(tmp_path) == 3
    policy.load_state_dict(load_checkpoint(tmp_path).state)

"""Exported networks compute what the policy does, without this package."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.request import urlopen

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

from ding_lite import rl
from ding_lite.errors import ConfigError, MissingExtraError, pip_line
from ding_lite.recipes import export_policy
from ding_lite.recipes.runs import export
from examples.own.discrete_sac import DiscreteSAC
from examples.own.qr_dqn import QRDQN
from examples.own.rainbow import Rainbow
from examples.own.recurrent_ppo import RecurrentPPO
from tests.docpages import blocks
from tests.evolution.batched.test_modules import Branches
from tests.rl.policies.test_box_policy import batch as of_arm
from tests.rl.policies.test_dqn import CARTPOLE, batch

SCREEN = rl.EnvSpec(
    env_id="x", obs_space=Box(0, 255, (36, 36, 3), dtype=np.uint8), action_space=Discrete(3)
)
ARM = rl.EnvSpec(
    env_id="x",
    obs_space=Box(-np.inf, np.inf, (5,), dtype=np.float32),
    action_space=Box(np.array([-2, 0], np.float32), np.array([3, 10], np.float32)),
)


def with_dropout(spec: rl.EnvSpec) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)
    )


class ByLength(nn.Module):
    """Uses the number of observations as Python's number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(obs.reshape(len(obs), -1))
        return found


class Stochastic(DiscreteSAC):
    """Makes a distribution whether or not it draws from it."""

    def choose(self, obs: torch.Tensor, explore: bool) -> torch.Tensor:
        found = torch.distributions.Categorical(logits=self.actor(obs))
        return found.sample() if explore else found.probs.argmax(-1)


def normalized() -> rl.DQN:
    policy = rl.DQN(CARTPOLE, rl.DQNConfig(hidden=(8,), normalize_obs=True))
    policy.learn(batch(0))
    return policy


def normalized_td3() -> rl.TD3:
    policy = rl.TD3(ARM, rl.TD3Config(normalize_obs=True))
    policy.learn(of_arm(0, spec=ARM))
    return policy


POLICIES: dict[str, Any] = {
    "dqn": lambda: rl.DQN(CARTPOLE, rl.DQNConfig(hidden=(8, 8))),
    "dueling": lambda: rl.DQN(CARTPOLE, rl.DQNConfig(hidden=(8,), dueling=True)),
    "image": lambda: rl.DQN(SCREEN, rl.DQNConfig(hidden=(8,))),
    "normalize_obs": normalized,
    "own network": lambda: rl.DQN(CARTPOLE, network=with_dropout),
    "own network with len(obs)": lambda: rl.DQN(CARTPOLE, network=ByLength()),
    "own network, compiled": lambda: rl.DQN(
        CARTPOLE, network=torch.compile(with_dropout(CARTPOLE), backend="eager")
    ),
    "ddpg": lambda: rl.DDPG(ARM),
    "td3": normalized_td3,
    "sac": lambda: rl.SAC(ARM),
    "td3 of images": lambda: rl.TD3(replace(SCREEN, action_space=ARM.action_space)),
    "qr_dqn": lambda: QRDQN(CARTPOLE),
    "own algorithm with a distribution": lambda: Stochastic(CARTPOLE),
    "rainbow": lambda: Rainbow(CARTPOLE),
    "discrete_sac": lambda: DiscreteSAC(CARTPOLE),
}
SELDOM = ("dqn", "ddpg", "td3 of images")
"""Those that have nothing that others do not have; left to `make test-slow`."""
SLOW = pytest.mark.slow
ALONE = 'assert not any(name.startswith("ding_lite") for name in sys.modules)'


def observations(spec: rl.EnvSpec) -> np.ndarray:
    rng = np.random.default_rng(0)
    if spec.obs_dtype is np.uint8:
        return rng.integers(0, 256, (8, *spec.obs_shape)).astype(np.uint8)
    return (2.0 * rng.normal(size=(8, *spec.obs_shape))).astype(np.float32)


def computed(path: Path, obs: np.ndarray) -> np.ndarray:
    """Run a file on batches of several sizes."""
    parts = np.split(obs, [1, 5])
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(str(path))
        return np.concatenate([session.run(None, {"obs": part})[0] for part in parts])
    run = torch.export.load(str(path)).module()
    return np.concatenate([run(torch.from_numpy(part)).detach().numpy() for part in parts])


def check(policy: Any, obs: np.ndarray, found: np.ndarray) -> None:
    """Compare outputs with the module, and the best actions with those of the policy."""
    with torch.no_grad():
        expected = policy.module.eval()(torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    best = found.argmax(1) if isinstance(policy, rl.DQN) else found
    np.testing.assert_allclose(best, policy.act(obs, explore=False), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(pytest.param(name, "torch", marks=SLOW if name in SELDOM else ()) for name in POLICIES),
        *(pytest.param(name, "onnx", marks=SLOW) for name in POLICIES),  # it takes seconds
    ],
)
def test_a_file_computes_what_the_policy_does(name: str, form: str, tmp_path: Path) -> None:
    policy = POLICIES[name]()
    before = policy.weights()
    path = export_policy(policy, tmp_path / f"policy{export.SUFFIXES[form]}")
    obs = observations(policy.spec)
    check(policy, obs, computed(path, obs))
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.weights().items())


PAGE = Path(__file__).parents[3] / "docs" / "guide" / "deploy.md"
ONE_REQUEST = """
server = make_server("127.0.0.1", 0, serve)
print(server.server_port, flush=True)
server.handle_request()
"""


def test_the_server_of_the_page_answers_a_request(tmp_path: Path) -> None:
    [code] = [block.code for block in blocks(PAGE.read_text()) if "def serve(" in block.code]
    policy = rl.DQN(CARTPOLE)
    export_policy(policy, tmp_path / "policy.onnx")
    obs = observations(CARTPOLE)
    command = [sys.executable, "-c", f"{code}{ONE_REQUEST}import sys\n{ALONE}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as server:
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            request = urlopen(f"http://127.0.0.1:{port}", json.dumps(obs.tolist()).encode())
            with request as answer:
                assert json.load(answer) == policy.act(obs, explore=False).tolist()
            assert server.wait(timeout=30) == 0
        finally:
            server.kill()


class OfParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.at, self.speed = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        values: torch.Tensor = self.at(obs["at"]) + self.speed(obs["speed"])
        return values


@pytest.mark.parametrize("network", [pytest.param(None, marks=SLOW), OfParts, rl.SAC])
def test_each_part_of_an_observation_is_an_input(network: Any, tmp_path: Path) -> None:
    space = Dict(at=Discrete(3), speed=Box(-1.0, 1.0, (2,)))
    spec = rl.EnvSpec(env_id="x", obs_space=space, action_space=Discrete(4))
    policy: Any
    if network is rl.SAC:  # with convolutions
        space = Dict({**space.spaces, "map": Box(-1.0, 1.0, (5, 6))})
        policy = rl.SAC(replace(spec, obs_space=space, action_space=ARM.action_space))
    else:
        policy = rl.DQN(spec, network=network and network())
    obs = observations(policy.spec)
    expected = policy.act(obs, explore=False) if network is rl.SAC else policy.q_values(obs)
    parts = cast(dict[str, np.ndarray], policy.spec.unpack(obs))
    session = onnxruntime.InferenceSession(str(export_policy(policy, tmp_path / "policy.onnx")))
    [found] = session.run(None, {f"obs.{name}": part for name, part in parts.items()})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    run = torch.export.load(str(export_policy(policy, tmp_path / "policy.pt2"))).module()
    tensors = {name: torch.from_numpy(part) for name, part in parts.items()}
    np.testing.assert_allclose(run(tensors).detach(), expected, rtol=1e-4, atol=1e-5)


def actor_critic(kind: Any, spec: rl.EnvSpec) -> rl.PPO:
    normalizes = not spec.is_image
    return rl.PPO(spec, rl.PPOConfig(memory=kind, memory_size=8, normalize_obs=normalizes))


def test_memory_behind_normalised_observations_is_exported(tmp_path: Path) -> None:
    policy, obs = actor_critic("gru", CARTPOLE), observations(CARTPOLE)
    run = torch.export.load(str(export_policy(policy, tmp_path / "policy.pt2"))).module()
    memory = policy.make_memory(len(obs))
    assert memory is not None
    logits, _, state = run(torch.from_numpy(obs), torch.from_numpy(memory.state.copy()))
    best = policy.act(obs, explore=False, memory=memory)
    np.testing.assert_array_equal(logits.argmax(1).numpy(), best)
    np.testing.assert_allclose(state.detach().numpy(), memory.state, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [CARTPOLE, SCREEN])
@pytest.mark.parametrize(
    "make", [RecurrentPPO, rl.R2D2, partial(actor_critic, "gru"), partial(actor_critic, "lstm")]
)
def test_states_come_in_and_go_out(make: Any, spec: rl.EnvSpec, tmp_path: Path) -> None:
    if spec is SCREEN and make is RecurrentPPO:
        pytest.skip("its network is for numbers")
    policy = make(spec)
    session = onnxruntime.InferenceSession(str(export_policy(policy, tmp_path / "policy.onnx")))
    memory = policy.make_memory(8)
    state = memory.state.copy()
    for _ in range(3):
        obs = observations(spec)
        action = policy.act(obs, explore=False, memory=memory)
        found, *_, state = session.run(None, {"obs": obs, "state": state})
        best = found if make is RecurrentPPO else found.argmax(1)
        np.testing.assert_array_equal(best, action)
        np.testing.assert_allclose(state, memory.state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        pytest.param(kind, spec, marks=() if (kind, spec) == (rl.PPO, SCREEN) else SLOW)
        for kind in (rl.PPO, rl.A2C, rl.IMPALA)
        for spec in (CARTPOLE, SCREEN, ARM)
    ],
)
def test_actor_critics_return_action_parameters_and_values(kind, spec, tmp_path) -> None:
    policy = kind(spec)
    session = onnxruntime.InferenceSession(str(export_policy(policy, tmp_path / "policy.onnx")))
    obs = observations(spec)
    parameters, values = session.run(None, {"obs": obs})
    with torch.no_grad():
        expected = policy.module(torch.from_numpy(obs))
    np.testing.assert_allclose(values, expected[1].numpy(), rtol=1e-4, atol=1e-5)
    best = policy.act(obs, explore=False)
    if spec.num_actions is None:  # actions in the units of the environment, within their bounds
        np.testing.assert_allclose(parameters, best, rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_allclose(parameters, expected[0].numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(parameters.argmax(1), best)


class WideMeans(nn.Module):
    """Means far beyond the bounds, with or without log standard deviations behind them."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(5, num_outputs + 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = 3.0 * self.layer(obs)
        return found[:, :-1], found[:, -1]


@pytest.mark.parametrize(("kind", "num_outputs"), [(rl.PPO, 2), (rl.A2C, 4), (rl.IMPALA, 2)])
def test_a_file_of_an_actor_critic_gives_actions_within_all_kinds_of_bounds(
    kind: Any, num_outputs: int, tmp_path: Path
) -> None:
    low, high = np.array([[-2.0], [0.5]], np.float32), np.array([[3.0], [np.inf]], np.float32)
    spec = replace(ARM, action_space=Box(low, high))
    policy = kind(spec, network=lambda _: WideMeans(num_outputs))
    obs = observations(spec)
    run = torch.export.load(str(export_policy(policy, tmp_path / "policy.pt2"))).module()
    best = policy.act(obs, explore=False)
    assert (best == low).any()
    np.testing.assert_allclose(run(torch.from_numpy(obs))[0].detach(), best, rtol=1e-5, atol=1e-6)


VECTOR, TREE = CARTPOLE.obs_space, Dict(at=Discrete(3), speed=Box(-1.0, 1.0, (2,)))


@pytest.mark.parametrize(
    ("make", "space", "form"),
    [
        pytest.param(rl.DQN, VECTOR, "torch", id="dqn"),
        pytest.param(rl.PPO, VECTOR, "torch", id="ppo"),
        pytest.param(
            lambda spec: rl.PPO(spec, rl.PPOConfig(memory="gru", normalize_obs=True)),
            TREE,
            "onnx",
            id="ppo-memory",
        ),
        pytest.param(rl.R2D2, VECTOR, "torch", id="r2d2"),
        pytest.param(lambda spec: rl.R2D2(spec, network=AddsUp), VECTOR, "torch", id="r2d2-own"),
    ],
)
def test_a_file_chooses_legal_actions_only(make, space, form, tmp_path) -> None:
    spec = rl.EnvSpec(env_id="x", obs_space=space, action_space=Discrete(4), has_action_mask=True)
    policy, rng = make(spec), np.random.default_rng(0)
    parts = rng.normal(size=(8, *spec.obs_shape)).astype(np.float32)
    legal = rng.random((8, 4)) < 0.4
    legal[:, 2] = True
    obs = spec.pack(spec.unpack(parts), action_mask=legal)
    path = export_policy(policy, tmp_path / f"policy{export.SUFFIXES[form]}")
    size = getattr(policy, "state_size", 0)
    states = [np.zeros((8, size), np.float32)] if size else []
    if isinstance(policy, rl.R2D2):
        inputs, names = [obs, *states], ["obs", "state"]
    else:
        tree = spec.unpack(obs)
        parts_of = {f"obs.{k}": v for k, v in tree.items()} if space is TREE else {"obs": tree}
        inputs, names = [*parts_of.values(), legal, *states], [*parts_of, "action_mask", "state"]
    if form == "onnx":
        session = onnxruntime.InferenceSession(str(path))
        outputs = session.run(None, dict(zip(names, inputs, strict=False)))
    else:
        tensors: list[Any] = [torch.from_numpy(each) for each in inputs]
        found = torch.export.load(str(path)).module()(*tensors)
        found = [found] if isinstance(found, torch.Tensor) else found
        outputs = [tensor.detach().numpy() for tensor in found]
    values = outputs[0]
    memory = {"memory": policy.make_memory(8)} if size else {}
    np.testing.assert_array_equal(values.argmax(1), policy.act(obs, explore=False, **memory))
    if size:
        np.testing.assert_allclose(outputs[-1], memory["memory"].state, rtol=1e-4, atol=1e-5)
    assert np.isneginf(values[~legal]).all()
    assert np.isfinite(values[legal]).all()


class AddsUp(nn.Module):
    state_size = 4

    def __init__(self, _spec: rl.EnvSpec) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, obs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        state = state + self.layer(obs)
        return state, state


def test_the_mode_of_a_users_network_stays(tmp_path: Path) -> None:
    policy = rl.DQN(CARTPOLE, network=with_dropout)
    layers = list(policy.module.train().children())
    layers[1].eval()
    export_policy(policy, tmp_path / "policy.pt2")
    assert [layer.training for layer in layers] == [True, False, True, True, True]


def test_a_file_that_is_there_stays_whole_if_the_disk_is_full(tmp_path, monkeypatch) -> None:
    file = tmp_path / "policy.pt2"
    file.write_bytes(b"earlier")

    def write(path: Path, content: object) -> None:
        path.open("wb").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(OSError, match="No space left"):
        export_policy(rl.DQN(CARTPOLE), file)
    assert [*tmp_path.iterdir()] == [file]
    assert file.read_bytes() == b"earlier"


def test_the_format_may_be_named(tmp_path: Path) -> None:
    path = export_policy(rl.DQN(CARTPOLE), tmp_path / "weights", format="torch")
    assert torch.export.load(str(path)).module()(torch.zeros(3, 4)).shape == (3, 2)


class Plain:
    """A policy of a user, without a base."""


BYTES_TOO = rl.EnvSpec(
    env_id="x",
    obs_space=Dict(at=Box(0, 255, (2,), np.uint8), speed=Box(-1.0, 1.0, (2,))),
    action_space=Discrete(2),
)
DOTS = {"a.b": Box(-1.0, 1.0, (2,)), "a": Dict(b=Box(-1.0, 1.0, (3,)))}


@pytest.mark.parametrize(
    ("policy", "name", "form", "message"),
    [
        (
            rl.DQN(CARTPOLE),
            "policy.onnx",
            "tflite",
            "`format` is 'tflite'. Choose one of: onnx, torc",
        ),
        (Plain(), "policy.onnx", None, "`policy` is a Plain, which has no `module` to export"),
        (rl.DQN, "policy.onnx", None, "`policy` is the class DQN, which has no `module`"),
        (
            rl.DQN(CARTPOLE, network=Branches()),
            "policy.pt2",
            None,
            "may not branch on their values",
        ),
        (rl.R2D2(BYTES_TOO), "policy.onnx", None, "cannot read the bytes .* Export it as `.pt2`"),
        (
            rl.DQN(replace(BYTES_TOO, obs_space=Dict(DOTS))),
            "policy.onnx",
            None,
            r"names obs\.a\.b, and of some of them there are two",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused(policy, name, form, message, tmp_path) -> None:
    with pytest.raises(ConfigError, match=message):
        export_policy(policy, tmp_path / name, format=form)
    assert list(tmp_path.iterdir()) == []


class Projects(nn.Module):
    """An LSTM of which PyTorch writes two tensors of different ranks that are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 6, num_layers=2, batch_first=True, proj_size=2)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.lstm(obs[..., None])[0][:, -1]
        return values


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_network_that_no_runtime_would_load_replaces_no_file(tmp_path: Path) -> None:
    (tmp_path / "policy.onnx").write_text("old")
    with pytest.raises(ConfigError, match=r"cannot write this network as ONNX: "):
        export_policy(rl.DQN(CARTPOLE, network=Projects()), tmp_path / "policy.onnx")
    assert (tmp_path / "policy.onnx").read_text() == "old"


def test_without_onnx_the_error_names_what_to_install(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=re.escape(pip_line("export"))):
        export_policy(rl.DQN(CARTPOLE), tmp_path / "policy.onnx")

"""Compiled networks and captured updates: the same numbers as without.

No GPU is needed but for the last test. Here `torch.fx` records the operations of an update and
does them again, without the Python of it: a number that the update has read as a plain one stays
what it was then, as in a graph of CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ding_lite.errors import ConfigError
from ding_lite.rl import (
    A2C,
    DDPG,
    DQN,
    IMPALA,
    PPO,
    SAC,
    TD3,
    DQNConfig,
    PPOConfig,
    TorchPolicy,
    TorchPolicyConfig,
)
from ding_lite.rl.networks import activations, layers
from ding_lite.rl.policies.actor_critic import ActorCriticPolicy
from ding_lite.rl.policies.base import open_policy
from ding_lite.rl.policies.box_policy import BoxPolicy
from ding_lite.rl.weights import compiled, flat
from ding_lite.rl.weights.compiled import CapturedUpdate
from ding_lite.rl.weights.flat import FlatWeights
from tests.rl.nets import Joins, Splits
from tests.rl.policies.base.test_open_policy import with_dropout
from tests.rl.rollouts import CARTPOLE, PENDULUM, draw_batch, draw_prioritized, draw_rollout, lesson

CPU = torch.device("cpu")
of_cartpole, of_pendulum = (partial(draw_batch, spec=spec, size=6) for spec in (CARTPOLE, PENDULUM))


class TracedRecorder:
    """Records the operations of a function with `torch.fx`, which does them once: it undoes that.

    Args:
        state: The tensors that the function changes.
    """

    def __init__(self, state: Callable[[], list[Tensor]]) -> None:
        self.state = state
        self.num_recorded = 0

    def warm_up(self, run):
        return run()

    def record(self, run):
        before = [tensor.clone() for tensor in self.state()]
        names: list[str] = []

        def values() -> list[Tensor]:
            found = run()
            names[:] = found
            return [*found.values()]

        with torch.random.fork_rng(devices=[]):
            graph = make_fx(values)()
        for tensor, old in zip(self.state(), before, strict=True):
            tensor.detach().copy_(old)
        outputs: dict[str, Any] = {}
        self.num_recorded += 1

        @torch.no_grad()
        def replay() -> None:
            outputs.update(zip(names, graph(), strict=True))

        return replay, outputs


@pytest.fixture
def captured(on_tensors: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Let the CPU compute as a GPU does, and return what makes policies with captured updates."""
    for module in (flat, layers, activations):
        monkeypatch.setattr(module, "is_host", lambda _: False)
    monkeypatch.setattr(compiled, "has_graphs", lambda _: True)

    def make(kind: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = TracedRecorder(lambda: tensors_of(policy))
        monkeypatch.setattr(open_policy, "CudaRecorder", lambda _: recorder)
        policy = kind(*args, **kwargs, compile="graph")
        return policy, recorder

    return make


def tensors_of(policy: Any) -> list[Tensor]:
    """Return all tensors that an update changes."""
    found: list[Tensor] = []
    for adam in policy._optimizers.values():
        found += [adam._mean_P, adam._square_P, adam._num_updates]
    for of_networks in (*policy.flat_weights, *gradients_of(policy)):
        found.append(of_networks.flat)
    for modules in policy.own_modules.values():
        for module in modules.values():
            found += module.buffers()
    return found


def gradients_of(policy: Any) -> list[FlatWeights]:
    if isinstance(policy, DQN):
        return [policy.q_net.grads, policy._target_net.grads]
    return [policy._grads if isinstance(policy, BoxPolicy) else policy.net.grads]


def assert_same(policy: Any, other: Any) -> None:
    """Compare weights, the state of Adam, the place in the random stream, and counts."""
    ours, theirs = policy.state_dict(), other.state_dict()
    for key in ours.keys() - {"rng"}:
        if isinstance(ours[key], dict):
            torch.testing.assert_close(ours[key], theirs[key], rtol=1e-4, atol=1e-5)
        else:
            assert ours[key] == theirs[key], key


def check_updates(
    policy: Any, plain: Any, batches: Iterable[Any], *, rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    """Compare the metrics of the updates of two policies."""
    for batch in batches:
        found, expected = dict(policy.learn(batch)), dict(plain.learn(batch))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol)


# -- captured updates ----------------------------------------------------------------------


def test_a_replay_reads_the_inputs_of_now_and_returns_numbers_of_its_own() -> None:
    total = torch.zeros(())

    def update(inputs, *, scale):
        total.add_(scale * inputs["x"].sum())
        return {"total": total, "none": torch.tensor(float(inputs["y"] is None))}

    recorder: Any = TracedRecorder(lambda: [total])
    run = CapturedUpdate(update, recorder, device=CPU)
    found = [run({"x": np.full(2, k, np.float32), "y": None}, scale=1.0) for k in range(6)]
    assert [float(each["total"]) for each in found] == [0.0, 2.0, 6.0, 12.0, 20.0, 30.0]
    assert recorder.num_recorded == 1
    for _ in range(4):
        run({"x": np.ones(2, np.float32), "y": None}, scale=10.0)
    assert float(total) == 110.0
    assert recorder.num_recorded == 2
    run({"x": np.ones(3, np.float32), "y": None}, scale=10.0)
    assert float(total) == 140.0
    assert recorder.num_recorded == 2  # the first updates of a shape are not recorded


def joined(_: object) -> nn.Module:
    return Joins(nn.Linear(4, 1))


FALLING: dict[str, Any] = {"lr_end": 1e-4, "lr_updates": 8}
OF_DQN: dict[str, Any] = {**FALLING, "target_every": 3, "max_grad_norm": 0.5}
SMALL: dict[str, Any] = {"hidden": (8,)}
NORMALIZED: dict[str, Any] = {**SMALL, "normalize_obs": True}
GRU: dict[str, Any] = {**SMALL, **FALLING, "memory": "gru", "memory_size": 4}
MINIBATCHES: dict[str, Any] = {"batch_size": 6, "epochs": 2}
CAPTURED: dict[str, tuple[Any, dict[str, Any], dict[str, Any], int]] = {
    # With numbers of graphs: for steps of a target or an actor, and for sizes of minibatches.
    "dqn": (DQN, {**OF_DQN, **SMALL}, {}, 2),
    "own dqn": (DQN, OF_DQN, {"network": with_dropout}, 2),
    "ddpg": (DDPG, NORMALIZED, {}, 1),
    "td3": (TD3, NORMALIZED, {}, 2),
    "sac": (SAC, NORMALIZED, {}, 1),
    "own sac": (SAC, {}, {"actor": lambda _: nn.Linear(3, 2), "critic": joined}, 1),
    "a2c": (A2C, {**SMALL, **FALLING}, {}, 1),
    "ppo": (PPO, {**SMALL, **FALLING, **MINIBATCHES}, {}, 2),
    "impala": (IMPALA, {**SMALL, **FALLING, "clip": 0.3, "batch_size": 6}, {}, 2),
}
WITH_MEMORY: dict[str, tuple[Any, dict[str, Any], dict[str, Any], int]] = {
    "a2c, gru": (A2C, GRU, {}, 1),
    "ppo, gru": (PPO, {**GRU, **MINIBATCHES}, {}, 1),
    "impala, gru": (IMPALA, {**GRU, "clip": 0.3}, {}, 1),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in WITH_MEMORY]


@pytest.mark.parametrize("name", [*CAPTURED, *SLOW])
def test_captured_updates_are_those_without(name: str, captured) -> None:
    kind, config, parts, num_graphs = (CAPTURED | WITH_MEMORY)[name]
    spec = PENDULUM if issubclass(kind, BoxPolicy) else CARTPOLE
    policy, recorder = captured(kind, spec, config, **parts)
    plain = kind(spec, config, **parts)
    if isinstance(policy, ActorCriticPolicy):
        lessons = [lesson(policy, seed) for seed in range(6)]
    else:
        draw = draw_prioritized if name in ("dqn", "td3", "sac") else draw_batch
        lessons = [draw(seed, spec=spec, size=6) for seed in range(14 if kind is DQN else 10)]
    check_updates(policy, plain, lessons)
    assert recorder.num_recorded == num_graphs
    assert_same(policy, plain)


class MetaRecorder(TorchDispatchMode):
    """Records on the device "meta", and fails if an operation there reads a tensor of the host.

    A CUDA graph cannot contain one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_recorded = 0
        self.is_recording = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if self.is_recording:
            assert not [each for each in tensors if each.is_cpu], func
        if func is torch.ops.aten._fused_adam_.tensor_lr:  # PyTorch has none for "meta"
            return None
        return func(*args, **(kwargs or {}))

    def warm_up(self, run):
        with self:
            return run()

    def record(self, run):
        self.num_recorded += 1
        self.is_recording = True
        found = self.warm_up(run)
        self.is_recording = False
        return (lambda: None), found


@pytest.mark.parametrize("kind", [DQN, A2C, PPO, IMPALA, DDPG, TD3, SAC])
def test_a_captured_update_reads_nothing_of_the_host(kind: Any, monkeypatch) -> None:
    recorder = MetaRecorder()
    monkeypatch.setattr(compiled, "has_graphs", lambda _: True)
    monkeypatch.setattr(open_policy, "CudaRecorder", lambda _: recorder)
    spec = PENDULUM if issubclass(kind, BoxPolicy) else CARTPOLE
    sizes = {} if kind is A2C else {"batch_size": 6}
    policy = kind(spec, sizes, device="meta", compile="graph")
    for seed in range(8):
        if issubclass(kind, ActorCriticPolicy):
            policy.learn([draw_rollout(seed, spec, num_steps=2)])
        else:
            policy.learn(draw_prioritized(seed, spec=spec, size=6))
    assert recorder.num_recorded == (2 if kind is TD3 else 1)


def test_a_captured_update_that_is_not_finite_is_left_out(captured) -> None:
    policy, _ = captured(DQN, CARTPOLE, DQNConfig(hidden=(8,)))
    for seed in range(5):
        policy.learn(of_cartpole(seed))
    before = policy.weights()
    policy.learn(replace(of_cartpole(5), reward=torch.full((6,), torch.nan)))
    torch.testing.assert_close(policy.weights(), before, rtol=0, atol=0)
    policy.learn(of_cartpole(6))
    assert any(not torch.equal(t, before[name]) for name, t in policy.weights().items())


def test_what_cannot_be_captured_is_refused_with_what_to_do(captured) -> None:
    with pytest.raises(ConfigError, match=r"Adam of this package alone.*`optimizer`"):
        captured(DQN, CARTPOLE, optimizer=torch.optim.SGD)
    with pytest.raises(ConfigError, match="`target_kl` the host looks"):
        captured(PPO, CARTPOLE, PPOConfig(target_kl=0.1))
    with pytest.raises(ConfigError, match=r"those of Regression cannot be captured.*torch"):
        captured(Regression, CARTPOLE)
    policy, _ = captured(DQN, CARTPOLE)
    policy.reduce_gradient = lambda _: None
    with pytest.raises(ConfigError, match="averages its gradients"):
        policy.learn(of_cartpole(0))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_graph_without_a_gpu_is_refused_with_what_was_found(device: str) -> None:
    for kind in (DQN, PPO):
        with pytest.raises(ConfigError, match=f"device is '{device}'; a GPU was expected"):
            kind(CARTPOLE, device=device, compile="graph")


# -- compiled networks ---------------------------------------------------------------------


class Regression(TorchPolicy[TorchPolicyConfig]):
    """Learns the reward of an action."""

    def build(self):
        self.net = nn.Linear(4, 2)

    def choose(self, obs, explore):
        return self.net(obs).argmax(-1)

    def loss(self, batch):
        value = self.net(batch.obs).gather(1, batch.action[:, None])[:, 0]
        return (value - batch.reward) ** 2, {"value": value.mean()}


def both(_: object) -> nn.Module:
    return Splits(nn.Linear(4, 3))


KINDS: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "dqn": (partial(DQN, CARTPOLE, network=lambda _: nn.Linear(4, 2)), of_cartpole),
    "ppo": (
        partial(PPO, CARTPOLE, {"batch_size": 8, "epochs": 1}, network=both),
        lambda seed: [draw_rollout(seed, CARTPOLE, num_steps=4)],
    ),
    "ddpg": (partial(DDPG, PENDULUM, critic=joined), of_pendulum),
    "own": (partial(Regression, CARTPOLE), of_cartpole),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiler_of_ones_own_gets_what_updates_call(kind: str) -> None:
    calls: list[object] = []

    def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls.append(function)
            return function(*args)

        return call

    make, draw = KINDS[kind]
    policy, plain = make(compile=compiler), make()
    policy.act(np.zeros((2, *policy.spec.obs_shape), np.float32), explore=False)
    assert not calls  # the number of environments differs from use to use
    for seed in range(2):
        assert dict(policy.learn(draw(seed))) == dict(plain.learn(draw(seed)))
    assert calls
    calls.clear()
    policy.clone().learn(draw(2))
    assert calls


def test_torch_compile_learns_the_same() -> None:
    """The compiler `eager` traces as Inductor does, and generates no code."""
    make, draw = KINDS["dqn"]
    policy, plain = make(compile=partial(torch.compile, backend="eager")), make()
    check_updates(policy, plain, map(draw, range(2)))
    assert_same(policy, plain)


@pytest.mark.slow
# PyTorch's own, when it imports its compiler.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_inductor_learns_the_same(kind: str) -> None:
    make, draw = KINDS[kind]
    policy, plain = make(compile="torch"), make()
    check_updates(policy, plain, map(draw, range(3)))


def test_what_cannot_be_compiled_is_refused() -> None:
    with pytest.raises(ConfigError, match="DQN have a backward that is written out"):
        DQN(CARTPOLE, compile="torch")
    with pytest.raises(ConfigError, match='`compile` is \'fast\'; "torch", "graph"'):
        DQN(CARTPOLE, compile="fast")  # type: ignore[arg-type]


# -- on a GPU ------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", CAPTURED)
def test_on_a_gpu_captured_updates_are_those_without(name: str) -> None:
    kind, config, parts, _ = CAPTURED[name]
    spec = PENDULUM if issubclass(kind, BoxPolicy) else CARTPOLE
    make = partial(kind, spec, config, **parts, device="cuda")
    policy, plain = make(compile="graph"), make()
    count, tolerance = (6, 1e-2) if isinstance(policy, ActorCriticPolicy) else (14, 1e-3)
    lessons = [lesson(policy, seed) for seed in range(count)]
    check_updates(policy, plain, lessons, rtol=tolerance, atol=tolerance / 10)

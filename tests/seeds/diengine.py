"""The parts of a seed-era program: its config, policy, learner, collector, evaluator, buffer.

The document takes these objects from a library. Here they are what a user would put in their
place: adapters over `ding_lite.rl` with the library's names, which really collect, learn and
evaluate. What the document's write into TensorBoard is left out.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from easydict import EasyDict
from torch import Tensor, nn

from ding_lite.rl import (
    DQN,
    DQNConfig,
    Envs,
    EnvSpec,
    NStep,
    ReplayBuffer,
    Transitions,
    make_envs,
    mean_return,
    save_checkpoint,
)
from ding_lite.settings import as_config

cfg = EasyDict(
    exp_name="cartpole_dqn",
    seed=0,
    env={"env_id": "CartPole-v0", "collector_env_num": 8, "evaluator_env_num": 10},
    policy={
        "model": {"hidden": [64, 64], "lr": 2e-3, "batch_size": 128, "target_tau": 0.01},
        "learn": {"update_per_collect": 8},
        "collect": {"collector": {"n_sample": 8}},
        "eval": {"evaluator": {"eval_freq": 240, "stop_value": 195}},
        "other": {
            "eps": {"type": "exp", "start": 0.95, "end": 0.05, "decay": 3_000},
            "replay_buffer": {"env_id": "CartPole-v0", "size": 20_000, "start_size": 256},
        },
    },
)


class DQNPolicy(DQN):
    """A DQN that goes by the names such programs know; one object serves in all three modes."""

    @property
    def learn_mode(self) -> DQNPolicy:
        return self

    @property
    def collect_mode(self) -> DQNPolicy:
        return self

    @property
    def eval_mode(self) -> DQNPolicy:
        return self

    def get_attribute(self, name: str) -> Any:
        return getattr(self.config, name)


class Model(nn.Module):
    """The network of a policy, which such programs make by themselves."""

    def __init__(self, obs_shape: int, action_shape: int, hidden: Sequence[int] = (64, 64)) -> None:
        super().__init__()
        first, second = hidden
        self.encoder = nn.Sequential(
            nn.Linear(obs_shape, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU()
        )
        self.head = nn.Linear(second, action_shape)

    def forward(self, obs: Tensor) -> Tensor:
        logit: Tensor = self.head(self.encoder(obs))
        return logit


def digest(policy: DQNPolicy) -> str:
    """Return a short name of a policy's weights, the same for the same bits only."""
    parts = [value.numpy().tobytes() for _, value in sorted(policy.weights().items())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def quick_start() -> tuple[DQNPolicy, Envs, Envs]:
    """Make what the document's earlier pages leave behind: a policy, and envs for two uses."""
    collector_env = make_envs(cfg.env.env_id, cfg.env.collector_env_num, seed=cfg.seed)
    evaluator_env = make_envs(cfg.env.env_id, cfg.env.evaluator_env_num, seed=cfg.seed + 1)
    config = as_config(DQNConfig, {**cfg.policy.model, "seed": cfg.seed})
    policy = DQNPolicy(collector_env.spec, config, network=make_model)
    return policy, collector_env, evaluator_env


def make_model(spec: EnvSpec) -> Model:
    """Make the model for an environment."""
    return Model(spec.obs_shape[0], spec.num_actions or 0, cfg.policy.model.hidden)


class BaseLearner:
    """Improves the policy, and writes down how that goes."""

    def __init__(self, policy: DQNPolicy, exp_name: str) -> None:
        self.policy = policy
        self.checkpoints = Path(exp_name) / "ckpt"
        self._envstep = -1

    @property
    def train_iter(self) -> int:
        return self.policy.train_iter

    def train(self, data: Transitions, envstep: int) -> None:
        self._envstep = envstep
        self.policy.learn(data)

    def save_checkpoint(self) -> None:
        meta = {"train_iter": self.train_iter, "envstep": self._envstep}
        save_checkpoint(self.checkpoints / "ckpt", self.policy.state_dict(), meta=meta)


class SampleCollector:
    """Acts in environments, `n_sample` env steps at a time."""

    def __init__(self, cfg: EasyDict, env: Envs, policy: DQNPolicy) -> None:
        self.envstep = 0
        self._cfg = cfg
        self._env = env
        self._policy = policy
        self._n_step = NStep(policy.n_step, policy.gamma, env.num_envs)

    def collect(self, policy_kwargs: dict[str, float]) -> list[Transitions]:
        new_data = []
        for _ in range(self._cfg.n_sample // self._env.num_envs):
            action = self._policy.act(self._env.obs, epsilon=policy_kwargs["eps"])
            new_data.append(self._n_step(self._env.step(action)))
            self.envstep += self._env.num_envs
        return new_data


class BaseSerialEvaluator:
    """Plays greedy episodes every `eval_freq` updates, one in each of its environments.

    It plays with a copy of the weights, so that in async mode, too, what it judges is one
    policy, and not whatever the learner makes of it meanwhile.
    """

    def __init__(self, cfg: EasyDict, env: Envs, policy: DQNPolicy) -> None:
        self.history: list[tuple[int, int, float]] = []
        """Train_iter, envstep and reward of each evaluation."""
        self.judged: list[str] = []
        """Which weights each of them was of."""
        self._cfg = cfg
        self._env = env
        self._policy = policy
        self._judged = policy.clone()
        self._last_eval_iter = 0

    def should_eval(self, train_iter: int) -> bool:
        if train_iter - self._last_eval_iter < self._cfg.eval_freq:
            return False
        self._last_eval_iter = train_iter
        return True

    def eval(self, train_iter: int, envstep: int) -> tuple[bool, float]:
        self._judged.load_weights(self._policy.weights())
        reward = mean_return(self._judged, self._env)
        self.history.append((train_iter, envstep, reward))
        self.judged.append(digest(self._judged))
        return reward >= self._cfg.stop_value, reward


class AdvancedReplayBuffer:
    """Keeps transitions; in async mode it is filled and sampled at the same time."""

    def __init__(self, cfg: EasyDict) -> None:
        self._cfg = cfg
        self._replay = ReplayBuffer(make_envs(cfg.env_id, 1).spec, capacity=cfg.size)
        self._lock = threading.Lock()

    def push(self, data: list[Transitions]) -> None:
        with self._lock:
            for transitions in data:
                self._replay.add(transitions)

    def sample(self, batch_size: int) -> Transitions | None:
        with self._lock:
            if len(self._replay) < self._cfg.start_size:
                return None
            return self._replay.sample(batch_size)

"""The base for algorithms in plain PyTorch that learn from rollouts, such as A2C and PPO."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import ConfigError
from ding_lite.rl.batch import FloatArray, NumpyArray, Rollout
from ding_lite.rl.formulas.advantages import Advantages, gae
from ding_lite.rl.host_or_device import Metrics
from ding_lite.rl.memory import Memory
from ding_lite.rl.policies.base.spaces import packed
from ding_lite.rl.replay.rollouts import join_rollouts
from ding_lite.rl.spec import within
from ding_lite.rl.torch_policies.config import ConfigT
from ding_lite.rl.torch_policies.losses import checked
from ding_lite.rl.torch_policies.torch_policy import TorchPolicy


@dataclass(frozen=True, slots=True)
class TensorRollout:
    """A `Rollout` as tensors on one device: T steps of N environments."""

    obs: Tensor
    """The observations before the actions, [T, N, ...]."""
    action: Tensor
    """The actions as drawn, [T, N] or [T, N, ...]."""
    reward: Tensor
    """The rewards, [T, N]."""
    terminated: Tensor
    """Whether the episode terminated with the step, [T, N]."""
    truncated: Tensor
    """Whether the episode was cut off with the step, [T, N]."""
    log_prob: Tensor
    """The log-probability of each action when it was drawn, [T, N]."""
    last_obs: Tensor
    """The observations after the last step, [N, ...]."""
    cut_time: Tensor
    """The steps in which the K truncated episodes ended, [K]. K may be 0: `obs.flatten(1)` accepts
    that, and `obs.reshape(len(obs), -1)` does not."""
    cut_env: Tensor
    """The environments of these episodes, [K]."""
    cut_obs: Tensor
    """The last observations of these episodes, [K, ...]."""
    state: Tensor | None
    """The recurrent states before the first step, [N, S]; None without memory."""

    @property
    def ended(self) -> Tensor:
        """Whether an episode ended with the step, [T, N], after which states are zeros again."""
        return self.terminated | self.truncated

    def next_values(self, value_TN: Tensor, last_N: Tensor, cut_K: Tensor) -> Tensor:
        """Return the values of the next observations, [T, N]; arbitrary where it terminated.

        Args:
            value_TN: The values of `obs`.
            last_N: The values of `last_obs`.
            cut_K: The values of `cut_obs`.
        """
        next_value_TN = torch.cat((value_TN[1:], last_N[None]))
        next_value_TN[self.cut_time, self.cut_env] = cut_K
        return next_value_TN

    def advantages(
        self, value_TN: Tensor, next_value_TN: Tensor, *, gamma: float, gae_lambda: float
    ) -> Advantages[Tensor]:
        """Compute advantages and value targets (Schulman et al. 2016, arXiv:1506.02438).

        Args:
            value_TN: The values of `obs`.
            next_value_TN: The result of `next_values`.
            gamma: The discount of one env step.
            gae_lambda: 0 relies on the values, 1 on the rewards.
        """
        return gae(
            gamma * ~self.terminated,
            self.reward,
            value_TN,
            next_value_TN,
            self.truncated,
            gae_lambda=gae_lambda,
        )


class TorchRolloutPolicy(TorchPolicy[ConfigT]):
    """Learns from rollouts of its own experience by the gradient of a loss in plain PyTorch.

    It differs from `TorchPolicy` in three ways. `choose` returns `(actions, log_probs)`, and with
    memory the next states as a third value. `batches` yields the arguments of `loss` from each
    rollout, one for each update. The loss is one number, or an array to be averaged.
    """

    _chosen = ("actions", "log-probabilities")

    @property
    def n_step(self) -> int:
        """Always 1: it learns from rollouts, not from transitions of n steps."""
        return 1

    @abstractmethod
    def batches(self, rollout: TensorRollout) -> Iterator[Any]:
        """Yield the batches of a rollout, one for each update, computed without autograd.

        Learners that average their gradients must yield equally many each.

        Args:
            rollout: A rollout, with observations in the form that `choose` gets.
        """

    def act(
        self, obs: NumpyArray, *, explore: bool = True, memory: Memory | None = None
    ) -> NumpyArray:
        """Choose as `TorchPolicy` does, within the bounds of the action space."""
        return within(self.spec, super().act(obs, explore=explore, memory=memory))

    def explore(
        self, obs: NumpyArray, *, memory: Memory | None = None
    ) -> tuple[NumpyArray, FloatArray]:
        """Sample an action for each observation, and return its log-probability.

        Args:
            obs: [N, ...].
            memory: A result of `make_memory(N)`, for a policy with memory.

        Returns:
            Actions, [N] int64 or [N, ...], and the logarithms of their probabilities, or
            densities, [N]. Numbers may lie outside of the bounds of the action space.

        Raises:
            ShapeError: If `choose` returns values of another form.
        """
        obs = packed(obs, self.spec)
        action, log_prob = self._choose(obs, True, memory)
        what = f"`choose` of {type(self).__name__} returned the log-probabilities"
        log_prob_N = checked(log_prob, (len(obs),), what=what)
        actions = self._as_actions(action, obs, explore=True)
        return actions, log_prob_N.cpu().numpy().astype(np.float32, copy=False)

    def learn(self, rollouts: Sequence[Rollout], /) -> Metrics:
        """Do an update for each batch of the rollouts.

        Args:
            rollouts: All of the same length.

        Returns:
            `loss` and the metrics of the last update; `lr` if the learning rate falls.

        Raises:
            NonFiniteError: If a loss is NaN or infinite. That step is not done.
            ShapeError: If they are not of the policy's environment.
        """
        values: dict[str, Any] = {}
        for batch in self._batches(rollouts):
            values = self._write_gradient(batch)
            self._improve(values["loss"])
        for rollout in rollouts:  # after learning: log-probabilities are of the old statistics
            self._note(rollout.obs.reshape(-1, *self.spec.obs_shape))
        if self.config.lr_end is not None:
            values["lr"] = self._optimizer.lr
        return self._metrics(values)

    def gradients(self, rollouts: Sequence[Rollout]) -> tuple[Tensor, Metrics]:
        """Compute the gradient of the first batch of rollouts, [P], and its metrics."""
        self._check_only_loss_learns()
        with self._keeping_buffers():
            values = self._write_gradient(next(self._batches(rollouts)))
        self._used = None
        return self._grad_P.clone(), self._metrics(values)

    def _batches(self, rollouts: Sequence[Rollout]) -> Iterator[Any]:
        joined = join_rollouts(rollouts, self.spec, state_size=self.state_size)
        values: dict[str, Any] = {f.name: getattr(joined, f.name) for f in fields(TensorRollout)}
        moved: Any = {n: None if v is None else self._to_device(v) for n, v in values.items()}
        found: Any = self.batches(self._normalized(TensorRollout(**moved)))
        has_returned_one = isinstance(found, tuple) or not isinstance(found, Iterable)
        batches = iter([] if has_returned_one else found)
        for count in itertools.count():
            with self._acting():
                batch = next(batches, None)
            if batch is None and not count:
                raise ConfigError(
                    f"`batches` of {type(self).__name__} yielded nothing for {joined.obs.shape[0]} "
                    f"steps of {joined.obs.shape[1]} environments, so that nothing is learned from "
                    f"them. Let it `yield` at least one batch."
                )
            if batch is None:
                return
            yield batch

    def _mean(self, loss: Tensor, batch: Any) -> Tensor:  # noqa: ANN401 - what `loss` takes
        return loss.mean()

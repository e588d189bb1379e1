"""Minibatches of env steps, for policies that make several updates from a rollout."""

from __future__ import annotations

from dataclasses import dataclass

from ding_lite.rl.batch import FloatArray, NumpyArray


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Env steps in any order, with their advantages and value targets."""

    obs: NumpyArray
    action: NumpyArray
    log_prob_B: FloatArray
    """The log-probability of the action under the weights that collected it."""
    advantage_B: FloatArray
    target_B: FloatArray
    """The return to regress the value on."""

    def __len__(self) -> int:
        return len(self.target_B)

    def take(self, index_B: NumpyArray) -> Minibatch:
        """Return the env steps of these indices."""
        return Minibatch(
            self.obs[index_B],
            self.action[index_B],
            self.log_prob_B[index_B],
            self.advantage_B[index_B],
            self.target_B[index_B],
        )

"""Env steps of which a policy takes some at a time to learn from."""

from __future__ import annotations

from dataclasses import dataclass

from ding_lite.rl.batch import FloatArray, NumpyArray


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Env steps in any order, with what each was worth."""

    obs: NumpyArray
    action: NumpyArray
    log_prob_B: FloatArray
    """Of the action, as it was collected."""
    advantage_B: FloatArray
    target_B: FloatArray
    """The return to regress the value on."""

    def __len__(self) -> int:
        return len(self.target_B)

    def take(self, index_B: NumpyArray) -> Minibatch:
        """Return some of them."""
        return Minibatch(
            self.obs[index_B],
            self.action[index_B],
            self.log_prob_B[index_B],
            self.advantage_B[index_B],
            self.target_B[index_B],
        )

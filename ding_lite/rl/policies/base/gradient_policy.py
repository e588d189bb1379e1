"""The base of policies with a single loss, of which other nodes may compute the gradient."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import ConfigError, ShapeError, kind_of
from ding_lite.rl.batch import FloatArray
from ding_lite.rl.host_or_device import Metrics, Number, metrics_of, nan_if
from ding_lite.rl.memory import Memory
from ding_lite.rl.policies.base.open_policy import OpenPolicy
from ding_lite.rl.weights.flat import LearnedNetwork, clip_norm


class GradientPolicy(OpenPolicy):
    """A policy with a single loss; other nodes may compute its gradient."""

    state_size: int = 0
    """The length of the recurrent state of one environment; 0 without memory."""
    _skipped: Tensor | None = None
    """On a device, 1.0 if an update of this `learn` was skipped, else 0.0."""

    @property
    @abstractmethod
    def _acting_net(self) -> LearnedNetwork:
        """The network that acts and is learned."""

    @property
    def _grad_P(self) -> Tensor:
        """The flat gradient that the backward writes; it is clipped in place."""
        return self._acting_net.grads.flat

    def make_memory(self, num_envs: int) -> Memory | None:
        """Make a memory for so many environments; None for a policy without memory."""
        return Memory(num_envs, self.state_size) if self.state_size else None

    def _check_memory(self, memory: Memory | None, num_envs: int) -> None:
        if (memory is not None) != bool(self.state_size):
            has = "has memory: give `memory=`" if self.state_size else "has no memory: leave it out"
            raise ConfigError(
                f"{type(self).__name__} {has}. `memory = policy.make_memory(num_envs)` makes one, "
                f"and `memory.reset(done)` follows each env step."
            )
        if memory is None:
            return
        expected, is_memory = (num_envs, self.state_size), isinstance(memory, Memory)
        if not is_memory or memory.state.shape != expected:
            found = f"is {kind_of(memory)}"
            if is_memory:
                found = f"has states of the shape {memory.state.shape}"
            raise ShapeError(
                f"`memory` {found}; {expected} was expected "
                f"for {num_envs} observations and {type(self).__name__}'s network. "
                f"`policy.make_memory({num_envs})` makes one."
            )

    @contextmanager
    def _keeping_buffers(self) -> Iterator[None]:
        before = {name: buffer.clone() for name, buffer in self._acting_net.buffers.items()}
        changed = []
        try:
            yield
        finally:
            buffers = self._acting_net.buffers  # read again: the network may have replaced them
            for name, old in before.items():
                if not torch.equal(old, buffers[name]):
                    changed.append(name)
                    buffers[name].copy_(old)
        if changed:
            raise ConfigError(
                f"The buffers {', '.join(map(repr, changed))} of the network change while it "
                f"learns, and a gradient that is sent elsewhere does not carry them. Take "
                f"nn.LayerNorm or nn.GroupNorm in place of BatchNorm."
            )

    def apply_gradient(self, grad_P: Tensor | FloatArray) -> float:
        """Do one step of the optimiser along a gradient of `gradients`, or a mean of several.

        Args:
            grad_P: [P]. It is not changed.

        Returns:
            Its length before it was clipped to `max_grad_norm`.

        Raises:
            ShapeError: If it is of other weights.
            NonFiniteError: If it is not finite. The weights are then unchanged.
        """
        own_P = self._grad_P
        if not isinstance(grad_P, Tensor):
            grad_P = torch.from_numpy(np.array(grad_P, dtype=np.float32))  # may be read-only
        if grad_P.shape != own_P.shape:
            raise ShapeError(
                f"The gradient has shape {tuple(grad_P.shape)}; {tuple(own_P.shape)} was "
                f"expected. Is it of a network of the same size?"
            )
        own_P.copy_(grad_P)
        norm = float(clip_norm(own_P, self.config.max_grad_norm))
        self.check_finite(norm, "length of the gradient")
        self._optimizer.lr = self._lr_at(self.train_iter)
        self._optimizer.step(own_P, used=self._used_parameters())
        self._after_step()
        return norm

    def _improve(
        self, loss: Number, grad_P: Tensor | None = None, weights_P: Tensor | None = None
    ) -> Number:
        """Apply the gradient of a loss; return its length.

        `grad_P` and `weights_P` are the policy's own if None.
        """
        self._optimizer.lr = self._lr_at(self.train_iter)
        norm, skip = self._descend(
            self._optimizer,
            loss,
            self._grad_P if grad_P is None else grad_P,
            weights_P,
            limit=self.config.max_grad_norm,
            used=self._used_parameters,
        )
        self._after_step(skip)
        return norm

    def _after_step(self, skip: Tensor | None = None) -> None:
        self.train_iter += 1
        if skip is not None:
            self._skipped = skip if self._skipped is None else torch.maximum(self._skipped, skip)

    def _used_parameters(self) -> Sequence[bool]:
        """Return which parameters the next step changes; () for all."""
        return ()

    def _metrics(self, values: Mapping[str, Any]) -> Metrics:
        """Return the metrics of the last update of `learn`; `loss` is NaN if one was skipped."""
        skipped, self._skipped = self._skipped, None
        if skipped is not None:
            values = {**values, "loss": nan_if(skipped, values["loss"])}
        update = f"one of {type(self).__name__}'s updates up to {self.train_iter}"
        return metrics_of(values, partial(self.check_finite, update=update))

"""The normal distribution of actions with standard deviations that depend on the observation."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium.spaces import Box

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.formulas.distributions import BoxUnits, Drawn, Likelihood
from ding_lite.rl.host_or_device import CPU, AnyArray, namespace

MIN_LOG_STD, MAX_LOG_STD = -20.0, 2.0
"""The limits of the logarithms of standard deviations; beyond them their gradient is 0."""


class StateGaussian(BoxUnits):
    """The diagonal normal distribution with means and log standard deviations from a network.

    The outputs are the D means, then the D logarithms, in the units of the action space.
    """

    def __init__(self, space: Box, *, device: torch.device = CPU) -> None:
        super().__init__(space, device=device)
        self.num_outputs = 2 * len(self.unit_D)

    def best(self, outputs_ND: FloatArray) -> NumpyArray:
        return self.clipped(self._parts(outputs_ND)[0])

    def draw(self, outputs_ND: FloatArray, rng: np.random.Generator) -> Drawn:
        return self.draw_normal(*self._parts(outputs_ND), rng)

    def likelihood(self, outputs_BD: AnyArray, action: AnyArray) -> Likelihood:
        mean_BA, log_std_BA = self._parts(outputs_BD)
        std_BA = namespace(outputs_BD).exp(log_std_BA)
        noise_BA = (self.in_units(action) - mean_BA) / std_BA
        raw_BA = outputs_BD[:, mean_BA.shape[1] :]
        is_free_BA = (raw_BA > MIN_LOG_STD) & (raw_BA < MAX_LOG_STD)
        saved = (noise_BA, std_BA, is_free_BA)
        log_prob_B = self.log_density(noise_BA, log_std_BA)
        return Likelihood(log_prob_B, self.normal_entropy(log_std_BA), saved)

    def backward(
        self, of: Likelihood, log_prob_grad_B: AnyArray, entropy_grad_B1: AnyArray = None
    ) -> AnyArray:
        noise_BA, std_BA, is_free_BA = of.saved
        grad_B1 = log_prob_grad_B[:, None]
        of_spread_BA = grad_B1 * (noise_BA * noise_BA - 1.0)
        if entropy_grad_B1 is not None:
            of_spread_BA += entropy_grad_B1
        of_spread_BA *= is_free_BA
        return namespace(noise_BA).concatenate((grad_B1 * noise_BA / std_BA, of_spread_BA), axis=1)

    def _parts(self, outputs_ND: AnyArray) -> tuple[AnyArray, AnyArray]:
        half = len(self.unit_D)
        return outputs_ND[:, :half], outputs_ND[:, half:].clip(MIN_LOG_STD, MAX_LOG_STD)

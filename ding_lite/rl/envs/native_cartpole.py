"""CartPole as one array program for all environments of a vector.

Gymnasium's resets an episode one step late, and repeats checks and counts of `Envs`. This one has
its formulas, in the same order, so that the episodes are those of the plain CartPole, bit for bit.

With few environments the calls of numpy take most of the time of a step. So arrays are allocated
once and written in place, and positions and velocities are one array each, cart before pole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.utils import seeding

from ding_lite.rl.batch import BoolArray, NumpyArray
from ding_lite.rl.envs.sources import RawStep, Restored, Source
from ding_lite.rl.seeding import rng_state, set_rng_state

START_WITHIN: Final = 0.05
"""The bound of the absolute value of each of the four numbers of a first state."""
_DRAWN_AHEAD = 16
"""The number of first states that each environment's generator draws at a time."""


class NativeCartPole:
    """Several CartPole environments that are stepped together."""

    def __init__(
        self, seeds: Sequence[int], *, max_episode_steps: int | None, settings: dict[str, Any]
    ) -> None:
        plain: Any = CartPoleEnv(**settings)
        self._tau, self._gravity = plain.tau, plain.gravity
        self._length, self._masspole = plain.length, plain.masspole
        self._total_mass, self._polemass_length = plain.total_mass, plain.polemass_length
        self._forces = np.array([-plain.force_mag, plain.force_mag])
        self._bounds = np.array([[plain.x_threshold], [plain.theta_threshold_radians]])
        self._punishes = bool(settings.get("sutton_barto_reward", False))
        plain.close()

        num_envs = len(seeds)
        self._limit = max_episode_steps or np.iinfo(np.int32).max
        self._rngs = [seeding.np_random(seed)[0] for seed in seeds]
        # The next first states of each environment, drawn together, and the number already used.
        self._firsts = np.empty((num_envs, _DRAWN_AHEAD, 4))
        self._used = np.full(num_envs, _DRAWN_AHEAD)
        self._all = np.ones(num_envs, dtype=np.bool_)
        self.success_N = np.zeros(num_envs, dtype=np.int8)
        self._steps = np.zeros(num_envs, dtype=np.int32)
        # [2, 2, N]: positions and velocities, of the cart and of the pole.
        self._state = np.zeros((2, 2, num_envs))
        self._change = np.empty((2, num_envs))
        self._acceleration = np.empty((2, num_envs))
        self._push, self._sine, self._cosine, self._by_mass = np.empty((4, num_envs))
        self._is_out = np.empty((2, num_envs), dtype=np.bool_)

    def reset(self) -> NumpyArray:
        return self.reset_where(self._all)

    def step(self, action: NumpyArray) -> RawStep:
        position, velocity = self._state
        self._accelerate(action)
        np.multiply(velocity, self._tau, out=self._change)
        np.add(position, self._change, out=position)
        np.multiply(self._acceleration, self._tau, out=self._change)
        np.add(velocity, self._change, out=velocity)

        np.abs(position, out=self._change)
        np.greater(self._change, self._bounds, out=self._is_out)
        terminated = self._is_out[0] | self._is_out[1]
        self._steps += 1
        truncated = self._steps >= self._limit
        reward = np.ones(len(terminated), dtype=np.float32)
        if self._punishes:
            np.subtract(0.0, terminated, out=reward)
        return self._observe(), reward, terminated, truncated

    def _accelerate(self, action: NumpyArray) -> None:
        """Compute the accelerations (coneural.org/florian/papers/05_cart_pole.pdf)."""
        angle, spin = self._state[:, 1]
        of_cart, of_pole = self._acceleration
        push, sine, cosine, by_mass = self._push, self._sine, self._cosine, self._by_mass
        np.sin(angle, out=sine)
        np.cos(angle, out=cosine)

        np.square(spin, out=push)
        np.multiply(push, self._polemass_length, out=push)
        np.multiply(push, sine, out=push)
        np.add(push, self._forces.take(action), out=push)
        np.divide(push, self._total_mass, out=push)

        np.square(cosine, out=by_mass)
        np.multiply(by_mass, self._masspole, out=by_mass)
        np.divide(by_mass, self._total_mass, out=by_mass)
        np.subtract(4.0 / 3.0, by_mass, out=by_mass)
        np.multiply(by_mass, self._length, out=by_mass)

        np.multiply(sine, self._gravity, out=sine)
        np.multiply(cosine, push, out=of_pole)
        np.subtract(sine, of_pole, out=of_pole)
        np.divide(of_pole, by_mass, out=of_pole)

        np.multiply(of_pole, self._polemass_length, out=of_cart)
        np.multiply(of_cart, cosine, out=of_cart)
        np.divide(of_cart, self._total_mass, out=of_cart)
        np.subtract(push, of_cart, out=of_cart)

    def reset_where(self, done_N: BoolArray) -> NumpyArray:
        done = np.flatnonzero(done_N)
        for index in done[self._used[done] == _DRAWN_AHEAD].tolist():
            self._firsts[index] = self._rngs[index].uniform(
                -START_WITHIN, START_WITHIN, (_DRAWN_AHEAD, 4)
            )
            self._used[index] = 0
        first: NumpyArray = self._firsts[done, self._used[done]]
        self._used[done] += 1
        cart_x, cart_v, pole_x, pole_v = first.T
        self._state[:, :, done] = [[cart_x, pole_x], [cart_v, pole_v]]
        self._steps[done] = 0
        return first.astype(np.float32)

    def _observe(self) -> NumpyArray:
        """Return the cart's position and velocity, then the pole's, [N, 4]."""
        shown = np.empty((len(self._steps), 2, 2), dtype=np.float32)
        shown[...] = self._state.T
        return shown.reshape(-1, 4)

    def save(self) -> dict[str, Any]:
        in_order = self._state.transpose(1, 0, 2).reshape(4, -1)
        for rng, used in zip(self._rngs, self._used.tolist(), strict=True):
            bits: Any = rng.bit_generator
            bits.advance(4 * (used - _DRAWN_AHEAD))  # rewind to before the unused draws
        self._used[:] = _DRAWN_AHEAD
        words = np.stack([rng_state(rng) for rng in self._rngs])
        return {"state": in_order, "steps": self._steps.copy(), "rng": words}

    def restore(self, state: dict[str, Any]) -> Restored:
        self._state[:] = np.reshape(state["state"], (2, 2, -1)).transpose(1, 0, 2)
        self._steps[:] = state["steps"]
        self._used[:] = _DRAWN_AHEAD
        for rng, words in zip(self._rngs, state["rng"], strict=True):
            set_rng_state(rng, words)
        return self._observe(), None, self._all

    def close(self) -> None:
        """Do nothing: arrays need no closing."""


OURS: dict[str, Callable[..., Source]] = {
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": NativeCartPole
}
"""The sources that replace gymnasium's vector entry points, which reset late."""

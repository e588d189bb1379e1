"""Helpers under the names that DI-engine's programs import them by."""

from ding_lite.rl.formulas.schedules import get_epsilon_greedy_fn

__all__ = ["get_epsilon_greedy_fn"]

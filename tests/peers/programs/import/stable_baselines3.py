import time

from measuring import tell

began = time.perf_counter()
import gymnasium  # noqa: E402 - this is what is timed
from stable_baselines3 import DQN  # noqa: E402

DQN("MlpPolicy", gymnasium.make("CartPole-v1"), buffer_size=10_000, device="cpu")
tell("stable-baselines3", **{"wall time": time.perf_counter() - began})

import time

from measuring import tell

began = time.perf_counter()
from ding_lite.rl import DQN, make_envs  # noqa: E402 - this is what is timed

DQN(make_envs("CartPole-v1", 1).spec)
tell("ding_lite", **{"wall time": time.perf_counter() - began})

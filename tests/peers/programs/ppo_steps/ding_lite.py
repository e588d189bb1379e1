import time

from measuring import settings, tell

from ding_lite import Task, middleware as mw
from ding_lite.rl import PPO, PPOConfig, make_envs

width = settings()["width"]


def rate(mode):
    envs = make_envs("CartPole-v1", 8, seed=0, mode=mode)
    config = PPOConfig(hidden=(width, width), epochs=4, batch_size=256, lr=2.5e-4)
    policy = PPO(envs.spec, config)
    with envs, Task() as task:
        task.use(mw.collect(policy, envs, unroll=128))
        task.use(mw.train(policy))
        task.run(max_step=3)
        began = time.process_time()
        task.run(max_step=30)
        return 30 * 128 * 8 / (time.process_time() - began)


tell("ding_lite", cost=rate("auto"), note=f"{rate('sync'):,.0f} with gymnasium's own stepping")

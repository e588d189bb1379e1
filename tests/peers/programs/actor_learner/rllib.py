import time

import ray
from measuring import tell
from ray.rllib.algorithms.impala import IMPALAConfig

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
config = (
    IMPALAConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=2, num_envs_per_env_runner=16, rollout_fragment_length=20)
    .learners(num_learners=0)
    .training(train_batch_size_per_learner=640)
    .rl_module(model_config={"fcnet_hiddens": [64, 64]})
)
algorithm = config.build_algo()


def steps():
    result = algorithm.train()
    return result["env_runners"].get("num_env_steps_sampled_lifetime", 0)


first, began = 0, time.perf_counter()
while not first or time.perf_counter() - began < 10.0:
    first = steps()
began = time.perf_counter()
while time.perf_counter() - began < 20.0:
    last = steps()
seconds = time.perf_counter() - began
algorithm.stop()
ray.shutdown()
tell("ray", cost=(last - first) / seconds)

"""Train one policy of Stable-Baselines3 until its target, in slices: a program of its own.

It is given a folder with `job.json`, and writes `curve.jsonl` and, at the end, `result.json` there.
An evaluation begins when a tenth of the env steps has paid for it, has five greedy episodes, and
ends the run if twenty fresh ones reach the target, too.
"""

import json
import resource
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import VecNormalize

torch.set_num_threads(1)
folder = Path(sys.argv[1])
job = json.loads((folder / "job.json").read_text())
zoo, env_id, seed = dict(job["zoo"]), job["env"], job["seed"]
steps, num_envs = int(zoo.pop("steps")), zoo.pop("envs", 1)
state = {"spent": 0, "cpu": 0.0, "done": 0}
if (folder / "state.json").exists():
    state = json.loads((folder / "state.json").read_text())
ends_at = time.monotonic() + job["seconds"]


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return state["cpu"] + used.ru_utime + used.ru_stime


def scheduled(value):
    if isinstance(value, str):
        start = float(value.removeprefix("lin_"))
        return lambda left: left * start
    return value


envs = make_vec_env(env_id, n_envs=num_envs, seed=seed)
eval_envs = make_vec_env(env_id, n_envs=1, seed=seed + 1_000)
if zoo.pop("normalize", False):
    envs = VecNormalize(envs, gamma=zoo.get("gamma", 0.99))
    eval_envs = VecNormalize(eval_envs, training=False, norm_reward=False)
    if (folder / "normalize.pkl").exists():
        envs = VecNormalize.load(str(folder / "normalize.pkl"), envs.venv)
    eval_envs.obs_rms = envs.obs_rms
net = zoo.pop("net", {})
if "activation_fn" in net:
    net = {**net, "activation_fn": getattr(torch.nn, net["activation_fn"])}
if (noise := zoo.pop("noise_std", None)) is not None:
    size = gymnasium.make(env_id).action_space.shape
    kind = OrnsteinUhlenbeckActionNoise if zoo.pop("is_correlated", False) else NormalActionNoise
    zoo["action_noise"] = kind(np.zeros(size), noise * np.ones(size))
settings = {name: scheduled(value) for name, value in zoo.items()}
make = {"ppo": PPO, "dqn": DQN, "sac": SAC, "td3": TD3}[job["policy"]]
if (folder / "model.zip").exists():
    model = make.load(folder / "model.zip", env=envs, device="cpu")
    if (folder / "replay.pkl").exists():
        model.load_replay_buffer(folder / "replay.pkl")
else:
    model = make("MlpPolicy", envs, seed=seed, device="cpu", policy_kwargs=net, **settings)


def play(episodes):
    returns, lengths = evaluate_policy(
        model, eval_envs, n_eval_episodes=episodes, return_episode_rewards=True, warn=False
    )
    return float(np.mean(returns)), int(np.sum(lengths))


class Watch(BaseCallback):
    """Evaluates, and ends a slice or the run."""

    solved = None
    length = 0

    def _on_step(self):
        for info in self.locals["infos"]:
            self.length = info.get("episode", {}).get("l", self.length)
        due = self.length and 0.1 * self.num_timesteps - state["spent"] >= 5 * self.length
        if due:
            mean, spent = play(5)
            state["spent"] += spent
            with (folder / "curve.jsonl").open("a") as file:
                file.write(json.dumps([self.num_timesteps, mean, cpu()]) + "\n")
            if mean >= job["target"]:
                mean, spent = play(20)
                state["spent"] += spent
                if mean >= job["target"]:
                    self.solved = mean
                    return False
        return time.monotonic() < ends_at


watch = Watch()
left = steps - model.num_timesteps
model.learn(left, callback=watch, reset_num_timesteps=not model.num_timesteps)
if watch.solved is None and model.num_timesteps < steps:
    model.save(folder / "model.zip")
    if hasattr(model, "replay_buffer") and model.replay_buffer is not None:
        model.save_replay_buffer(folder / "replay.pkl")
    if isinstance(envs, VecNormalize):
        envs.save(str(folder / "normalize.pkl"))
    state["cpu"] = cpu()
    (folder / "state.json").write_text(json.dumps(state))
    sys.exit(75)  # to be continued
final = {"env_steps": model.num_timesteps, "cpu_s": cpu(), "return": play(20)[0]}
final["solved"] = watch.solved is not None or final["return"] >= job["target"]
(folder / "result.json").write_text(json.dumps(final))

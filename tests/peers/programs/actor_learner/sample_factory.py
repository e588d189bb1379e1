import tempfile
import time

import gymnasium
from measuring import tell
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner


def make_env(name, cfg, env_config, render_mode=None):
    return gymnasium.make(name)


def main():
    register_env("CartPole-v1", make_env)
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            **{"env": "CartPole-v1", "algo": "APPO", "device": "cpu", "train_dir": folder},
            **{"num_workers": 2, "num_envs_per_worker": 16, "worker_num_splits": 2},
            **{"rollout": 20, "batch_size": 640, "num_epochs": 1, "num_batches_per_epoch": 1},
            **{"use_rnn": False, "train_for_env_steps": 200_000},
            **{"experiment": "peers", "save_every_sec": 1_000, "with_wandb": False},
        }
        words = [f"--{name}={value}" for name, value in arguments.items()]
        words += ["--encoder_mlp_layers", "64", "64"]
        parser, _ = parse_sf_args(words)
        cfg = parse_full_cfg(parser, words)
        _, runner = make_runner(cfg)
        marks = []
        original = runner._update_stats_and_print_report

        def watch():
            marks.append((time.perf_counter(), sum(runner.env_steps.values())))
            original()

        runner._update_stats_and_print_report = watch
        runner.init()
        runner.run()
        running = [mark for mark in marks if mark[1] > 0]
        (began, first), (ended, last) = running[len(running) // 3], running[-1]
        tell("sample-factory", cost=(last - first) / (ended - began))


if __name__ == "__main__":
    main()

"""What may be typed after `ding-lite train`, `plot`, `watch` and `doctor`.

It stands apart from what they do, which imports far more than `--help` has time for.
"""

from __future__ import annotations

import argparse

from ding_lite.cli import arguments


def add_train(parser: argparse.ArgumentParser) -> None:
    """Add what `ding-lite train` takes."""
    add = parser.add_argument
    add("policy", metavar="POLICY", help="what to train: dqn, ddpg, td3, sac, a2c, ppo, impala")
    add("env", metavar="ENV", help="an environment of gymnasium's registry, such as CartPole-v1")
    add(
        "--set",
        type=arguments.assignment,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the policy or of training, such as lr=3e-4 or hidden=64,64; may be "
        "given several times (default: a preset for the environment, if there is one)",
    )
    add(
        "--settings",
        action="store_true",
        help="show all settings, their values, and where those come from, and train nothing",
    )
    add(
        "--num-envs",
        type=arguments.whole_number(1),
        metavar="N",
        help="environments that are stepped together (default: 8)",
    )
    add(
        "--seed",
        type=arguments.whole_number(0),
        metavar="N",
        help="decides everything that is random (default: 0)",
    )
    add(
        "--target",
        type=arguments.number,
        metavar="RETURN",
        help="the mean return of 20 greedy episodes that counts as solved, which ends the run "
        "(default: that of the environment, if it has one)",
    )
    add(
        "--max-env-steps",
        type=arguments.whole_number(1),
        metavar="N",
        help="where the run ends at the latest (default: that of a preset, else 100000)",
    )
    add(
        "--out",
        metavar="DIR",
        help="the directory of the run (default: the next number under runs/POLICY/ENV)",
    )
    add(
        "--resume",
        action="store_true",
        help="go on with the run in --out where its last checkpoint was saved; begin it if "
        "there is none",
    )
    add("--smoke", action="store_true", help="only try it out, for 2,000 env steps")


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add what `ding-lite plot` takes."""
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        metavar="RUN",
        help="the directory of a run, or a pattern of several: 'runs/dqn/CartPole-v1/*'",
    )
    add(
        "--out",
        default="plot.png",
        metavar="FILE",
        help="the picture: .png, .svg or .pdf (default: plot.png)",
    )
    add(
        "--metric",
        metavar="NAME",
        help="what to draw (default: eval_return where all runs have it, else return)",
    )


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Add what `ding-lite watch` takes."""
    add = parser.add_argument
    add("run", metavar="RUN", help="the directory of a run, or of a checkpoint")
    add(
        "--last",
        action="store_true",
        help="play with the newest weights of a run (default: those of its best evaluation)",
    )
    add(
        "--episodes",
        type=arguments.whole_number(1),
        default=5,
        metavar="N",
        help="how many episodes to play (default: 5)",
    )
    add(
        "--seed",
        type=arguments.whole_number(0),
        default=0,
        metavar="N",
        help="decides how the episodes begin (default: 0)",
    )
    add(
        "--record",
        metavar="DIR",
        help="write a video of each episode there, without a window: .mp4 where ffmpeg is "
        "installed, else .gif",
    )

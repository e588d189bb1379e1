"""The options of `ding-lite train`, `plot`, `watch`, `export` and `doctor`.

It stands apart from what they do, which imports far more than `--help` has time for.
"""

from __future__ import annotations

import argparse

from ding_lite.cli.options import arguments
from ding_lite.cli.options.run import add_policy_and_env, add_run_options


def add_train(parser: argparse.ArgumentParser) -> None:
    """Add what `ding-lite train` takes."""
    add_policy_and_env(parser, verb="train")
    add_run_options(
        parser,
        verb="train",
        settings="a setting of the policy or of training, such as lr=3e-4 or hidden=64,64; may be "
        "given several times (default: a preset for the environment, if there is one)",
        num_envs="environments that are stepped together",
        target="the mean return of 20 greedy episodes that counts as solved, which ends the run",
        max_env_steps="where the run ends at the latest (default: that of a preset, else 100000)",
        out="runs/POLICY/ENV",
    )
    parser.add_argument(
        "--compile",
        choices=("torch", "graph"),
        metavar="HOW",
        help="compile the networks for updates: torch by torch.compile, graph by CUDA graphs",
    )


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add what `ding-lite plot` takes."""
    add = parser.add_argument
    add(
        "runs",
        type=arguments.path,
        nargs="+",
        metavar="RUN",
        help="the directory of a run, or a pattern of several: 'runs/dqn/CartPole-v1/*'",
    )
    add(
        "--out",
        type=arguments.path,
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
    add(
        "run", type=arguments.path, metavar="RUN", help="the directory of a run, or of a checkpoint"
    )
    add(
        "--trust",
        action="store_true",
        help="import the code that the run names, also if it is not one of yours on this machine",
    )
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
        type=arguments.path,
        metavar="DIR",
        help="write a video of each episode there, without a window: .mp4 where ffmpeg is "
        "installed, else .gif",
    )


def add_export(parser: argparse.ArgumentParser) -> None:
    """Add what `ding-lite export` takes."""
    add = parser.add_argument
    add(
        "run", type=arguments.path, metavar="RUN", help="the directory of a run, or of a checkpoint"
    )
    add(
        "--trust",
        action="store_true",
        help="import the code that the run names, also if it is not one of yours on this machine",
    )
    add(
        "--last",
        action="store_true",
        help="write the newest weights of a run (default: those of its best evaluation)",
    )
    add(
        "--format",
        type=arguments.one_of(arguments.EXPORT_FORMATS),
        metavar="{" + ",".join(arguments.EXPORT_FORMATS) + "}",
        help="onnx for ONNX runtimes, torch for torch.export.load (default: what the end of the "
        "file's name says, else onnx)",
    )
    add(
        "--out",
        type=arguments.path,
        metavar="FILE",
        help="the file to write (default: policy.onnx or policy.pt2)",
    )

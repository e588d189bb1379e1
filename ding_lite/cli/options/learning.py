"""The options of `ding-lite train`, `evolve`, `plot`, `report`, `runs`, `watch` and `export`.

It stands apart from what they do, which imports far more than `--help` has time for.
"""

from __future__ import annotations

import argparse

from ding_lite.cli.options import arguments
from ding_lite.cli.options.run import add_options

_POLICIES = "dqn, ddpg, td3, sac, a2c, ppo, impala"
_TRUST = "import the code that the run names, also if it is not one of yours on this machine"


def add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policy", metavar="POLICY", help=f"what to train: {_POLICIES}, r2d2")
    _add_settings(
        parser,
        "a setting of the policy or of training, such as lr=3e-4 or hidden=64,64; may be given "
        "several times (default: a preset for the environment, if there is one)",
    )
    add_options(parser, of="train")


def add_evolve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policy", metavar="POLICY", help=f"what to evolve: {_POLICIES}")
    parser.add_argument(
        "--search",
        type=arguments.searched,
        action="append",
        metavar="KEY=LOW:HIGH",
        help="a setting in which agents differ: lr=1e-4:1e-2:log, batch_size=8:64, "
        "loss=huber|mse; may be given several times (default: step sizes and batch sizes)",
    )
    _add_settings(
        parser,
        "a setting of the policy or of evolution that all agents share, such as gamma=0.98 or "
        "mutation_sd=0.2; may be given several times",
    )
    add_options(parser, of="evolve")


def _add_settings(parser: argparse.ArgumentParser, what: str) -> None:
    add = parser.add_argument
    read, pairs = arguments.assignment, arguments.Pairs
    add("--set", type=read, action=pairs, default={}, metavar="KEY=VALUE", help=what)
    add(
        "--settings",
        action="store_true",
        help="show all settings, their values, and where those come from, and begin no run",
    )


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        type=arguments.path,
        nargs="+",
        metavar="RUN",
        help="the directory of a run, or a pattern of several: 'runs/dqn/CartPole-v1/*'",
    )


def add_plot(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_runs(parser)
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


def add_report(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_runs(parser)
    add(
        "--out",
        type=arguments.path,
        default="report.html",
        metavar="FILE",
        help="the page, which opens without a server (default: report.html)",
    )
    add("--no-video", action="store_true", help="play no episode of the best policy for a video")
    add("--trust", action="store_true", help=_TRUST)
    add(
        "--live",
        action="store_true",
        help="write nothing, and serve the page on this machine alone while the runs go on, "
        "without a video, until Ctrl-C",
    )
    add(
        "--port",
        type=arguments.whole_number(0, 65_535),
        metavar="N",
        help="with --live, the port to listen on (default: 0, any that is free)",
    )


def add_runs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "folder",
        type=arguments.path,
        nargs="?",
        default="runs",
        metavar="FOLDER",
        help="the directory with runs in it, at any depth (default: runs)",
    )
    add(
        "--sort",
        type=arguments.one_of(arguments.SORTED_BY),
        default="when",
        metavar="KEY",
        help=f"what to sort by, numbers and times from the largest on: "
        f"{', '.join(arguments.SORTED_BY)} (default: when)",
    )
    add("--json", action="store_true", help="show one JSON object, and end")


def add_watch(parser: argparse.ArgumentParser) -> None:
    _add_run(parser, "play with")
    add = parser.add_argument
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
    _add_run(parser, "write")
    add = parser.add_argument
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


def _add_run(parser: argparse.ArgumentParser, verb: str) -> None:
    add = parser.add_argument
    add(
        "run", type=arguments.path, metavar="RUN", help="the directory of a run, or of a checkpoint"
    )
    add(
        "--trust",
        action="store_true",
        help=_TRUST,
    )
    add(
        "--last",
        action="store_true",
        help=f"{verb} the newest weights of a run (default: those of its best evaluation)",
    )

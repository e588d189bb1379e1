"""The options of every command that makes a run, such as `train` and `evolve`."""

from __future__ import annotations

import argparse

from ding_lite.cli.options import arguments


def add_policy_and_env(parser: argparse.ArgumentParser, *, verb: str) -> None:
    """Add the two words that say what is to be done with what."""
    add = parser.add_argument
    more = ", r2d2" if verb == "train" else ""
    known = f"dqn, ddpg, td3, sac, a2c, ppo, impala{more}"
    add("policy", metavar="POLICY", help=f"what to {verb}: {known}")
    add(
        "env",
        metavar="ENV",
        help="an environment of gymnasium's registry, such as CartPole-v1, or of yours: "
        "package.module:Env-v0, or path/to/file.py:MyEnv",
    )
    add(
        "--env-arg",
        type=arguments.assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the environment, such as length=12; may be given several times",
    )
    add(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module or a file to import before, which registers environments; may be given "
        "several times",
    )


def add_run_options(
    parser: argparse.ArgumentParser,
    *,
    verb: str,
    settings: str,
    num_envs: str,
    target: str,
    max_env_steps: str,
    out: str,
) -> None:
    """Add the options of a run.

    Args:
        parser: What they are added to.
        verb: What is done: "train".
        settings: Help of `--set`.
        num_envs: Help of `--num-envs`, without its default.
        target: Help of `--target`, without its default.
        max_env_steps: Help of `--max-env-steps`.
        out: Where a run lies unless `--out` says so.
    """
    add = parser.add_argument
    add(
        "--set",
        type=arguments.assignment,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=settings,
    )
    add(
        "--settings",
        action="store_true",
        help=f"show all settings, their values, and where those come from, and {verb} nothing",
    )
    add(
        "--num-envs",
        type=arguments.whole_number(1),
        metavar="N",
        help=f"{num_envs} (default: 8)",
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
        help=f"{target} (default: that of the environment, if it has one)",
    )
    add(
        "--max-env-steps",
        type=arguments.whole_number(1),
        metavar="N",
        help=max_env_steps,
    )
    add(
        "--out",
        type=arguments.path,
        metavar="DIR",
        help=f"the directory of the run (default: the next number under {out})",
    )
    add(
        "--resume",
        action="store_true",
        help="go on with the run in --out where its last checkpoint was saved; begin it if "
        "there is none",
    )
    add(
        "--config",
        type=arguments.path,
        metavar="FILE",
        help="settings and options from a TOML file, or from the config.json of a run; what is "
        "given on the command line wins",
    )
    add(
        "--report",
        action="append",
        metavar="FILE:NAME",
        help="a function of yours that gets the newest of every metric and the env steps, each "
        "time a row of metrics is written: path/to/file.py:my_logger; may be given several times",
    )
    add("--smoke", action="store_true", help="only try it out, for 2,000 env steps")
    add(
        "--device",
        metavar="DEVICE",
        help="the device of the networks, as PyTorch names it, such as cuda (default: cpu)",
    )

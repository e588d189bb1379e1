"""The commands of `ding-lite` with their arguments; the string below each one is its help.

The functions of the commands are imported when they run, as they would slow down `--help`.
"""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

from ding_lite.cli.parsing.arguments import (
    EXPORT_FORMATS,
    PROTOCOLS,
    SORTED_BY,
    names,
    one_of,
    ports,
    roles,
    seconds,
    seconds_or_none,
    topology,
)
from ding_lite.options.derived import add_options, sentences_of
from ding_lite.options.words import Pairs, assignment, path, searched, whole_number

_WORDS = {
    "policies": "dqn, ddpg, td3, sac, a2c, ppo, impala, r2d2",
    "columns": ", ".join(SORTED_BY),
    "trust": (
        "import the code that the run names, even if you have not saved it on this machine, or the "
        "code has moved"
    ),
}


class Argument(dict[str, Any]):
    """The keywords of `add_argument` for one argument."""


class Option(Argument):
    """An argument with a flag: its name with two dashes."""


class Command:
    """One command; the first line of its docstring is its description."""

    takes: ClassVar[str]
    """The arguments, for the usage line of the help."""
    example: ClassVar[str]
    function: ClassVar[tuple[str, str]]
    """The module and the name of the function that gets the options. It returns the exit code; None
    is success."""
    of_runs: ClassVar[str] = ""
    """The set of options of a run that the command has: that of `train` or `evolve`."""

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> None:
        words = {**_WORDS, "verb": getattr(cls, "verb", "")}
        for name, text in sentences_of(cls).items():
            if isinstance(typed := getattr(cls, name, None), Argument):
                flag = f"--{name.replace('_', '-')}" if isinstance(typed, Option) else name
                parser.add_argument(flag, **typed, help=text.format_map(words))
        if cls.of_runs:
            add_options(parser, of=cls.of_runs)


class Train(Command):
    """Train a policy until it solves an environment."""

    function = "ding_lite.cli.train", "train_policy"
    takes, example = "[options] POLICY ENV", "dqn CartPole-v1 --set lr=1e-3 --seed 1"
    of_runs = "train"
    policy = Argument(metavar="POLICY")
    """the policy to train: {policies}"""
    set = Option(type=assignment, action=Pairs, default={}, metavar="KEY=VALUE")
    """a setting of the policy or of training, such as lr=3e-4 or hidden=64,64; may be given
    several times (default: that of the environment's preset, if there is one)"""
    settings = Option(action="store_true")
    """show all settings with their values and the sources of these, without a run"""


class Evolve(Command):
    """Train a population of agents, and evolve their hyperparameters."""

    function = "ding_lite.cli.train", "evolve_policies"
    takes = "[options] POLICY ENV"
    example = "dqn CartPole-v1 --population 6 --search lr=1e-4:1e-2:log"
    of_runs = "evolve"
    policy = Argument(metavar="POLICY")
    """the policy to evolve: {policies}"""
    search = Option(type=searched, action="append", metavar="KEY=LOW:HIGH")
    """a setting in which agents differ: lr=1e-4:1e-2:log, batch_size=8:64, 'loss=huber|mse'; may
    be given several times (default: that of a preset, or learning rates and batch sizes)"""
    set = Option(type=assignment, action=Pairs, default={}, metavar="KEY=VALUE")
    """a setting of the policy or of evolution that all agents share, such as gamma=0.98 or
    mutation_sd=0.2; may be given several times"""
    settings = Option(action="store_true")
    """show all settings with their values and the sources of these, without a run"""


class _OfRuns(Command):
    """A command that reads runs."""

    runs = Argument(type=path, nargs="+", metavar="RUN")
    """the directory of a run, or a pattern of several: 'runs/dqn/CartPole-v1/*'"""


class Plot(_OfRuns):
    """Draw the learning curves of runs, and print their returns."""

    function = "ding_lite.cli.plot", "plot_runs"
    takes, example = "[options] RUN ...", "runs/dqn/CartPole-v1/1 --out curves.png"
    out = Option(type=path, default="plot.png", metavar="FILE")
    """the picture: .png, .svg or .pdf (default: plot.png)"""
    metric = Option(metavar="NAME")
    """the metric to draw (default: eval_return if all runs have it, else return)"""


class Report(_OfRuns):
    """Write one HTML page about runs, or serve it while they train."""

    function = "ding_lite.cli.report.report", "report_runs"
    takes, example = "[options] RUN ...", "runs/dqn/CartPole-v1/* --out report.html"
    out = Option(type=path, metavar="FILE")
    """the page, a file that opens without a server (default: report.html)"""
    no_video = Option(action="store_true")
    """record no video of the best policy"""
    trust = Option(action="store_true")
    """{trust}"""
    live = Option(action="store_true")
    """serve the page until Ctrl-C, to this machine only and without a video, instead of writing
    it"""
    port = Option(type=whole_number(0, 65_535), metavar="N")
    """with --live, the port to listen on (default: 0, any free port)"""


class Runs(Command):
    """List the runs of a folder with their returns."""

    function = "ding_lite.cli.report.runs", "list_runs"
    takes, example = "[options] [FOLDER]", "--sort best"
    folder = Argument(type=path, nargs="?", default="runs", metavar="FOLDER")
    """a directory that contains runs, at any depth (default: runs)"""
    sort = Option(type=one_of(SORTED_BY), default="when", metavar="KEY")
    """the column to sort by, numbers and times in descending order: {columns} (default: when)"""
    json = Option(action="store_true")
    """print one JSON object"""


class _OfRun(Command):
    """A command that loads the policy of a run."""

    run = Argument(type=path, metavar="RUN")
    """the directory of a run, or of a checkpoint"""
    trust = Option(action="store_true")
    """{trust}"""
    last = Option(action="store_true")
    """{verb} the newest weights of a run (default: those of its best policy)"""


class Watch(_OfRun):
    """Play episodes of a trained policy in a window, as videos, or to print their returns."""

    function = "ding_lite.cli.watch", "watch_run"
    takes, example = "[options] RUN", "runs/dqn/CartPole-v1/1 --record videos"
    verb = "play with"
    episodes = Option(type=whole_number(1), default=5, metavar="N")
    """number of episodes (default: 5)"""
    seed = Option(type=whole_number(0), default=0, metavar="N")
    """the seed of the environment (default: 0)"""
    record = Option(type=path, metavar="DIR")
    """write a video of each episode into this directory, without a window: .mp4 if ffmpeg is
    installed, else .gif"""


class Export(_OfRun):
    """Export the network of a trained policy as ONNX or torch.export."""

    function = "ding_lite.cli.export", "export_run"
    takes, example = "[options] RUN", "runs/dqn/CartPole-v1/1 --out policy.onnx"
    verb = "export"
    format = Option(type=one_of(EXPORT_FORMATS), metavar="{" + ",".join(EXPORT_FORMATS) + "}")
    """onnx for ONNX runtimes, torch for torch.export.load (default: by the suffix of --out, else
    onnx)"""
    out = Option(type=path, metavar="FILE")
    """the file to write (default: policy.onnx or policy.pt2)"""


class Run(Command):
    """Run a function of a module or a file on several nodes."""

    function = "ding_lite.cli.run", "run_program"
    takes = "[options] PROGRAM [-- ARGS ...]"
    example = "train.py:main --roles learner,collector*3 -- --seed 1"
    program = Argument(metavar="PROGRAM")
    """package.module:main, or path/to/file.py:main; the words after `--` are in sys.argv, and are
    passed to a main that takes positional arguments"""
    nodes = Option(type=whole_number(1), metavar="N")
    """number of nodes; 1 runs in this process (default: one for each role, else 1)"""
    topology = Option(type=topology, metavar="{star,mesh,tree,tree:N,alone,0-1...}")
    """the connections: all to node 0 (star), each to each (mesh), each to one of a few hubs (tree),
    none (alone), or pairs: 0-1,1-2 (default: DING_LITE_TOPOLOGY, else mesh)"""
    roles = Option(type=roles, metavar="ROLES")
    """the role of each node in order: learner,collector*3; `+` gives one node several roles:
    learner+collector (default: DING_LITE_ROLES, else none)"""
    labels = Option(type=names, metavar="LABELS")
    """further labels of all nodes: gpu,fast (added to those of DING_LITE_LABELS)"""
    protocol = Option(type=one_of(PROTOCOLS), metavar="{" + ",".join(PROTOCOLS) + "}")
    """the transport between nodes (default: DING_LITE_PROTOCOL, else ipc)"""
    address = Option(metavar="HOST")
    """with tcp, the interface to listen on (default: DING_LITE_ADDRESS, else 127.0.0.1)"""
    ports = Option(type=ports, metavar="PORTS")
    """with tcp, the port of node 0, which the ports of the other nodes follow, or one port per
    node: 7000,7001 (default: DING_LITE_PORTS, else free ports)"""
    key_file = Option(type=path, metavar="FILE")
    """with tcp, the key that all nodes share, from `ding-lite keygen` (default:
    DING_LITE_KEY_FILE, else a key of this user, for this machine only)"""
    auto_recover = Option(action="store_true")
    """restart failed nodes; without it a failure ends the job"""
    max_retries = Option(type=whole_number(0), metavar="N")
    """with --auto-recover, the maximum number of restarts of each node (default: 3)"""
    startup_timeout = Option(type=seconds_or_none, default=60.0, metavar="SECONDS")
    """seconds within which all nodes must be connected; `none` waits for ever (default: 60)"""


class Top(Command):
    """Show the state of the nodes of your running jobs, updated every second."""

    function = "ding_lite.cli.top", "show_top"
    takes, example = "[options] [JOB]", "--once"
    job = Argument(metavar="JOB", nargs="?")
    """the job: its name in the table, the beginning of the name, or the process id of a node
    (default: all)"""
    once = Option(action="store_true")
    """print one table, and exit"""
    json = Option(action="store_true")
    """print one JSON object with all values, and exit"""
    every = Option(type=seconds, default=1.0, metavar="SECONDS")
    """the period of the updates; nodes write their state once a second (default: 1)"""


class Env(Command):
    """Show every DING_LITE_* variable, its value, and the source of the value."""

    function = "ding_lite.cli.env", "show_environment"
    takes, example = "[--json]", "--json"
    json = Option(action="store_true")
    """print JSON, a list with one object per variable"""


class Doctor(Command):
    """Check that this machine meets the requirements of ding_lite."""

    function = "ding_lite.cli.doctor.doctor", "examine"
    takes, example = "", ""


class Keygen(Command):
    """Write a new key, by which nodes of several machines authenticate each other."""

    function = "ding_lite.cli.keygen", "write_key"
    takes, example = "FILE", "job.key"
    file = Argument(type=path, metavar="FILE")
    """the file to write; it must not exist yet"""


COMMANDS: dict[str, type[Command]] = {
    command.__name__.lower(): command
    for command in (
        *(Train, Evolve, Plot, Report, Runs, Watch, Export),
        *(Run, Top, Env, Doctor, Keygen),
    )
}

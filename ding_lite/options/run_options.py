"""The options of a run, each defined once.

`train` and `evolve`, their commands and the programs of `examples/` use these definitions. The
modules that make a run are not imported here, as they would slow down `--help`.
"""

# ruff: noqa: RUF009 - `_option` makes a field

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ding_lite.options import words

if TYPE_CHECKING:
    from ding_lite.rl.envs.making import EnvMaker, EnvWrapper
    from ding_lite.rl.weights.compiled import Compile
    from ding_lite.rl.weights.flat_module import MakeModule
    from ding_lite.rl.weights.optimizers import MakeOptimizer
    from ding_lite.runtime.middleware import MakeMiddleware, Middleware

CriterionName: TypeAlias = Literal["greedy", "seed"]
SMOKE_ENV_STEPS = 2_000
NUM_ENVS = 8
MAX_ENV_STEPS, MAX_ENV_STEPS_OF_EVOLUTION = 100_000, 200_000
"""The defaults of options for which there is no preset."""
_CALLS = ("train", "evolve")
_ALL = (*_CALLS, "program")
USUAL = {
    "train": {"runs": "runs/POLICY/ENV", "max_env_steps": MAX_ENV_STEPS},
    "evolve": {"runs": "runs/evolve-POLICY/ENV", "max_env_steps": MAX_ENV_STEPS_OF_EVOLUTION},
    "program": {"runs": "runs/<program>"},
}
"""The defaults that differ between commands."""


def _option(
    default: Any = MISSING,  # noqa: ANN401 - of any kind
    *,
    of: tuple[str, ...] = _CALLS,
    kind: str = "run",
    in_file: bool = False,
    flag: str = "",
    usual: str = "",
    in_evolve: str = "",
    in_python: str = "",
    **typed: Any,  # noqa: ANN401 - of `add_argument`
) -> Any:  # noqa: ANN401 - stands for a value of the field's type
    """Make the field of an option.

    Args:
        default: The value if the option is not given.
        of: The commands that always have it: `train`, `evolve`, `program`. A program may have more.
        kind: `run`; `env`, of the environment; `part`, of the policy; `setting`, also a setting.
        in_file: Whether a file of settings may contain it.
        flag: The flag on the command line, if it is not the name.
        usual: The default in words, for the help.
        in_evolve: The end of the sentence below the field where agents evolve.
        in_python: The end of that sentence in docstrings.
        **typed: Keywords of `add_argument`; without any the option exists only in Python.
    """
    return field(default=default, metadata=locals())


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """All options of a run."""

    env: str | EnvMaker = _option(kind="env", metavar="ENV")
    """An environment of gymnasium's registry, such as CartPole-v1, or one of your own:
    package.module:Env-v0, or path/to/file.py:MyEnv."""
    env_args: Mapping[str, Any] | None = _option(
        None,
        kind="env",
        flag="--env-arg",
        type=words.assignment,
        action=words.Pairs,
        metavar="NAME=VALUE",
    )
    """Keyword arguments of the environment, such as length=12."""
    wrappers: Sequence[EnvWrapper] = _option((), kind="env")
    """Wrappers of each environment, the first one innermost."""
    imports: Sequence[str] = _option(
        (), kind="env", flag="--import", action="append", metavar="MODULE"
    )
    """Modules and files to import first, which may register environments."""
    network: MakeModule | None = _option(
        None, kind="part", in_evolve=". Each agent has a network of its own"
    )
    """A network of your own: a module, or a class or function of the spec that makes one.
    `load_policy`, `ding-lite watch` and `export` import it again if it is a class or a function at
    the top level of a module or a file."""
    actor: MakeModule | None = _option(None, kind="part")
    """An actor of your own, likewise."""
    critic: MakeModule | None = _option(None, kind="part")
    """A critic of your own, likewise."""
    optimizer: MakeOptimizer | None = _option(None, kind="part")
    """An optimiser such as `torch.optim.RMSprop`."""
    use: Sequence[Middleware] | MakeMiddleware = _option(())
    """Middleware of your own, run in each step after learning and evaluation, and before the
    metrics are written: `[mw.report(fn, every=50)]`. If they need the policy or the environments:
    a function that makes them of the parts of the run, by the names in its checkpoint."""
    population: int = _option(
        1,
        of=("evolve",),
        kind="setting",
        usual="6",
        type=words.whole_number(1),
        metavar="N",
    )
    """Number of agents."""
    num_envs: int = _option(
        1,
        in_file=True,
        usual=f"that of the preset, else {NUM_ENVS}",
        in_evolve="; agents take turns in them",
        type=words.whole_number(1),
        metavar="N",
    )
    """Number of environments that are stepped together."""
    seed: int = _option(
        0, of=_ALL, in_file=True, usual="0", type=words.whole_number(0), metavar="N"
    )
    """The seed of all random numbers."""
    target: float = _option(
        in_file=True,
        usual="that of the environment, if it has one",
        type=words.number,
        metavar="RETURN",
    )
    """The mean return of 20 greedy episodes at which the environment counts as solved; the run
    ends at this plus the margin of the settings."""
    max_env_steps: int = _option(
        in_file=True,
        usual="that of the preset, else {max_env_steps}",
        in_evolve=", including those of evaluations",
        type=words.whole_number(1),
        metavar="N",
    )
    """Maximum number of env steps."""
    nodes: int = _option(1, of=(), type=words.whole_number(1), metavar="N")
    """Number of processes; 1 runs everything in one."""
    criterion: CriterionName = _option("greedy", of=(), choices=("greedy", "seed"))
    """The episodes that decide whether it is solved: greedy evaluations, or (seed) those of a
    collector, if its smoothed return is above the target five times in a row."""
    out: Path | None = _option(
        None, of=_ALL, usual="the next number under {runs}", type=words.path, metavar="DIR"
    )
    """The directory of the run."""
    resume: bool = _option(False, of=_ALL, action="store_true")
    """Continue the run in `out` from its last checkpoint, with the settings of its start; without
    a checkpoint, start it."""
    config: Path | None = _option(None, type=words.path, metavar="FILE")
    """A TOML file of settings and options, or the config.json of a run; values that are given
    directly override it."""
    report: tuple[str, ...] = _option((), action="append", metavar="FILE:NAME")
    """A function of your own that is called with the newest value of every metric and the env
    steps whenever a row of metrics is written: path/to/file.py:my_logger."""
    smoke: bool = _option(False, of=_ALL, action="store_true")
    """Make a trial run of at most 2,000 env steps."""
    device: str = _option("cpu", in_file=True, usual="cpu", metavar="DEVICE")
    """The device of the networks, as PyTorch names it, such as cuda."""
    compile: Compile = _option(
        None,
        of=("train",),
        in_file=True,
        in_python=". It may also be a compiler of your own",
        choices=("torch", "graph"),
        metavar="HOW",
    )
    """Compile the networks for updates: torch uses torch.compile, graph uses CUDA graphs."""
    quiet: bool = _option(False, action="store_true")
    """Show nothing on standard error."""


_OF_CALLS = [one for one in fields(RunOptions) if one.metadata["of"]]
OF_CALLS = tuple(one.name for one in _OF_CALLS)
OF_FILES = tuple(one.name for one in _OF_CALLS if one.metadata["in_file"])
OF_ENVS, PARTS, NO_SETTINGS, ALSO_SETTINGS = (
    tuple(one.name for one in _OF_CALLS if one.metadata["kind"] == kind)
    for kind in ("env", "part", "run", "setting")
)
"""Options of the environment, of the policy's parts, of runs, which are not settings, and those
that are."""


def _how_given(option: str, facts: Mapping[str, Any]) -> str:
    flag = facts["flag"] or f"--{option.replace('_', '-')}"
    where = "on the command line" if len(facts["of"]) > 1 else f"of `ding-lite {facts['of'][0]}`"
    on_command_line = f"{flag} {where}, " if facts["typed"] else ""
    if option == "wrappers":
        on_command_line = "wrappers = ['tasks.py:scaled'] in a file for --config, "
    in_python = "use=[mw.report(fn, every=...)]" if option == "report" else f"{option}=..."
    return f"{on_command_line}{facts['of'][0]}(..., {in_python}) in Python"


HOW_GIVEN = {one.name: _how_given(one.name, one.metadata) for one in _OF_CALLS if one.name != "env"}
"""How each option is given, in words for messages."""

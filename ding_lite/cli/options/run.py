"""The options of a run, each defined once.

`train` and `evolve`, their commands and the programs of `examples/` use these definitions. The
modules that make a run are not imported here, as they would slow down `--help`.
"""

# ruff: noqa: RUF009 - `_option` makes a field

from __future__ import annotations

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from ding_lite.cli.options import arguments

if TYPE_CHECKING:
    from ding_lite.rl.envs.making import EnvMaker, EnvWrapper
    from ding_lite.rl.weights.compiled import Compile
    from ding_lite.rl.weights.flat_module import MakeModule
    from ding_lite.rl.weights.optimizers import MakeOptimizer
    from ding_lite.runtime.middleware import Middleware

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
CriterionName: TypeAlias = Literal["greedy", "seed"]
SMOKE_ENV_STEPS = 2_000
NUM_ENVS = 8
_CALLS = "train evolve"
_ALL = "train evolve program"
_WORDS = {
    "train": {"runs": "runs/POLICY/ENV", "max_env_steps": 100_000},
    "evolve": {"runs": "runs/evolve-POLICY/ENV", "max_env_steps": 200_000},
    "program": {"runs": "runs/<program>"},
}
"""The defaults that differ between commands."""


def _option(
    default: Any = MISSING,  # noqa: ANN401 - of any kind
    *,
    of: str = _CALLS,
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
    facts = {"of": of.split(), "kind": kind, "in_file": in_file, "flag": flag, "usual": usual}
    facts |= {"in_evolve": in_evolve, "in_python": in_python}
    return field(default=default, metadata={**facts, "typed": typed})


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
        type=arguments.assignment,
        action=arguments.Pairs,
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
    use: Sequence[Middleware] = _option(())
    """Middleware of your own, run in each step after learning and evaluation, and before the
    metrics are written: `[mw.report(fn, every=50)]`."""
    population: int = _option(
        1,
        of="evolve",
        kind="setting",
        usual="6",
        type=arguments.whole_number(1),
        metavar="N",
    )
    """Number of agents."""
    num_envs: int = _option(
        1,
        in_file=True,
        usual=f"that of the preset, else {NUM_ENVS}",
        in_evolve="; agents take turns in them",
        type=arguments.whole_number(1),
        metavar="N",
    )
    """Number of environments that are stepped together."""
    seed: int = _option(
        0, of=_ALL, in_file=True, usual="0", type=arguments.whole_number(0), metavar="N"
    )
    """The seed of all random numbers."""
    target: float = _option(
        in_file=True,
        usual="that of the environment, if it has one",
        type=arguments.number,
        metavar="RETURN",
    )
    """The mean return of 20 greedy episodes at which the environment counts as solved and the run
    ends."""
    max_env_steps: int = _option(
        in_file=True,
        usual="that of the preset, else {max_env_steps}",
        in_evolve=", including those of evaluations",
        type=arguments.whole_number(1),
        metavar="N",
    )
    """Maximum number of env steps."""
    nodes: int = _option(1, of="", type=arguments.whole_number(1), metavar="N")
    """Number of processes; 1 runs everything in one."""
    criterion: CriterionName = _option("greedy", of="", choices=("greedy", "seed"))
    """The episodes that decide whether it is solved: greedy evaluations, or (seed) those of a
    collector, if its smoothed return is above the target five times in a row."""
    out: Path | None = _option(
        None, of=_ALL, usual="the next number under {runs}", type=arguments.path, metavar="DIR"
    )
    """The directory of the run."""
    resume: bool = _option(False, of=_ALL, action="store_true")
    """Continue the run in `out` from its last checkpoint, with the settings of its start; without
    a checkpoint, start it."""
    config: Path | None = _option(None, type=arguments.path, metavar="FILE")
    """A TOML file of settings and options, or the config.json of a run; values that are given
    directly override it."""
    report: tuple[str, ...] = _option((), action="append", metavar="FILE:NAME")
    """A function of your own that is called with the newest value of every metric and the env
    steps whenever a row of metrics is written: path/to/file.py:my_logger."""
    smoke: bool = _option(False, of=_ALL, action="store_true")
    """Only a trial, of at most 2,000 env steps."""
    device: str = _option("cpu", in_file=True, usual="cpu", metavar="DEVICE")
    """The device of the networks, as PyTorch names it, such as cuda."""
    compile: Compile = _option(
        None,
        of="train",
        in_file=True,
        in_python=". It may also be a compiler of your own",
        choices=("torch", "graph"),
        metavar="HOW",
    )
    """Compile the networks for updates: torch uses torch.compile, graph uses CUDA graphs."""
    quiet: bool = _option(False, action="store_true")
    """Show nothing on standard error."""


_OF_CALLS = [one for one in fields(RunOptions) if one.metadata["of"]]
OF_FILES = tuple(one.name for one in _OF_CALLS if one.metadata["in_file"])
OF_ENVS, PARTS, NO_SETTINGS = (
    tuple(one.name for one in _OF_CALLS if one.metadata["kind"] == kind)
    for kind in ("env", "part", "run")
)
"""Options of the environment, of the policy's parts, and of runs, which are not settings."""
OPTIONS_ELSEWHERE = {"total_timesteps": "max_env_steps", "n_envs": "num_envs"}
"""Names of options in other libraries."""


def add_options(
    parser: argparse.ArgumentParser, *, of: str, given: Mapping[str, Any] | None = None
) -> None:
    """Add the options of a command or a program; `given` names further ones, with defaults."""
    given = given or {}
    for one in fields(RunOptions):
        name, typed = one.name, dict(one.metadata["typed"])
        if not typed or (of not in one.metadata["of"] and name not in given):
            continue
        if of == "program" and "action" not in typed:  # `Options` checks the numbers
            typed |= {"default": given.get(name, one.default)}
            typed["type"] = {"int": int, "float": float}.get(str(one.type), typed.get("type", str))
        flags = [one.metadata["flag"] or f"--{name.replace('_', '-')}"]
        if name == "env" and of != "program":
            flags = [name]
        else:
            typed["dest"] = name
        text = _sentence(one, evolves=of == "evolve" or "population" in given)
        parser.add_argument(*flags, **typed, help=_help(one, text, of, typed.get("default")))


def _sentence(one: Field[Any], *, evolves: bool, in_python: bool = False) -> str:
    facts = one.metadata
    more = facts["in_evolve"] * evolves + facts["in_python"] * in_python
    return f"{_SENTENCES[one.name].removesuffix('.')}{more}."


def _help(one: Field[Any], text: str, of: str, default: object) -> str:
    text = re.sub("`([a-z_]+)`", r"--\1", f"{text[0].lower()}{text[1:]}".removesuffix("."))
    if one.metadata["typed"].get("action") in ("append", arguments.Pairs):
        text += "; may be given several times"
    usual = one.metadata["usual"].format_map(_WORDS[of]) if default is None else f"{default}"
    return f"{text} (default: {usual.removesuffix('.0')})" if usual else text


def documented(of: str) -> Callable[[FunctionT], FunctionT]:
    """Add the options of a call to its docstring, before `**more`."""

    def add(fn: FunctionT) -> FunctionT:
        known, documented = {one.name: one for one in fields(RunOptions)}, ""
        for name in inspect.signature(fn).parameters:
            if name in known and name != "env":
                usual = known[name].metadata["usual"].format_map(_WORDS[of])
                text = _sentence(known[name], evolves=of == "evolve", in_python=True)
                text += f" Default: {usual}." if usual else ""
                documented += textwrap.fill(
                    f"{name}: {text}", 100, initial_indent=8 * " ", subsequent_indent=12 * " "
                )
                documented += "\n"
        if fn.__doc__:  # none with `python -OO`
            fn.__doc__ = fn.__doc__.replace("        **more:", f"{documented}        **more:", 1)
        return fn

    return add


def sentences_of(config: type) -> dict[str, str]:
    """Read the sentences below the fields of a dataclass, including inherited fields."""
    found: dict[str, str] = {}
    for cls in reversed(config.__mro__[:-1]):
        [definition] = ast.parse(inspect.getsource(cls)).body
        if isinstance(definition, ast.ClassDef):
            found |= sentences_below(definition)
    return found


def sentences_below(definition: ast.ClassDef) -> dict[str, str]:
    """Read the sentences below the assignments of a class, by the assigned names."""
    found = {}
    for one, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign | ast.Assign) and isinstance(text, ast.Expr):
            target = one.target if isinstance(one, ast.AnnAssign) else one.targets[0]
            found[ast.unparse(target)] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


_SENTENCES = sentences_of(RunOptions)

"""Detect SLURM: the tasks of one `srun`.

Only `srun` starts a process for each task and sets the variables of a job step. The SLURM
variables of a batch script or of a `salloc` shell describe an allocation, not this process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product, repeat, zip_longest

from ding_lite.errors import ConfigError
from ding_lite.parallel.launch.environment.base import Placement, number

_A_LIST = "gpu[08-10,12]"
_COUNT = re.compile(r"(?P<tasks>\d+)(?:\(x(?P<times>\d+)\))?")
_SPAN = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+))?")
_AT_TOP_COMMAS = re.compile(r",(?![^\[]*\])")


def detect(environ: Mapping[str, str]) -> Placement | None:
    node_id, num_nodes = number(environ, "SLURM_PROCID"), number(environ, "SLURM_STEP_NUM_TASKS")
    step = environ.get("SLURM_STEP_ID")
    if step is None or node_id is None or num_nodes is None:
        return None
    machines = expand_names(environ.get("SLURM_STEP_NODELIST", ""))
    counts = expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    how = environ.get("SLURM_DISTRIBUTION", "block")
    return Placement(
        launcher="srun",
        node_id=node_id,
        num_nodes=num_nodes,
        job=f"{environ.get('SLURM_JOB_ID')}.{step}",
        on_one_machine=len(machines) == 1 or number(environ, "SLURM_STEP_NUM_NODES") == 1,
        hosts=dict(enumerate(hosts_of_tasks(machines, counts, how))),
        how_to_tell="SLURM_STEP_NODELIST should name the machines of the step; was it unset?",
    )


def expand_names(text: str) -> list[str]:
    """Expand a SLURM list of host names.

    Example:
        >>> expand_names("gpu[08-10,12],login,r[1-2]n[1-2]")
        ['gpu08', 'gpu09', 'gpu10', 'gpu12', 'login', 'r1n1', 'r1n2', 'r2n1', 'r2n2']
    """
    names = []
    for entry in filter(None, (part.strip() for part in _AT_TOP_COMMAS.split(text))):
        # The odd parts are the contents of brackets.
        parts = re.split(r"\[([^\]]*)\]", entry)
        if any("[" in part or "]" in part for part in parts[::2]):
            raise _unreadable("SLURM_STEP_NODELIST", text, _A_LIST)
        choices = [
            list(_numbers(part, text)) if place % 2 else [part] for place, part in enumerate(parts)
        ]
        names += ["".join(choice) for choice in product(*choices)]
    return names


def _numbers(spans: str, whole: str) -> Iterator[str]:
    for span in spans.split(","):
        found = _SPAN.fullmatch(span.strip())
        if found is None:
            raise _unreadable("SLURM_STEP_NODELIST", whole, _A_LIST)
        first, last = found["first"], found["last"] or found["first"]
        yield from (str(k).zfill(len(first)) for k in range(int(first), int(last) + 1))


def expand_counts(text: str) -> list[int]:
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        found = _COUNT.fullmatch(part.strip())
        if found is None:
            raise _unreadable("SLURM_STEP_TASKS_PER_NODE", text, "2(x3),1")
        counts += repeat(int(found["tasks"]), int(found["times"] or 1))
    return counts


def hosts_of_tasks(machines: Sequence[str], counts: Sequence[int], how: str) -> list[str]:
    """Return the machine of each task, by rank, as far as it is known.

    Example:
        >>> hosts_of_tasks(["a", "b"], [2, 1], "block")
        ['a', 'a', 'b']
        >>> hosts_of_tasks(["a", "b"], [2, 1], "cyclic")
        ['a', 'b', 'a']
    """
    of_each = [list(repeat(*pair)) for pair in zip(machines, counts, strict=False)]
    match how.lower().split(":")[0]:
        case _ if len(of_each) != len(machines):
            return list(machines[:1])
        case "block" | "*" | "":
            return list(chain.from_iterable(of_each))
        case "cyclic":
            rounds = chain.from_iterable(zip_longest(*of_each))
            return [machine for machine in rounds if machine is not None]
    return list(machines[:1])


def _unreadable(name: str, text: str, example: str) -> ConfigError:
    return ConfigError(
        f"{name} is {text!r}, which cannot be read; expected was something like {example!r}, as "
        f"srun sets it."
    )

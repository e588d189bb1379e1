"""Labels: the names of a node, and the glob patterns that select nodes.

A node has the labels `standalone` or `distributed`, `node.<id>`, its roles (`learner`), also with
their count (`learner.0`), `async` if its task is async, and the user's. A middleware selects its
nodes by patterns: at least one pattern must match at least one label.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Set as AbstractSet
from fnmatch import fnmatchcase

from ding_lite.errors import LabelError

_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_PATTERN_PART = re.compile(r"[A-Za-z0-9_.\-*?]|\[!?\]?[^\]]*\]")
_FIRST_OF_A_LABEL = string.ascii_letters + string.digits + "_"
_COUNTED = re.compile(r".*\.[0-9]+")
_RESERVED = re.compile(r"standalone|distributed|async|node(\..*)?")


def check_labels(labels: str | Iterable[str], what: str = "label") -> frozenset[str]:
    """Return labels as a set, or raise LabelError; a single string counts as one label."""
    checked = several(labels)
    for label in checked:
        if not isinstance(label, str) or not _LABEL.fullmatch(label):
            raise LabelError(
                f"{label!r} is no {what}. Use letters, digits, `_`, `-` and `.`, "
                f"beginning with a letter, a digit or `_`: `learner`, `gpu-node`, `node.0`."
            )
    return frozenset(map(str.__str__, checked))  # plain ones: members of a StrEnum cannot be sent


def check_own_labels(labels: str | Iterable[str]) -> frozenset[str]:
    """Return labels that a user adds to nodes, or raise LabelError; the runtime's are refused."""
    checked = check_labels(labels)
    for label in sorted(checked):
        if _RESERVED.fullmatch(label):
            raise LabelError(
                f"{label!r} cannot be added to nodes: `standalone`, `distributed`, `async` and "
                f"`node.0` come from the runtime. Choose another name."
            )
    return checked


def check_patterns(patterns: str | Iterable[str], *, of_receivers: bool = False) -> tuple[str, ...]:
    """Return label patterns, or raise LabelError for none and for one that could match no label.

    They select the receivers of a message (`to`), or the nodes of a middleware (`filter_labels`).
    """
    checked = several(patterns)
    if not checked and of_receivers:
        raise LabelError(
            "`to` is empty, so no node would ever receive this. Give at least one pattern of "
            "labels, such as `learner` or `node.*`."
        )
    if not checked:
        raise LabelError(
            "`filter_labels` is empty, so no node would ever run this middleware. "
            "Give at least one pattern, or leave it out to run it everywhere."
        )
    for pattern in checked:
        if not isinstance(pattern, str) or not _can_match(pattern):
            raise LabelError(
                f"{pattern!r} is no label pattern: no label could match it. Use a label, or a "
                f"glob pattern over labels: `learner`, `node.0`, `node.*`, `collector.[0-3]`."
            )
    return tuple(map(str.__str__, checked))


def several(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return labels or patterns as a tuple; a single string counts as one."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        return (names,)  # anything else is refused like a label that is no string
    return tuple(names)


def _can_match(pattern: str) -> bool:
    parts = _PATTERN_PART.findall(pattern)
    if not parts or "".join(parts) != pattern:
        return False
    return _is_among(_FIRST_OF_A_LABEL, parts[0]) and all(
        _is_among(_FIRST_OF_A_LABEL + ".-", part) for part in parts[1:]
    )


def _is_among(chars: str, part: str) -> bool:
    return any(fnmatchcase(char, part) for char in chars)


def matches(labels: AbstractSet[str], patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns matches one of the labels.

    Example:
        >>> matches({"standalone", "node.0"}, ["distributed", "node.*"])
        True
    """
    return any(fnmatchcase(label, pattern) for pattern in patterns for label in labels)


def node_labels(
    node_id: int,
    *,
    distributed: bool,
    roles: Iterable[str] = (),
    extra: Iterable[str] = (),
) -> frozenset[str]:
    """Return all labels of one node.

    Example:
        >>> sorted(node_labels(2, distributed=True, roles={"learner", "learner.0"}))
        ['distributed', 'learner', 'learner.0', 'node.2']
    """
    kind = "distributed" if distributed else "standalone"
    return frozenset({kind, f"node.{node_id}", *roles, *extra})


def roles_of(labels: AbstractSet[str]) -> tuple[str, ...]:
    """Return the roles among a node's labels; without any, the labels that the user has added.

    Example:
        >>> roles_of({"distributed", "node.2", "collector", "collector.1", "gpu"})
        ('collector',)
        >>> roles_of({"distributed", "node.2", "gpu"})
        ('gpu',)
    """
    own = {label for label in labels if not _RESERVED.fullmatch(label)}
    counted = {
        label for label in own if _COUNTED.fullmatch(label) and label.rpartition(".")[0] in own
    }
    roles = {label.rpartition(".")[0] for label in counted}
    return tuple(sorted(roles or own))


def describe_node(node_id: int, labels: AbstractSet[str]) -> str:
    """Describe a node for log lines by its number and its roles.

    Example:
        >>> describe_node(1, {"distributed", "node.1", "collector", "collector.0"})
        'node 1 collector'
    """
    return " ".join([f"node {node_id}", "+".join(roles_of(labels))]).strip()


def count_roles(roles: Iterable[str | Iterable[str]]) -> list[frozenset[str]]:
    """Return the labels of each node, given one role entry per node: a name or a set of names.

    Nodes with the same name are also counted, from 0, in the order of the nodes. LabelError is
    raised for a role that equals the label of a node or the count of another role.

    Example:
        >>> [sorted(labels) for labels in count_roles(["learner", "collector", "collector"])]
        [['learner', 'learner.0'], ['collector', 'collector.0'], ['collector', 'collector.1']]
    """
    if isinstance(roles, str | Mapping) or not isinstance(roles, Iterable):
        advice = [*roles] if isinstance(roles, Mapping) else [roles]
        raise LabelError(f"`roles` is {roles!r}; give a list with one entry a node: {advice!r}.")
    seen: Counter[str] = Counter()
    counted = []

    for entry in roles:
        names = check_labels(entry, what="role")
        counted.append(names | {f"{name}.{seen[name]}" for name in names})
        seen.update(names)

    of_counts = {f"{name}.{k}" for name, count in seen.items() for k in range(count)}
    for name in seen:
        if _RESERVED.fullmatch(name) or name in of_counts:
            raise LabelError(
                f"{name!r} cannot be a role: it would be taken for another label. `standalone`, "
                f"`distributed`, `async` and `node.0` come from the runtime, and `learner.0` is "
                f"the first node of the role `learner`. Choose another name."
            )
    return counted

"""Walk nested dicts, lists and tuples: checkpoints, ctx values and messages are such trees.

A path is the tuple of keys and indices from the root to a leaf. Every value that is not a dict,
list or tuple is a leaf. An empty container is a leaf too, so that it is not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from typing import Any

Path = tuple[str | int, ...]


def leaves(tree: Any) -> Iterator[tuple[Path, Any]]:
    """Yield each leaf of a tree with its path, depth first, in container order.

    Example:
        >>> list(leaves({"a": [1, 2], "b": {}}))
        [(('a', 0), 1), (('a', 1), 2), (('b',), {})]
    """
    children: Iterable[tuple[str | int, Any]]
    if isinstance(tree, dict) and tree:
        children = tree.items()
    elif isinstance(tree, list | tuple) and tree:
        children = enumerate(tree)
    else:
        yield (), tree
        return
    for key, child in children:
        for path, leaf in leaves(child):
            yield (key, *path), leaf


def map_leaves(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Build a tree of the same shape with the leaves `fn(leaf)`; the input is not changed.

    Example:
        >>> map_leaves(lambda x: x + 1, {"a": [1, 2], "b": (3,)})
        {'a': [2, 3], 'b': (4,)}
    """
    if isinstance(tree, dict) and tree:
        return {key: map_leaves(fn, child) for key, child in tree.items()}
    if isinstance(tree, list) and tree:
        return [map_leaves(fn, child) for child in tree]
    if isinstance(tree, tuple) and tree:
        children = [map_leaves(fn, child) for child in tree]
        return type(tree)(*children) if hasattr(tree, "_fields") else tuple(children)
    return fn(tree)


def path_name(path: Path, root: str = "") -> str:
    """Spell a path as Python would, for error messages.

    Example:
        >>> path_name(("state_dict", "layers", 0), root="ctx")
        "ctx['state_dict']['layers'][0]"
    """
    return root + "".join(f"[{key!r}]" for key in path)


def num_composed(members: Iterable[object]) -> int:
    """Count the members of a set, or keys of a dict, that are no plain values, also in tuples.

    The numbers in tuples and records can be chosen so that all have one hash, and then each is
    compared with all others. So their number is limited in sets and dicts from elsewhere.

    Example:
        >>> num_composed({1, "a", (1, 2), (3, (4, 5))})
        3
    """
    composed = [one for one in members if not isinstance(one, str | bytes | Real | None)]
    return len(composed) + sum(num_composed(one) for one in composed if isinstance(one, tuple))

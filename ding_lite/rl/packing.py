"""Packed observations: one array holds an observation of several parts, and its action mask.

The environments pack Dict, Tuple, MultiDiscrete and MultiBinary observations, and those with an
action mask, into one flat array. Replays, rollouts and messages handle a single array therefore,
and only the input of a network unpacks it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from torch import Tensor
from torch.compiler import is_compiling

from ding_lite.errors import ShapeError
from ding_lite.rl.batch import Array, NumpyArray, to_numpy
from ding_lite.rl.host_or_device import floats, namespace

LeafSpace: TypeAlias = Box | Discrete | MultiDiscrete | MultiBinary
ObsSpace: TypeAlias = "LeafSpace | Dict | Tuple[Any]"  # `Tuple` is no generic class before 1.4
Tree: TypeAlias = Any
"""An observation with the structure of its space: an array, or a dict or tuple of trees."""
Keys: TypeAlias = tuple[str | int, ...]
ArrayT = TypeVar("ArrayT", NumpyArray, Tensor)

_PER_BYTE = 1.0 / 255.0


@dataclass(frozen=True)
class Leaf:
    """One part of an observation: its place in the tree, and its form."""

    keys: Keys
    """The keys that lead to it, from the outermost one."""
    space: LeafSpace

    @property
    def name(self) -> str:
        """The name of the part in messages, such as `obs["camera"][0]`."""
        return "obs" + "".join(f"[{key!r}]" for key in self.keys).replace("'", '"')

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape as the input of a network: one-hot vectors, images with channels first."""
        space = self.space
        if isinstance(space, Discrete):
            return (int(space.n),)
        if isinstance(space, MultiDiscrete):
            return (int(space.nvec.sum()),)
        if isinstance(space, MultiBinary):
            return (math.prod(space.shape),)
        shape = space.shape
        if len(shape) == 3 and has_channels_last(shape):
            return (shape[2], *shape[:2])
        return (1, *shape) if len(shape) in (0, 2) else shape

    @property
    def raw_shape(self) -> tuple[int, ...]:
        return self.space.shape or ()

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> type[np.uint8] | type[np.float32]:
        is_bytes = isinstance(self.space, Box) and self.space.dtype == np.uint8
        return np.uint8 if is_bytes else np.float32

    @property
    def is_image(self) -> bool:
        """Whether it has channels, height and width."""
        return len(self.shape) == 3

    @property
    def is_binary(self) -> bool:
        """Whether all numbers are 0 or 1, so that one byte holds each."""
        return not isinstance(self.space, Box)

    def find(self, tree: Tree) -> Any:  # noqa: ANN401 - of any type
        for key in self.keys:
            tree = tree[key]
        return tree

    def encode(self, raw: NumpyArray) -> NumpyArray:
        """Return observations of its space, [..., *raw_shape], as [..., *shape]."""
        lead = raw.shape[: raw.ndim - len(self.raw_shape)]
        if isinstance(self.space, Discrete | MultiDiscrete):
            owner_A, choice_A = self._one_hot
            numbers = raw.reshape(*lead, math.prod(self.raw_shape))
            return np.equal(numbers if numbers.shape[-1] == 1 else numbers[..., owner_A], choice_A)
        is_picture = isinstance(self.space, Box) and len(self.raw_shape) == 3
        if is_picture and has_channels_last(self.raw_shape):
            raw = np.moveaxis(raw, -1, -3)
        return raw.reshape(*lead, *self.shape)

    @cached_property
    def _one_hot(self) -> tuple[NumpyArray, NumpyArray]:
        """For each column: the index of the number that it belongs to, and what it stands for."""
        space = cast(Any, self.space)
        sizes = np.ravel(space.n if isinstance(space, Discrete) else space.nvec)
        choices = [
            start + np.arange(n) for n, start in zip(sizes, np.ravel(space.start), strict=True)
        ]
        return np.repeat(np.arange(len(sizes)), sizes), np.concatenate(choices)


class Packing:
    """The layout of packed observations: the parts one after the other, then the action mask.

    Packed observations are float32 if no part is of bytes, else bytes. Parts of bytes, and parts of
    zeros and ones, then take one byte for each number, all others four.

    Example:
        >>> space = Dict(at=Discrete(3), speed=Box(-1.0, 1.0, (2,)))
        >>> packing = Packing(space)
        >>> packed = packing.pack({"at": np.array([2]), "speed": np.array([[0.5, -0.5]])})
        >>> packed.tolist()
        [[0.0, 0.0, 1.0, 0.5, -0.5]]
        >>> packing.unpack(packed)["speed"].tolist()
        [[0.5, -0.5]]
    """

    def __init__(self, space: ObsSpace, *, num_masked: int = 0) -> None:
        self.space = space
        self.leaves = tuple(Leaf(keys, leaf) for keys, leaf in leaf_spaces(space))
        """The parts, in the order in which they are packed."""
        self.num_masked = num_masked
        self.is_bytes = any(leaf.dtype is np.uint8 for leaf in self.leaves)
        self.dtype = np.uint8 if self.is_bytes else np.float32
        widths = [leaf.size * self._bytes_of(leaf) for leaf in self.leaves]
        ends = np.cumsum([0, *widths]).tolist()
        self._slices = [slice(a, b) for a, b in pairwise(ends)]
        self.border = int(ends[-1])
        """Where the action mask begins."""
        self.shape = (self.border + num_masked,)
        self.num_inputs = sum(leaf.size for leaf in self.leaves)
        """The length of the vector that `joined` returns."""
        self.has_images = any(leaf.is_image for leaf in self.leaves)
        self.is_one_leaf = self.leaves[0].keys == ()
        """Whether the observation is a single part, packed only because it has an action mask."""

    def pack(self, tree: Tree, *, action_mask: Array | None = None) -> NumpyArray:
        """Pack a batch of observations, [N, D].

        Each part is [N, ...], either as the environment returns it or as `unpack` does. Without a
        mask, [N, A], all actions are legal.
        """
        parts = [self._encoded(leaf, tree) for leaf in self.leaves]
        count = len(parts[0])
        for leaf, part in zip(self.leaves, parts, strict=True):
            if len(part) != count:
                raise ShapeError(
                    f"`{leaf.name}` is of {len(part)} observations, `{self.leaves[0].name}` of "
                    f"{count}; the same number was expected of all parts."
                )
        packed = np.empty((count, *self.shape), dtype=self.dtype)
        for leaf, where, part in zip(self.leaves, self._slices, parts, strict=True):
            self._write(packed[..., where], leaf, part)
        if self.num_masked:
            mask = np.True_ if action_mask is None else to_numpy(action_mask)
            if action_mask is not None and mask.shape != (count, self.num_masked):
                raise ShapeError(
                    f"`action_mask` has shape {mask.shape}; {(count, self.num_masked)} was "
                    f"expected, one flag for each action."
                )
            packed[..., self.border :] = mask
        return packed

    def write_row(self, row: NumpyArray, raw: Tree) -> None:
        for leaf, where in zip(self.leaves, self._slices, strict=True):
            part = leaf.encode(np.asarray(leaf.find(raw)))
            self._write(row[where], leaf, part)

    def unpack(self, packed: ArrayT) -> Tree:
        """Unpack observations, [..., D].

        Return a tree of [..., *shape]: numbers as one-hot vectors, images with channels first. The
        arrays may share memory with `packed`.
        """
        parts = iter(self.parts(packed))
        return _rebuilt(self.space, parts)

    def parts(self, packed: ArrayT) -> list[ArrayT]:
        """Return the parts of packed observations, each [..., *shape], in the order of `leaves`."""
        return [
            self._read(packed[..., where], leaf).reshape(*packed.shape[:-1], *leaf.shape)
            for leaf, where in zip(self.leaves, self._slices, strict=True)
        ]

    def joined(self, packed: ArrayT) -> ArrayT:
        """Return all parts as one vector of floats, [..., I]; bytes are scaled to 0 to 1."""
        if not self.is_bytes:
            return packed[..., : self.border]
        flat = [
            as_floats(part).reshape(*packed.shape[:-1], leaf.size)
            for leaf, part in zip(self.leaves, self.parts(packed), strict=True)
        ]
        joined: ArrayT = namespace(packed).concatenate(flat, -1)
        return joined

    def action_mask(self, packed: ArrayT) -> ArrayT:
        """Return which actions are legal, [..., A] bool."""
        mask: ArrayT = packed[..., self.border :] != 0
        return mask

    def is_normal(self) -> NumpyArray:
        """Return which numbers of `joined`, [I] bool, are not just zeros and ones."""
        return np.concatenate([np.full(leaf.size, not leaf.is_binary) for leaf in self.leaves])

    def _bytes_of(self, leaf: Leaf) -> int:
        """Return how many items of a packed array hold one number of a part."""
        return 4 if self.is_bytes and leaf.dtype is np.float32 and not leaf.is_binary else 1

    def _write(self, out: NumpyArray, leaf: Leaf, part: NumpyArray) -> None:
        flat = part.reshape(*out.shape[:-1], leaf.size)
        if self._bytes_of(leaf) == 4:
            flat = np.ascontiguousarray(flat, dtype=np.float32).view(np.uint8)
        out[...] = flat

    def _read(self, items: ArrayT, leaf: Leaf) -> ArrayT:
        if not self.is_bytes or leaf.dtype is np.uint8:
            return items
        if leaf.is_binary:
            whole: ArrayT = floats(items)
            return whole
        if isinstance(items, Tensor):
            return items.clone(memory_format=torch.contiguous_format).view(torch.float32)
        return np.array(items, order="C").view(np.float32)

    def _encoded(self, leaf: Leaf, tree: Tree) -> NumpyArray:
        try:
            part = to_numpy(leaf.find(tree))
            array = np.asarray(part)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ShapeError(
                f"`{leaf.name}` is missing in the observations; a tree as {self.space} was "
                f"expected."
            ) from error
        of_one = array.shape[1:]
        is_one_hot = isinstance(leaf.space, Discrete | MultiDiscrete)
        if (
            of_one == leaf.raw_shape
            and array.ndim
            and (array.dtype.kind in "biu" or not is_one_hot)
        ):
            encoded = leaf.encode(array)
            if not is_one_hot or (encoded.sum(axis=1) == math.prod(leaf.raw_shape)).all():
                return encoded
        elif of_one == leaf.shape:
            return array
        raise ShapeError(
            f"`{leaf.name}` has shape {array.shape} and dtype {array.dtype}; any number of "
            f"observations of {leaf.space} was expected, (N, ...)."
        )


def batch_of_one(space: Space[Any], obs: Tree) -> Tree:
    """Return an observation with an axis of length 1 before the axes of each part."""
    if isinstance(space, Dict) and isinstance(obs, Mapping):
        return {key: batch_of_one(space[key], obs[key]) for key in space if key in obs}
    if isinstance(space, Tuple) and isinstance(obs, tuple):
        return tuple(batch_of_one(part, one) for part, one in zip(space, obs, strict=False))
    return np.asarray(to_numpy(obs))[None]


def leaf_spaces(space: Space[Any], keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield the keys and the space of each part of an observation space."""
    if isinstance(space, Dict):
        for key, part in space.spaces.items():
            yield from leaf_spaces(part, (*keys, key))
    elif isinstance(space, Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaf_spaces(part, (*keys, index))
    else:
        yield keys, space


def has_channels_last(shape: tuple[int, ...]) -> bool:
    """Return whether the channels come last.

    Two equal sides are height and width; otherwise the shortest axis is that of the channels. If
    neither decides, they are last, as in most environments of gymnasium and in all of MinAtar.

    Example:
        >>> has_channels_last((84, 84, 3)), has_channels_last((4, 84, 84))
        (True, False)
        >>> has_channels_last((10, 10, 10)), has_channels_last((16, 8, 8))
        (True, False)
    """
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return first == middle
    return first >= min(middle, last)


def as_floats(obs: ArrayT) -> ArrayT:
    """Scale bytes to 0 to 1; return floats unchanged."""
    if isinstance(obs, Tensor):
        if obs.dtype != torch.uint8:
            return obs
        # PyTorch 2.6 cannot write a change in place as ONNX.
        return obs.float() * _PER_BYTE if is_compiling() else obs.float().mul_(_PER_BYTE)
    return obs.astype(np.float32) * np.float32(_PER_BYTE) if obs.dtype == np.uint8 else obs


def vectors(obs: ArrayT) -> ArrayT:
    """Flatten observations, [B, ...] -> [B, I]; B may be 0."""
    return obs if obs.ndim == 2 else obs.reshape(len(obs), math.prod(obs.shape[1:]))


def _rebuilt(space: Space[Any], parts: Iterator[Any]) -> Tree:
    if isinstance(space, Dict):
        return {key: _rebuilt(part, parts) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_rebuilt(part, parts) for part in space.spaces)
    return next(parts)

"""Memory of a replay, laid out for reading transitions at random.

The small fields of a transition are stored together in one record: memory is read in lines of 64
bytes, and a record takes one or two of them instead of one line per field. Fields with long rows
have separate arrays, and images are stored as `Frames`.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ding_lite.errors import CheckpointError, ConfigError, ShapeError, did_you_mean, kind_of
from ding_lite.rl.batch import Array, NumpyArray, Transitions, to_numpy
from ding_lite.rl.host_or_device import placed
from ding_lite.rl.replay.frames import Frames
from ding_lite.rl.replay.outputs import Outputs
from ding_lite.rl.spec import EnvSpec

Layout: TypeAlias = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""The shape and dtype of one row of each field: those of `Transitions`, then a user's own."""

OwnFields: TypeAlias = Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]
"""A user's own fields by name: the shape and the dtype of one row of each."""

FIELDS = tuple(field.name for field in fields(Transitions))
RESERVED = {*FIELDS, "extra", "transitions", "priority", "self"}
"""The names that no own field may have, because `add` uses them otherwise."""
SMALL_BYTES = 256
"""The largest row that is stored in records; for larger ones the second copy takes too long."""
_OBSERVATIONS = ("obs", "next_obs")


class Storage:
    """The transitions of a replay, by slot."""

    def __init__(self, layout: Layout, *, capacity: int, stack: int) -> None:
        self.layout = layout
        self._capacity = capacity
        record_type, wide, has_frames = _parts(layout)
        self._records = np.zeros(capacity, dtype=record_type)
        # Raw bytes are copied faster than numbers one by one; so are whole rows of a field.
        self._bytes = self._records.view(_bytes_type(record_type.itemsize))
        self._columns = [
            (name, *layout[name], _bytes_type(row.itemsize) if row.shape else row, offset)
            for name, (row, offset, *_) in (record_type.fields or {}).items()
        ]
        self._wide = zeros({name: layout[name] for name in wide}, capacity)
        self._frames: Frames | None = None
        if has_frames:
            self._frames = Frames(*layout["obs"], stack=stack, capacity=capacity)
        self._arrays = {name: self._records[name] for name in record_type.names or ()} | self._wide
        names = tuple(layout)
        self._targets = tuple((names.index(name), array) for name, array in self._arrays.items())
        self._outputs = Outputs()

    @staticmethod
    def bytes_for(layout: Layout, *, capacity: int, stack: int) -> int:
        record_type, wide, has_frames = _parts(layout)
        needed = capacity * (record_type.itemsize + bytes_of({n: layout[n] for n in wide}))
        if has_frames:
            needed += Frames.bytes_for(*layout["obs"], stack=stack, capacity=capacity)
        return needed

    def write(self, serial: int, values: tuple[NumpyArray, ...], count: int) -> int:
        """Store transitions in the slots of their numbers, from `serial` on.

        Return the number of the oldest transition that is still complete.
        """
        start = serial % self._capacity
        stop = start + count
        if stop <= self._capacity:
            for index, array in self._targets:
                array[start:stop] = values[index]
        else:
            room = self._capacity - start
            for index, array in self._targets:
                array[start:] = values[index][:room]
                array[: count - room] = values[index][room:]

        oldest = serial + count - self._capacity
        if self._frames is None:
            return oldest
        obs, next_obs = (values[FIELDS.index(name)] for name in _OBSERVATIONS)
        return max(oldest, self._frames.add(serial, obs, next_obs))

    def gather(self, slot_B: npt.NDArray[np.int64]) -> dict[str, NumpyArray]:
        records_B = self._bytes.take(slot_B)
        taken = {}
        for name, shape, dtype, row_type, offset in self._columns:
            column_B = records_B.getfield(row_type, offset).copy()
            taken[name] = column_B.view(dtype).reshape(-1, *shape) if shape else column_B
        for name, array in self._wide.items():
            taken[name] = self._outputs.take(array, slot_B)
        if self._frames is not None:
            taken["obs"], taken["next_obs"] = self._frames.gather(slot_B)
        return taken

    def state_dict(self, used: int) -> dict[str, Any]:
        """Return the state; its arrays are the memory itself, up to the last used slot."""
        return {
            "arrays": {name: array[:used] for name, array in self._arrays.items()},
            "frames": None if self._frames is None else self._frames.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _check_layout(saved_layout(state), self.layout)
        if self._frames is not None:  # first, as it may refuse the state
            self._frames.load_state_dict(state["frames"])
        for name, array in state["arrays"].items():
            self._arrays[name][: len(array)] = array


class DeviceStorage:
    """The transitions of a replay, by slot, in the memory of a device such as a GPU.

    Every field is a separate tensor. Images are stored whole, not frame by frame.
    """

    def __init__(self, layout: Layout, *, capacity: int, device: torch.device) -> None:
        self.layout = layout
        self._capacity = capacity
        self._device = device
        self._tensors = {
            name: torch.zeros(
                (capacity, *shape), dtype=torch.from_numpy(np.zeros(0, dtype)).dtype, device=device
            )
            for name, (shape, dtype) in layout.items()
        }

    @staticmethod
    def bytes_for(layout: Layout, *, capacity: int) -> int:
        return capacity * bytes_of(layout)

    def write(self, serial: int, values: tuple[Array, ...], count: int) -> int:
        start = serial % self._capacity
        before_end = min(count, self._capacity - start)
        for tensor, value in zip(self._tensors.values(), values, strict=True):
            there = placed(value, self._device)
            tensor[start : start + before_end] = there[:before_end]
            tensor[: count - before_end] = there[before_end:]
        return serial + count - self._capacity

    def gather(self, slot_B: npt.NDArray[np.int64]) -> dict[str, torch.Tensor]:
        there_B = placed(slot_B, self._device)
        return {name: tensor.index_select(0, there_B) for name, tensor in self._tensors.items()}

    def state_dict(self, used: int) -> dict[str, Any]:
        """Return copies of the memory up to the last used slot, in the form of a `Storage`."""
        arrays = {name: to_numpy(tensor[:used]) for name, tensor in self._tensors.items()}
        return {"arrays": arrays, "frames": None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned, of this class or of a `Storage` of vectors."""
        _check_layout(saved_layout(state), self.layout)
        for name, array in state["arrays"].items():
            self._tensors[name][: len(array)] = placed(np.asarray(array), self._device)


def _parts(layout: Layout) -> tuple[np.dtype[Any], list[str], bool]:
    """Return the type of records, the names of wide fields, and whether there are frames."""
    has_frames = len(layout["obs"][0]) > 1  # only images are large enough
    names = [n for n in layout if not (has_frames and n in _OBSERVATIONS)]
    wide = [name for name in names if bytes_of({name: layout[name]}) > SMALL_BYTES]
    # The widest numbers come first, so that alignment leaves no gaps between them.
    small = [name for name in names if name not in wide]
    small.sort(key=lambda name: -layout[name][1].itemsize)
    formats = [(name, layout[name][1], layout[name][0]) for name in small]
    return np.dtype(formats, align=True), wide, has_frames


def layout_of_spec(spec: EnvSpec) -> Layout:
    obs = (spec.obs_shape, np.dtype(spec.obs_dtype))
    return {
        "obs": obs,
        "action": (spec.action_shape, np.dtype(spec.action_dtype)),
        "reward": ((), np.dtype(np.float32)),
        "next_obs": obs,
        "terminated": ((), np.dtype(np.bool_)),
        "truncated": ((), np.dtype(np.bool_)),
        "num_steps": ((), np.dtype(np.int32)),
    }


def step_layout(spec: EnvSpec) -> Layout:
    """Return the layout of an env step, which has no next observation."""
    layout = layout_of_spec(spec)
    return {n: layout[n] for n in ("obs", "action", "reward", "terminated", "truncated")}


def bytes_of(layout: Layout) -> int:
    """Return the size of one row of all fields, in bytes."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout.values())


def zeros(layout: Layout, *lead: int) -> dict[str, NumpyArray]:
    """Allocate an array for each field, with the leading axes `lead`."""
    return {name: np.zeros((*lead, *shape), dtype) for name, (shape, dtype) in layout.items()}


def check_shape(
    name: str, array: NumpyArray, expected: tuple[int, ...], holder: str, more: str = ""
) -> None:
    if np.shape(array) != expected:
        raise ShapeError(f"`{name}` has shape {np.shape(array)}; {holder} {expected}{more}.")


def check_kind(name: str, array: NumpyArray, dtype: np.dtype[Any], holder: str) -> None:
    """Raise unless numbers of the array's kind, and its whole numbers, can be stored as `dtype`."""
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ShapeError(
            f"`{name}` is an array of {array.dtype}; {holder} keeps {dtype}, which cannot hold "
            f"that."
        )
    if dtype.kind in "iu" and not np.can_cast(array.dtype, dtype) and array.size:
        low, high, limits = array.min(), array.max(), np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            raise ShapeError(
                f"`{name}` has numbers from {low} to {high}; {holder} keeps {dtype}, which cannot "
                f"hold that. Give the field a wider dtype."
            )


def _shown(state: object) -> str:
    return f"has {sorted(state)}" if isinstance(state, Mapping) else f"is {kind_of(state)}"


def check_keys(state: Mapping[str, Any], expected: Collection[str], what: str) -> None:
    if not isinstance(state, Mapping) or state.keys() != set(expected):
        raise CheckpointError(
            f"This is no state of {what}: it {_shown(state)}; {sorted(expected)} were expected."
        )


def load_rows(arrays: Mapping[str, NumpyArray], saved: Mapping[str, Any], count: int) -> None:
    """Load the first `count` rows of each array; if one does not fit, change nothing."""
    if saved.keys() != arrays.keys():
        raise CheckpointError(
            f"The saved buffer keeps {sorted(saved)}; {sorted(arrays)} was expected. Make one with "
            f"the same `fields` and `state_size`."
        )
    for name, array in arrays.items():
        expected = (min(count, len(array)), *array.shape[1:])
        if saved[name].shape != expected:
            raise CheckpointError(
                f"The saved `{name}` has shape {saved[name].shape}; {expected} was expected. Was "
                f"it saved with other environments, another number of them, or another capacity?"
            )
    for name, array in arrays.items():
        array[:count] = saved[name]


def layout_of_own(fields: OwnFields | None) -> Layout:
    if not isinstance(fields, Mapping | None):
        raise ConfigError(
            f"`fields` is {kind_of(fields)}; a dict of the shape and the dtype of one row of each "
            f"field was expected, such as {{'x': ((), np.float32)}}."
        )
    return {name: _own_field(name, given) for name, given in (fields or {}).items()}


def _own_field(name: object, given: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:  # noqa: ANN401
    if type(name) is not str or not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"`fields` has the name {name!r}; a name as of an argument was expected.")
    if name in RESERVED:
        raise ConfigError(
            f"`fields` has {name!r}, which `add` takes already. Choose another name, such as "
            f"{'own_' + name!r}."
        )
    try:
        shape, dtype = tuple(given[0]), np.dtype(given[1])
        torch.from_numpy(np.zeros(0, dtype))
        fits = len(given) == 2 and all(type(size) is int and size > 0 for size in shape)
    except (TypeError, IndexError, KeyError, ValueError):
        fits = False
    if not fits:
        raise ConfigError(
            f"`fields` says {given!r} of {name!r}; the shape and the dtype of one row were "
            f"expected, sizes above 0 and numbers that torch knows, such as ((), np.float32)."
        )
    return shape, dtype


def take_own(given: Mapping[str, Array], expected: Layout) -> tuple[NumpyArray, ...]:
    for name in given:
        if name not in expected:
            known = f"keeps {sorted(expected)} of yours" if expected else "keeps none of yours"
            raise ConfigError(
                f"{name!r} is no field of this replay, which {known}.{did_you_mean(name, expected)}"
                f" Make it with `fields={{{name!r}: (shape, dtype)}}`, or leave it out."
            )
    missing = [name for name in expected if name not in given]
    if missing:
        raise ConfigError(
            f"The own fields {missing} are missing. Give one row for each transition: "
            f"`add(..., {missing[0]}=array)`."
        )
    for name, value in given.items():
        if not isinstance(value, np.ndarray | torch.Tensor):
            raise ShapeError(f"`{name}` is {kind_of(value)}; an array or a tensor was expected.")
    return tuple(to_numpy(given[name]) for name in expected)


def layout_of_values(values: tuple[NumpyArray, ...]) -> Layout:
    """Return the layout of transitions; float64 is stored as float32."""
    single = {np.dtype(np.float64): np.dtype(np.float32)}
    return {
        name: (value.shape[1:], single.get(value.dtype, value.dtype))
        for name, value in zip(FIELDS, values, strict=False)
    }


def saved_layout(state: Mapping[str, Any]) -> Layout:
    """Return the layout of a state that `Storage.state_dict` returned."""
    layout = {name: (array.shape[1:], array.dtype) for name, array in state["arrays"].items()}
    if state["frames"] is not None:
        layout |= dict.fromkeys(_OBSERVATIONS, Frames.saved_shape_and_type(state["frames"]))
    return {name: layout[name] for name in (*FIELDS, *layout) if name in layout}


def _check_layout(saved: Layout, layout: Layout) -> None:
    if saved != layout:
        names = (*layout, *saved)
        differs = next(name for name in names if saved.get(name) != layout.get(name))
        raise CheckpointError(
            f"The saved `{differs}` is {saved.get(differs)}, this replay keeps "
            f"{layout.get(differs)}. Was it saved with another environment, with other `fields`, "
            f"or, where observations are images, on another kind of device?"
        )


def _bytes_type(count: int) -> np.dtype[np.void]:
    return np.dtype((np.void, count))

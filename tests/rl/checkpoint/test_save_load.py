import ctypes
import gc
import itertools
import os
from collections import deque
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from ding_lite.errors import CheckpointError
from ding_lite.rl import load_checkpoint, save_checkpoint
from ding_lite.rl.checkpoint import save_load
from ding_lite.rl.checkpoint.reading import MAX_DEPTH
from tests.rl.checkpoint.test_reading import body_of, write

plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.integers(min_value=2**63, max_value=2**200)
    | st.text()
)
numbers = arrays.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.uint64, np.bool_]),
    arrays.array_shapes(min_dims=0, min_side=0, max_side=4),
)
keys: st.SearchStrategy[Any] = st.one_of(
    st.text(),
    st.integers(),
    st.booleans(),
    st.none(),
    st.just("$tensor"),
    st.tuples(st.integers(0, 9), st.text(max_size=3)),
)
trees = st.recursive(
    plain | numbers | numbers.filter(lambda a: a.dtype != np.uint64).map(torch.from_numpy),
    lambda child: (
        st.lists(child, max_size=3)
        | st.lists(child, max_size=3).map(tuple)
        | st.dictionaries(keys, child, max_size=3)
    ),
    max_leaves=8,
)


def spelled_out(tree):
    """Return a tree as comparable values, with the types, shapes and bytes of its arrays."""
    if isinstance(tree, dict):
        return type(tree), [(key, spelled_out(value)) for key, value in tree.items()]
    if isinstance(tree, list | tuple):
        return type(tree), [spelled_out(value) for value in tree]
    if isinstance(tree, torch.Tensor | np.ndarray):
        return type(tree), tree.dtype, tree.shape, np.asarray(tree).tobytes()
    return type(tree), tree


def assert_same(found, expected):
    assert spelled_out(found) == spelled_out(expected)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees)
def test_a_loaded_state_equals_the_saved_one(tmp_path, tree):
    save_checkpoint(tmp_path, tree, meta={"env_step": 3})
    checkpoint = load_checkpoint(tmp_path)
    assert_same(checkpoint.state, tree)
    assert checkpoint.meta == {"env_step": 3}


def test_views_of_one_tensor_are_saved_apart_and_half_precision_as_it_is(tmp_path):
    flat = torch.arange(6.0)
    views = {"part": flat[2:4], "turned": flat.view(2, 3).T}
    save_checkpoint(tmp_path, {"all": flat, **views, "half": flat.bfloat16(), "n": np.float32(0.5)})
    state = load_checkpoint(tmp_path).state
    assert state["part"].tolist() == [2.0, 3.0]
    assert state["turned"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert (state["half"].dtype, state["n"].dtype) == (torch.bfloat16, np.float32)


@pytest.mark.parametrize("num_rows", [3, 600_000], ids=["small", "two files more"])
@pytest.mark.parametrize(
    ("failing", "call"),
    [*itertools.product(["new_beside", "replace"], [1, 2]), ("fsync", 1), ("fsync", 3)],
)
def test_the_old_checkpoint_survives_a_failure_at_any_moment(
    tmp_path, monkeypatch, failing, call, num_rows
):
    old, new = np.zeros(num_rows), np.ones(num_rows)
    save_checkpoint(tmp_path, {"x": old}, meta={"which": "old"})
    num_files = len(list(tmp_path.iterdir()))
    owner: Any = {"fsync": os, "replace": Path, "new_beside": save_load}[failing]
    real, calls = getattr(owner, failing), itertools.count(1)

    def fail_once(*args, **kwargs):
        if next(calls) == call:
            raise OSError(28, "No space left on device")
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, failing, fail_once)
        with pytest.raises(CheckpointError, match=r"No space left.* still whole"):
            save_checkpoint(tmp_path, {"x": new}, meta={"which": "new"})

    assert len(list(tmp_path.iterdir())) == num_files
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.meta == {"which": "old"}
    np.testing.assert_array_equal(checkpoint.state["x"], old)
    save_checkpoint(tmp_path, {"x": new}, meta={"which": "next"})
    assert load_checkpoint(tmp_path).meta == {"which": "next"}
    assert len(list(tmp_path.iterdir())) <= num_files


def test_other_files_in_the_directory_are_left_alone(tmp_path):
    names = "notes.tmp", "rows-of-a-table.bin", "tensors-final.safetensors", "tensors-7.safetensors"
    for name in names:
        (tmp_path / name).write_text("of the user")
    killed = tmp_path / ".tensors-00000001.unfinished-0123456789abcdef.tmp"
    killed.touch()
    for number in range(2):
        save_checkpoint(tmp_path, {"x": torch.zeros(3), "number": number})
    assert not killed.exists()
    assert {path.name for path in tmp_path.iterdir()} > {*names}
    assert len([*tmp_path.iterdir()]) == len(names) + 2


def test_every_damaged_byte_is_detected(tmp_path):
    save_checkpoint(tmp_path, {"x": torch.arange(4.0), "n": 12}, meta={"env": "CartPole-v1"})
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for position in range(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 0x04
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError):
                load_checkpoint(tmp_path)
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CheckpointError, match=r"damaged"):
            load_checkpoint(tmp_path)
        path.write_bytes(whole)
    assert load_checkpoint(tmp_path).state["n"] == 12


def large():
    return np.random.default_rng(0).random((700_000, 3), dtype=np.float32)  # 8.4 MB


@pytest.mark.parametrize(
    "change",
    [
        lambda array: array,
        lambda array: array[::2],
        lambda array: array.T,
        lambda array: array.astype(">f8"),
        lambda array: array.reshape(2, -1) > 0.5,
        np.asfortranarray,
    ],
    ids=["plain", "every second row", "turned", "big-endian", "long rows", "column by column"],
)
def test_a_large_array_is_loaded_unchanged(tmp_path, change):
    array = change(large())
    save_checkpoint(tmp_path, {"replay": [array]})
    found = load_checkpoint(tmp_path).state["replay"][0]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_only_changed_parts_of_a_large_array_are_written(tmp_path):
    found, array = [], large().ravel()
    for _ in range(2):
        array[5:10] += 1.0
        save_checkpoint(tmp_path, {"replay": array})
        found.append({(path.name, path.stat().st_ino) for path in tmp_path.glob("rows-*")})
    before, after = found
    assert len(before) == len(after) >= 2
    assert len(before & after) == len(before) - 1
    np.testing.assert_array_equal(load_checkpoint(tmp_path).state["replay"], array)


def test_a_large_array_that_has_changed_on_disk_is_detected(tmp_path):
    save_checkpoint(tmp_path, {"replay": large()})
    file = sorted(tmp_path.glob("rows-*"))[0]
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{file.name} has changed"):
        load_checkpoint(tmp_path)
    file.unlink()
    with pytest.raises(CheckpointError, match=rf"{file.name} is missing"):
        load_checkpoint(tmp_path)


def test_keys_that_are_not_selected_are_not_read(tmp_path):
    save_checkpoint(tmp_path, {"policy": {"x": torch.ones(2)}, "replay": large()}, meta={"n": 1})
    for file in tmp_path.glob("rows-*"):
        file.unlink()
    found = load_checkpoint(tmp_path, only=["policy"])
    assert_same(found.state, {"policy": {"x": torch.ones(2)}})
    assert load_checkpoint(tmp_path, only=()).state == {}
    assert found.meta == {"n": 1}


def test_a_missing_checkpoint_and_another_version_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*nowhere.*manifest.json"):
        load_checkpoint(tmp_path / "nowhere")
    manifest = save_checkpoint(tmp_path, {"x": torch.ones(1)})
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*safetensors is missing"):
        load_checkpoint(tmp_path)
    text = manifest.read_text().replace('"format_version":2', '"format_version":7')
    manifest.write_text(text)
    with pytest.raises(CheckpointError, match=r"has format 7; .* reads format 2"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"policy": {"fn": print}}, "`state.policy.fn` is a builtin_function_or_method"),
        ({"names": np.array(["a"])}, "`state.names` is an array of <U1"),
        ({"x": {b"k": 2}}, "`state.x` has the key b'k'; texts, numbers"),
        ({"x": torch.zeros(2, device="meta")}, "`state.x` is a tensor of torch.float32 without"),
        ({"x": {(print,)}}, "`state.x` has the key"),
        ({"x": torch.eye(2).to_sparse()}, "`state.x` is a tensor of torch.float32 and torch.spar"),
        ({"x": "\ud800"}, "UTF-8 cannot hold"),
        ({"\ud800": 1}, "UTF-8 cannot hold"),
    ],
)
def test_a_value_that_cannot_be_saved_is_named(tmp_path, state, message):
    with pytest.raises(CheckpointError, match=message):
        save_checkpoint(tmp_path, state)
    with pytest.raises(CheckpointError, match=message.replace("state", "meta")):
        save_checkpoint(tmp_path, {}, meta=state)
    assert list(tmp_path.iterdir()) == []


class Stage(str, Enum):  # noqa: UP042 - its `str` is not its value
    WARM_UP = "warm-up"


ODD_VALUES = [
    *({1, (2, "a")}, frozenset({"x"}), set(), b"ab\x00\xff", b"", 1.5 - 2j, complex("inf")),
    *(torch.device("cpu"), torch.device("cuda:1"), torch.float32, torch.bfloat16),
    *(deque([1, {"x": 2}]), deque([1, 2], maxlen=3), np.complex64(1 + 2j), [{1: {2}}]),
    *(-(1 << 5_000), [Stage.WARM_UP], {Stage.WARM_UP: 1}),
]


@pytest.mark.parametrize("value", ODD_VALUES, ids=lambda value: type(value).__name__)
def test_values_beside_numbers_and_texts_come_back_equal(tmp_path: Path, value: object) -> None:
    save_checkpoint(tmp_path, {"x": value}, meta={"y": value})
    found = load_checkpoint(tmp_path)
    assert found.state == {"x": value}
    assert found.meta == {"y": value}
    assert type(found.state["x"]) is type(value) or isinstance(value, np.generic)
    if isinstance(value, deque):
        assert found.state["x"].maxlen == value.maxlen


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_tensors_and_arrays_come_back_as_they_were(tmp_path, dtype):
    tensor = torch.randn(3, 2, dtype=dtype)
    state = {
        **{"tensor": tensor, "conjugate": tensor.conj().t(), "number": tensor[0, 0]},
        **{"array": tensor.numpy(), "large": np.full((40_000, 4), 1 - 2j), "empty": tensor[:0]},
    }
    save_checkpoint(tmp_path, state)
    found = load_checkpoint(tmp_path).state
    assert {key: type(value) for key, value in found.items()} == {
        key: type(value) for key, value in state.items()
    }
    for key, value in state.items():
        expected = value.numpy(force=True) if isinstance(value, torch.Tensor) else value
        np.testing.assert_array_equal(np.asarray(found[key]), expected, strict=True)


def test_keys_of_numpy_come_back_as_equal_numbers(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {np.int64(3): 1, np.bool_(True): 2, np.str_("a"): 3})
    assert load_checkpoint(tmp_path).state == {3: 1, True: 2, "a": 3}


def test_keys_that_join_to_the_same_path_are_kept_apart(tmp_path: Path) -> None:
    state = {"a": {"b": torch.zeros(2)}, "a.b": torch.ones(2)}
    save_checkpoint(tmp_path, state)
    assert_same(load_checkpoint(tmp_path).state, state)


def test_the_states_of_pytorch_and_numpy_come_back_as_they_were(tmp_path: Path) -> None:
    parameters = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(()))]
    adam = torch.optim.Adam(parameters, amsgrad=True)
    steps = torch.optim.lr_scheduler.MultiStepLR(adam, [3, 4])
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    adam.step()
    state = {
        "adam": adam.state_dict(),
        "plateau": torch.optim.lr_scheduler.ReduceLROnPlateau(adam).state_dict(),
        "steps": steps.state_dict(),
        "rng": np.random.default_rng(3).bit_generator.state,
        "scalar": np.int64(3),
    }
    save_checkpoint(tmp_path, state)
    found = load_checkpoint(tmp_path).state
    assert_same(found["adam"], state["adam"])
    assert list(found["adam"]["state"]) == [0, 1]
    assert found["plateau"]["best"] == float("inf")
    assert found["rng"] == state["rng"]
    assert isinstance(found["scalar"], np.int64)
    adam.load_state_dict(found["adam"])
    steps.load_state_dict(found["steps"])
    assert 3 in steps.milestones


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_the_deepest_tree_that_is_saved_is_loaded(tmp_path: Path, dtype: torch.dtype) -> None:
    def nested(depth: int) -> Any:
        tree: Any = torch.ones(2, dtype=dtype)
        for level in range(depth):
            tree = {"a": tree} if level % 2 else [tree]
        return tree

    save_checkpoint(tmp_path, nested(MAX_DEPTH))
    assert_same(load_checkpoint(tmp_path).state, nested(MAX_DEPTH))
    endless: list[Any] = []
    endless.append(endless)
    for tree in (nested(MAX_DEPTH + 1), endless):
        with pytest.raises(CheckpointError, match="100 dicts, lists and tuples"):
            save_checkpoint(tmp_path, tree)


@pytest.mark.parametrize("kind", [set, frozenset, dict.fromkeys], ids=lambda kind: kind.__name__)
def test_sets_and_dicts_of_many_tuples_are_neither_saved_nor_loaded(tmp_path, kind, monkeypatch):
    for module in ("reading", "save_load"):
        monkeypatch.setattr(f"ding_lite.rl.checkpoint.{module}.MAX_COMPOSED", 200)
    pairs = [(n, n) for n in range(200)]
    few = kind([*range(2_000), *pairs])
    save_checkpoint(tmp_path, {"x": few})
    assert load_checkpoint(tmp_path).state["x"] == few
    with pytest.raises(CheckpointError, match=r"`state\.x` has 201 tuples in it or for keys"):
        save_checkpoint(tmp_path, {"x": kind([*pairs, (0, 1)])})

    body = body_of(tmp_path)
    [(_, members)] = body["state"]["x"].items()
    members.append([{"$tuple": [0, 1]}, None] if kind == dict.fromkeys else {"$tuple": [0, 1]})
    write(tmp_path, body)
    with pytest.raises(CheckpointError, match="more than 200 tuples in a set or for keys"):
        load_checkpoint(tmp_path)


def test_integers_have_few_enough_digits_to_be_written(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"x": -(2**13_999)})
    assert load_checkpoint(tmp_path).state["x"] == -(2**13_999)
    with pytest.raises(CheckpointError, match=r"an integer of 14,001 bits"):
        save_checkpoint(tmp_path, {"x": 2**14_000})
    write(tmp_path, {**body_of(tmp_path), "state": {"x": {"$int": "0x" + "f" * 3_501}}})
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(tmp_path)


def test_a_save_writes_to_no_file_that_a_link_leads_to(tmp_path: Path) -> None:
    own = tmp_path / "own"
    for name in ("manifest.tmp", "tensors-00000001.tmp"):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / name).symlink_to(own)
    save_checkpoint(tmp_path / "run", {"a": torch.ones(2)})
    assert not own.exists()
    assert len(list((tmp_path / "run").iterdir())) == 4


def test_a_link_to_a_file_elsewhere_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    save_checkpoint(folder, {"x": torch.ones(2)})
    (tensors,) = folder.glob("tensors-*")
    tensors.rename(tmp_path / "elsewhere")
    tensors.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is a symbolic link"):
        load_checkpoint(folder)


def test_an_array_larger_than_memory_is_refused_before_allocation(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, {"x": np.zeros(1 << 20), "y": np.zeros(1 << 20)})
    monkeypatch.setattr("ding_lite.rl.checkpoint.reading.available_bytes", lambda: 3 << 22)
    assert load_checkpoint(tmp_path, only=["x"]).state["x"].shape == (1 << 20,)
    with pytest.raises(CheckpointError, match="8,388,608 bytes, and there is memory for 4,194,304"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("state", "enough", "too_little", "told"),
    [
        (
            {"a": np.zeros(3 << 19), "b": np.zeros(1 << 19)},  # of one file
            *(1 << 30, 20 << 20, "4,194,304 bytes, and there is memory for 2,097,152"),
        ),
        ({"x": torch.zeros(1000)}, 13_000, 12_000, "at most 4,000 are read"),
    ],
    ids=["half for a file that is named twice", "a third for tensors"],
)
def test_memory_is_left_for_what_is_made_of_what_is_read(
    tmp_path: Path, monkeypatch: Any, state: Any, enough: int, too_little: int, told: str
) -> None:
    save_checkpoint(tmp_path, state)
    monkeypatch.setattr("ding_lite.rl.checkpoint.reading.available_bytes", lambda: enough)
    assert load_checkpoint(tmp_path).state.keys() == state.keys()
    monkeypatch.setattr("ding_lite.rl.checkpoint.reading.available_bytes", lambda: too_little)
    with pytest.raises(CheckpointError, match=told):
        load_checkpoint(tmp_path)


def test_arrays_that_grow_from_save_to_save_leave_nothing_in_memory(tmp_path: Path) -> None:
    def num_array_types() -> int:
        gc.collect()
        return sum(isinstance(kept, type(ctypes.c_ubyte * 1)) for kept in gc.get_objects())

    save_checkpoint(tmp_path, {"returns": np.zeros(2_000)})
    before = num_array_types()
    for size in range(2_001, 2_009):
        save_checkpoint(tmp_path, {"returns": np.zeros(size), "flags": torch.ones(size) > 0})
    assert num_array_types() == before

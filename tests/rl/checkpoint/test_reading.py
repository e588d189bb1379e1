"""Broken and hostile checkpoints are refused."""

import json
import os
import random
import struct
import tracemalloc
import zlib
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite.errors import CheckpointError
from ding_lite.io.dtypes import DTYPES
from ding_lite.rl.checkpoint.save_load import MANIFEST, load_checkpoint, save_checkpoint
from tests.fuzz.mutation import NASTY, as_json, changed

NUM_MUTANTS = int(os.environ.get("FUZZ_MUTANTS", "40000")) // 200
MIB = 2**20
ODD: list[Any] = [
    *({"$complex": [1.0, "a"]}, {"$deque": [-1, []]}, {"$set": [{}]}, {"$device": "a:b"}),
    *({"$bytes": "0"}, {"$dtype": "torch.load"}, {"$complex": {"$tensor": "state.a"}}),
    {"$rows": {"dtype": "|O8"}},
]


def write(folder: Path, body: Any) -> None:
    """Write a manifest with a valid checksum."""
    put_manifest(folder, as_json(body))


def put_manifest(folder: Path, body: bytes) -> None:
    whole = b'{"format_version":2,"body_crc32":%d,"body":%s}' % (zlib.crc32(body), body)
    (folder / MANIFEST).write_bytes(whole)


def test_a_manifest_that_would_fill_the_memory_is_refused(saved, monkeypatch):
    write(saved, {**body_of(saved), "state": [[]] * 100_000})
    monkeypatch.setattr("ding_lite.io.memory.available_bytes", lambda: 40 * MIB)
    assert len(load_checkpoint(saved).state) == 100_000
    monkeypatch.setattr("ding_lite.io.memory.available_bytes", lambda: 10 * MIB)
    with pytest.raises(CheckpointError, match="at most 218,453 are read"):
        load_checkpoint(saved)


def body_of(folder: Path) -> Any:
    return json.loads((folder / MANIFEST).read_bytes())["body"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    state = {
        "a": torch.arange(6.0),
        "b": [np.arange(3), (True, "x", None)],
        "large": np.arange(140_000),
        "flags": np.zeros(MIB, bool),
        "odd": [{1, "a"}, b"ab", deque([1], 3), 1j, torch.device("cpu"), torch.int8],
        "complex": torch.ones(2, dtype=torch.complex128),
    }
    save_checkpoint(tmp_path, state, meta={"env_step": 5})
    return tmp_path


@pytest.mark.parametrize("value", ODD, ids=str)
def test_a_value_that_cannot_be_is_refused(saved: Path, value: Any) -> None:
    write(saved, {**body_of(saved), "state": {"x": value}})
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(saved)


def test_a_file_of_tensors_without_a_header_is_refused(saved: Path) -> None:
    body, content = body_of(saved), b"\xff" * 64
    (saved / body["tensors_file"]).write_bytes(content)
    write(saved, body | {"tensors_crc32": zlib.crc32(content)})
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(saved)


def test_a_mutated_manifest_is_read_or_refused(saved: Path) -> None:
    body, refused = body_of(saved), 0
    tracemalloc.start()
    try:
        for seed in range(NUM_MUTANTS):
            write(saved, changed(random.Random(seed), body, [*NASTY, *ODD], ["$complex", "$set"]))
            try:
                load_checkpoint(saved)
            except CheckpointError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error
        assert tracemalloc.get_traced_memory()[1] < 40 * MIB
    finally:
        tracemalloc.stop()
    assert NUM_MUTANTS // 4 < refused < NUM_MUTANTS


def test_a_dtype_that_is_not_of_numbers_is_refused_before_numpy_sees_it(saved: Path) -> None:
    codes = [
        *("|O8", "|O", "O", "object", "<M8[s]", "<m8[ns]", "|V8", "<U2", "|S8", "<c8", "<f16"),
        *("f8,i8", "(2,)<i4", "i8", "<i8 ", "=i8", "int64", "", "<", "<b1", "<i3", "<f3"),
    ]
    body = body_of(saved)
    child = os.fork()  # a process that may crash
    if not child:
        for number, code in enumerate(codes, start=1):
            body["state"]["large"]["$rows"]["dtype"] = code
            write(saved, body)
            try:
                load_checkpoint(saved)
            except CheckpointError:
                continue
            except BaseException:  # noqa: BLE001 - the child must not come back
                pass
            os._exit(number)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "crashed, or the code of this number was not refused"


def test_dtypes_that_can_be_saved_are_those_of_the_list(tmp_path: Path) -> None:
    for dtype in DTYPES.values():
        for count in (3, MIB):
            array = np.ones(count, dtype)
            save_checkpoint(tmp_path, {"x": array})
            assert load_checkpoint(tmp_path).state["x"].dtype == dtype
    for odd in (np.ones(3, "M8[s]"), np.ones(3, object), np.ones(MIB, np.longdouble)):
        with pytest.raises(CheckpointError):
            save_checkpoint(tmp_path, {"x": odd})


@pytest.mark.parametrize("name", ["../rows.bin", "/etc/passwd", "rows-1.bin", ".", "", MANIFEST])
def test_a_manifest_names_no_files_elsewhere(saved: Path, name: str) -> None:
    body = body_of(saved)
    rows = {**body["state"]["large"]["$rows"], "files": [name]}
    for wrong in ({"tensors_file": name}, {"state": {"large": {"$rows": rows}}}):
        write(saved, body | wrong)
        with pytest.raises(CheckpointError, match="damaged"):
            load_checkpoint(saved)


@pytest.mark.parametrize("kind", ["pipe", "directory", "device", "loop"])
@pytest.mark.parametrize("which", ["manifest", "tensors", "rows"])
def test_a_path_that_is_no_file_is_refused(saved: Path, kind: str, which: str) -> None:
    [file] = [*saved.glob(f"{which}*")][:1]
    file.unlink()
    match kind:
        case "pipe":
            os.mkfifo(file)
        case "directory":
            file.mkdir()
        case _:
            file.symlink_to("/dev/zero" if kind == "device" else file.name)
    with pytest.raises(CheckpointError):
        load_checkpoint(saved)


def test_a_deep_manifest_is_refused(saved: Path) -> None:
    (saved / MANIFEST).write_bytes(b"[" * 200_000)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(saved)
    deep = b"[" * 50_000 + b"]" * 50_000
    put_manifest(saved, b'{"state":%s,"meta":{},"tensors_file":"","tensors_crc32":0}' % deep)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(saved)


def test_a_bool_array_of_other_bytes_is_refused(saved: Path) -> None:
    body = body_of(saved)
    body["state"]["large"]["$rows"] |= {"dtype": "|b1", "shape": [8 * 140_000]}
    write(saved, body)
    with pytest.raises(CheckpointError, match="bytes beside 0 and 1"):
        load_checkpoint(saved)


@pytest.mark.parametrize("dtype", ["I64", "BF16", "BOOL"])
def test_a_tensor_that_is_no_array_is_refused_where_an_array_was_saved(tmp_path, dtype):
    save_checkpoint(tmp_path, {"a": np.arange(3)})
    body = body_of(tmp_path)
    shape = {"I64": [1] * 70 + [3], "BF16": [12], "BOOL": [1] * 70 + [24]}[dtype]
    head = json.dumps({"state.a": {"dtype": dtype, "shape": shape, "data_offsets": [0, 24]}})
    content = struct.pack("<Q", len(head)) + head.encode() + bytes(24)
    (tmp_path / body["tensors_file"]).write_bytes(content)
    write(tmp_path, body | {"tensors_crc32": zlib.crc32(content)})
    with pytest.raises(CheckpointError, match=r"`state\.a` is no array"):
        load_checkpoint(tmp_path)

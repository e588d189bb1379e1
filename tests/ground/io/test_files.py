"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ding_lite.io.files import by_number, replacing


def test_a_pipe_or_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with replacing(pipe) as place:
        assert place == pipe
    assert pipe.is_fifo()
    file = tmp_path / "file.txt"
    for text in ("new", "newer"):
        with replacing(file) as place:
            place.write_text(text)
            assert place != file
        assert file.read_text() == text
    assert sorted(tmp_path.iterdir()) == [file, pipe]


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path: Path) -> None:
    file = tmp_path / "none" / "file.txt"
    with pytest.raises(FileNotFoundError) as caught, replacing(file) as place:
        place.write_text("")
    assert caught.value.filename == str(file)


def test_numbers_in_names_are_compared_as_numbers() -> None:
    ordered = ["runs/1", "runs/2", "runs/2b3", "runs/2b20", "runs/10", "runs/x", "runs-2/1"]
    assert sorted(set(ordered), key=by_number) == ordered
    assert sorted(["0" * 9, "9" * 9999, "01", "1"], key=by_number) == [
        "0" * 9,
        "01",
        "1",
        "9" * 9999,
    ]

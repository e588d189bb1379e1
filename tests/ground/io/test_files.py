"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ding_lite.io.files import by_number, new_beside, replacing, write_private


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


def test_a_file_that_a_link_leads_to_is_never_written(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (".report.unfinished.html", ".report.html.unfinished.html", "report.html"):
        (folder / name).symlink_to(own)
    with replacing(folder / "report.html") as place:
        assert place.is_file()
        assert not place.is_symlink()
        assert place.stat().st_mode & 0o777 == 0o666 & ~_umask()
        place.write_text("new")
    assert own.read_text() == "mine"
    assert not (folder / "report.html").is_symlink()
    assert (folder / "report.html").read_text() == "new"


def test_a_new_file_beside_another_has_a_name_that_was_free(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "same")
    file = tmp_path / f"{'x' * 230}.html"
    first, handle = new_beside(file)
    os.close(handle)
    assert first.name == f".{'x' * 40}.unfinished-same.html"
    with pytest.raises(FileExistsError) as caught:
        new_beside(file)
    assert caught.value.filename == str(file)
    first.unlink()
    first.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        write_private(file, b"")
    assert not (tmp_path / "elsewhere").exists()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_numbers_in_names_are_compared_as_numbers() -> None:
    ordered = ["runs/1", "runs/2", "runs/2b3", "runs/2b20", "runs/10", "runs/x", "runs-2/1"]
    assert sorted(set(ordered), key=by_number) == ordered
    zeros, nines = "0" * 9, "9" * 9999
    assert sorted([zeros, nines, "01", "1"], key=by_number) == [zeros, "01", "1", nines]

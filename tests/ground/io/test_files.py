"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

from ding_lite.io.files import replacing


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

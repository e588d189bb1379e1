"""Version 4 of the protocol equals golden/v4 bit by bit, in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest

from ding_lite.parallel.wire.messages import VERSION, Envelope, Kind
from tests.parallel.golden_frames import FOLDER, MESSAGES, read_frames, read_message, write_frames
from tests.parallel.wire.test_codec import same


def test_every_kind_of_message_has_a_golden_file() -> None:
    assert FOLDER.name == f"v{VERSION}"
    assert {path.stem for path in FOLDER.iterdir()} == set(MESSAGES)
    assert {make().kind for make, _ in MESSAGES.values()} == set(Kind)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_encoded_as_its_golden_bytes(name: str) -> None:
    make, _ = MESSAGES[name]
    frames = [bytes(frame) for frame in make().frames()]
    assert write_frames(frames) == (FOLDER / f"{name}.hex").read_text()


@pytest.mark.parametrize("name", MESSAGES)
def test_golden_bytes_are_decoded_as_the_message(name: str) -> None:
    make, values = MESSAGES[name]
    frames = read_frames(FOLDER / f"{name}.hex")
    assert Envelope.from_frames(frames) == make()
    assert same(read_message(frames), values())


def test_the_worked_example_of_the_docs_is_a_golden_message() -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    for line in (FOLDER / "event_with_array.hex").read_text().splitlines():
        assert f"# {line}\n" in page

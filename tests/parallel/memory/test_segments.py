"""Segments: no reader gets a torn value, whichever process is fast, slow or killed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ding_lite.errors import CodecError
from ding_lite.parallel.memory.segments import (
    DIRECTORY,
    MIN_SLOTS,
    Overtaken,
    Published,
    SegmentReader,
    domain,
    remove_left_over,
    slot_bytes_of,
)
from ding_lite.parallel.wire.codec import Encoded, decode, encode
from tests.parallel.memory.processes import (
    fresh,
    get_stuck,
    line_of,
    number_of,
    process,
    read,
    read_newest,
    reader,
    segment,
    segments,
    value,
    write,
)

pytestmark = pytest.mark.skipif(not domain(), reason="no memory to share on this platform")


class TestOneSegment:
    def test_a_value_is_read_as_it_was_written(self) -> None:
        tree = {"w": np.arange(9_000.0), "few": np.arange(3), "text": "t" * 500, "none": None}
        encoded = encode(tree, borrow=True)
        with segment(slot_bytes=slot_bytes_of(encoded)) as one, reader(one.name) as other:
            one.write(encoded)
            read = decode(*other.read(fresh, 1))
        np.testing.assert_array_equal(read.pop("w"), tree.pop("w"))
        np.testing.assert_array_equal(read.pop("few"), tree.pop("few"))
        assert read == tree

    def test_a_value_needs_no_buffers(self) -> None:
        with segment() as one, reader(one.name) as other:
            one.write(encode(["text", 1]))
            assert decode(*other.read(fresh, 1)) == ["text", 1]

    def test_a_value_may_fill_its_slot_to_the_last_byte(self) -> None:
        payload = memoryview(os.urandom(4 * 4096 - 64))
        filling = Encoded(b"meta", [payload])
        assert slot_bytes_of(filling) == 4 * 4096
        with segment(slot_bytes=4 * 4096) as one, reader(one.name) as other:
            one.write(filling)
            assert other.read(fresh, 1) == (b"meta", [payload])

    def test_a_version_is_read_from_its_publication_until_it_is_overwritten(self) -> None:
        with segment() as one, reader(one.name) as other:
            first = one.write(value(1))
            one.write(value(2))
            assert [number_of(other.read(fresh, version)) for version in (1, 2)] == [1, 2]
            del first
            for number in range(3, 9):
                one.write(value(number))
            for gone_or_to_come in (1, 9):
                with pytest.raises(Overtaken, match=f"not hold version {gone_or_to_come}"):
                    other.read(fresh, gone_or_to_come)

    def test_the_file_is_private_and_goes_with_its_writer(self) -> None:
        with segment() as one:
            status = (DIRECTORY / one.name).stat()
            assert (status.st_mode & 0o777, status.st_uid) == (0o600, os.getuid())
        assert one.name not in segments()
        with pytest.raises(Overtaken, match="is gone"):
            SegmentReader(one.name)

    def test_a_referenced_value_is_readable_after_close(self) -> None:
        with segment() as one:
            published = one.write(value(5))
        assert published is not None
        assert number_of((published.encoded.meta, published.encoded.buffers)) == 5

    @given(
        st.lists(
            st.one_of(
                st.just("write"),
                st.tuples(st.just("drop"), st.integers(0, 9)),
                st.tuples(st.just("read"), st.integers(0, 9)),
            ),
            max_size=60,
        )
    )
    def test_a_referenced_value_is_never_overwritten(self, steps) -> None:
        """And memory grows with what is referred to, not with what is written."""
        held: list[tuple[int, Published]] = []
        most = 0
        with segment(num_slots=8) as one, reader(one.name) as other:
            for number, step in enumerate(steps, start=1):
                if step == "write":
                    published = one.write(value(number, 4_000))
                    if published is None:
                        assert len(held) >= 7
                        continue
                    held.append((number, published))
                    assert read_newest(other) == number
                elif step[0] == "drop" and held:
                    del held[int(step[1]) % len(held)]
                elif held:
                    number, published = held[int(step[1]) % len(held)]
                    assert number_of(other.read(fresh, published.announcement.version)) == number
                most = max(most, len(held))
            assert one.num_used_slots <= max(MIN_SLOTS, most + 2)
            published = None
            held.clear()
            assert one.is_idle

    @pytest.mark.parametrize(
        ("writes", "fails", "error"),
        [(MIN_SLOTS, False, Overtaken), (MIN_SLOTS, True, Overtaken), (0, True, CodecError)],
    )
    def test_a_copy_that_the_writer_overtakes_is_thrown_away(self, writes, fails, error) -> None:
        """So is the error of what no longer was a value."""

        def allocate(nbytes: int) -> memoryview:
            for _ in range(writes):
                one.write(value(2))
            if fails:
                raise CodecError("read from two values")
            return fresh(nbytes)

        with segment() as one, reader(one.name) as other:
            one.write(value(1))
            with pytest.raises(error):
                other.read(allocate, 1)


class TestMistrust:
    @pytest.mark.parametrize("name", ["", "../etc/passwd", "ding_lite-../x", "other", "ding_lite-"])
    def test_a_segment_with_a_foreign_name_is_refused(self, name: str) -> None:
        with pytest.raises(CodecError, match="impossible name"):
            SegmentReader(name)

    @pytest.mark.parametrize("mode", [0o644, 0o660, 0o400])
    def test_a_file_of_another_mode_is_refused(self, mode: int) -> None:
        with segment() as one:
            (DIRECTORY / one.name).chmod(mode)
            with pytest.raises(CodecError, match="cannot be read"):
                SegmentReader(one.name)

    def test_a_link_is_refused(self) -> None:
        with segment() as one:
            link = DIRECTORY / f"{one.name}-link"
            link.symlink_to(DIRECTORY / one.name)
            try:
                with pytest.raises(CodecError, match="cannot be read"):
                    SegmentReader(link.name)
            finally:
                link.unlink()

    @pytest.mark.parametrize(
        "content", [b"", b"x" * 100, b"x" * 8192, b"\0" * 8192, b"\xff" * 8192]
    )
    def test_a_file_that_is_no_segment_is_refused(self, content: bytes) -> None:
        path = DIRECTORY / f"ding_lite-test-{os.getpid()}-no-segment"  # by its owner
        path.touch(0o600)
        try:
            path.write_bytes(content)
            with pytest.raises(CodecError, match=r"no segment|has only"):
                SegmentReader(path.name)
        finally:
            path.unlink()

    @given(st.integers(0, 8 * 64 + 3000), st.binary(min_size=1, max_size=16))
    def test_whatever_stands_in_a_slot_is_a_value_or_refused(self, offset, noise) -> None:
        """Nothing is allocated that is larger than the slot."""

        def allocate(nbytes: int) -> memoryview:
            assert nbytes <= one.slot_bytes
            return fresh(nbytes)

        with segment() as one, reader(one.name) as other:
            one.write(value(1))
            with (DIRECTORY / one.name).open("r+b") as file:
                file.seek(64 + offset if offset < 192 else 4096 + offset - 192)
                file.write(noise)
            with suppress(CodecError, Overtaken):
                decode(*other.read(allocate, 1))


class TestProcesses:
    def test_two_readers_of_a_writer_at_full_speed_see_no_torn_value(self) -> None:
        with process(write, 200_000, MIN_SLOTS) as writer:
            name = line_of(writer)
            with process(read, name, 20) as one, process(read, name, 20) as two:
                newest = [int(line_of(child)) for child in (one, two)]
                assert [child.wait() for child in (one, two)] == [0, 0]
            assert min(newest) > 1
            writer.communicate("")
            assert writer.returncode == 0
        assert name not in segments()

    def test_a_writer_that_is_killed_in_mid_copy_leaves_its_last_value_whole(self) -> None:
        num_versions = 5
        with process(get_stuck, 500_000, num_versions) as writer:
            name = line_of(writer)
            with reader(name) as other:
                assert read_newest(other) == num_versions
                writer.kill()
                writer.wait()
                assert read_newest(other) == num_versions
                assert number_of(other.read(fresh, num_versions)) == num_versions
                remove_left_over([name])
                assert name not in segments()
                assert read_newest(other) == num_versions
        assert name not in segments()

    def test_a_writer_that_is_killed_anywhere_leaves_its_last_value_whole(self) -> None:
        for _ in range(2):
            with process(write, 200_000, 3) as writer:
                name = line_of(writer)
                with reader(name) as other:
                    before = max(read_newest(other) for _ in range(5))
                    writer.kill()
                    writer.wait()
                    last = read_newest(other)
                    assert last >= before
                    assert last == read_newest(other)
            remove_left_over([name])

    def test_killing_a_reader_does_not_affect_others(self) -> None:
        with process(write, 200_000, 3) as writer:
            name = line_of(writer)
            with process(read, name, 10**9) as victim, reader(name) as other:
                before = read_newest(other)
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                while read_newest(other) <= before:
                    pass
            writer.communicate("")
            assert writer.returncode == 0

    def test_segments_of_crashed_writers_are_removed_and_others_stay(self) -> None:
        with process(get_stuck, 50_000, 1) as dead, process(get_stuck, 50_000, 1) as alive:
            names = line_of(dead), line_of(alive)
            assert set(names) <= segments()
            dead.kill()
            dead.wait()
            remove_left_over()
            assert names[0] not in segments()
            assert names[1] in segments()
            alive.kill()
            alive.wait()
            remove_left_over(names)
            assert names[1] not in segments()

    def test_a_file_that_is_not_private_is_neither_read_nor_removed(self) -> None:
        path = DIRECTORY / "ding_lite-test-public"
        path.touch()
        path.chmod(0o644)
        try:
            remove_left_over([path.name])
            assert path.exists()
        finally:
            path.unlink()

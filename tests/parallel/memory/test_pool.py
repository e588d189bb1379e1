"""Memory that is used again: never while it is referred to, and not for ever."""

from __future__ import annotations

import mmap
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from ding_lite.parallel.memory.pool import ALIGNMENT, Pool, places


def test_memory_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    pool = Pool()
    array = np.frombuffer(pool.allocate(1_000)[100:200], np.uint8)
    tensor = torch.from_numpy(array)[3:5]
    address = tensor.data_ptr()
    del array
    assert len(pool.free) == 0
    del tensor
    assert len(pool.free) == 1
    again = np.frombuffer(pool.allocate(990), np.uint8)
    assert again.ctypes.data == address - 103
    assert len(pool.free) == 0


def test_memory_of_another_size_is_not_used() -> None:
    pool = Pool()
    pool.allocate(1_000).release()
    large = pool.allocate(100_000)
    assert (large.nbytes, len(pool.free)) == (100_000, 1)
    large.release()
    small = pool.allocate(1_000)
    assert (small.nbytes, len(pool.free)) == (1_000, 1)


def test_blocks_begin_at_a_cache_line_and_few_wait_for_their_next_use() -> None:
    pool = Pool()
    blocks = [np.frombuffer(pool.allocate(size), np.uint8) for size in (1, 65, 1_000)]
    assert [block.ctypes.data % 64 for block in blocks] == [0, 0, 0]
    del blocks
    assert len(pool.free) == 2


@given(sizes=st.lists(st.integers(0, 300), max_size=9))
def test_places_are_aligned_and_do_not_overlap(sizes: list[int]) -> None:
    starts, end = places(sizes)
    assert all(start % ALIGNMENT == 0 for start in starts)
    nexts = [*starts[1:], end][: len(starts)]
    for start, size, following in zip(starts, sizes, nexts, strict=True):
        assert start + size <= following < start + size + ALIGNMENT


FREED_AND_TAKEN_AGAIN = """
import resource, sys
from ding_lite.parallel.memory.pool import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [b"x" * 2**20 for _ in range(30)]
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if "keep" in sys.argv:
    keep_freed_memory()
print(faults(), faults(), faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what glibc does with freed memory")
def test_freed_memory_is_kept_for_the_next_message() -> None:
    command = [sys.executable, "-c", FREED_AND_TAKEN_AGAIN, "keep"]
    message = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    _, *faults = map(int, message.split())
    assert max(faults) < 30 * 2**20 // mmap.PAGESIZE // 10  # without it all of them, each time

"""The checks around every test find leaks and hanging tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

UNCLEAN = """
import os, random, subprocess, sys, threading
from multiprocessing import shared_memory

import numpy as np
import pytest

kept, left, drawn = [], [], []

def test_leaves_a_thread():
    stop = threading.Event()
    threading.Thread(target=stop.wait, name="ding_lite-worker", daemon=True).start()

def test_leaves_a_descriptor():
    kept.append(open(os.devnull))

def test_leaves_a_child():
    kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

def test_leaves_a_segment():
    with open("/dev/shm/ding_lite-test-%d" % os.getpid(), "w"):
        pass

def test_leaves_a_segment_of_an_ended_process():
    left.append(orphan())

def test_starts_beside_a_segment_of_an_ended_process():
    pass

def test_sees_an_orphan_that_is_removed_soon():
    threading.Timer(0.5, os.remove, [orphan()]).start()

def orphan():
    make = "import os; p = '/dev/shm/ding_lite-test-%d' % os.getpid(); open(p, 'w'); print(p)"
    return subprocess.check_output([sys.executable, "-c", make], text=True).strip()

@pytest.mark.deadline(0.2)
def test_hangs():
    threading.Event().wait()

def test_is_clean():
    with open(os.devnull):
        pass
    thread = threading.Thread(target=int, name="ding_lite-worker")
    thread.start()
    thread.join()

@pytest.mark.parametrize("turn", [0, 1])
def test_draws_the_same(turn):
    drawn.append((random.random(), np.random.random()))
    assert drawn[0] == drawn[-1]

def test_sees_no_settings_of_the_shell():
    assert not [name for name in os.environ if name.startswith("DING_LITE_")]

@pytest.fixture(scope="session", autouse=True)
def tidy():
    yield
    for item in kept:
        item.close() if hasattr(item, "close") else (item.kill(), item.communicate())
    os.remove("/dev/shm/ding_lite-test-%d" % os.getpid())
    os.remove(*left)
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run the unclean tests under the conftest of this folder."""
    folder = tmp_path_factory.mktemp("unclean")
    (folder / "setup.cfg").write_text("[tool:pytest]\nmarkers =\n    deadline(seconds): longer\n")
    (folder / "test_unclean.py").write_text(UNCLEAN)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["-rA", "--leak-patience", "0.1", "--rootdir", str(folder)]
    command += ["-c", str(folder / "setup.cfg"), str(folder)]
    finished = subprocess.run(
        command,
        cwd=ROOT,
        env={"DING_LITE_LABELS": "learner", "COLUMNS": "400"},
        capture_output=True,
        text=True,
    )
    return finished.stdout + finished.stderr


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("leaves_a_thread", "left behind: thread ding_lite-worker"),
        ("leaves_a_descriptor", r"left behind: descriptor \d+ \(/dev/null\)"),
        ("leaves_a_child", r"left behind: child process \d+"),
        ("leaves_a_segment_of_an_ended_process", r"left behind: /dev/shm/ding_lite-test-\d+"),
        ("leaves_a_segment", r"left behind: /dev/shm/ding_lite-test-\d+"),
    ],
)
def test_a_leak_fails_its_test(report: str, name: str, complaint: str) -> None:
    assert re.search(rf"^ERROR .*test_{name} - .*{complaint}", report, re.MULTILINE), report


def test_a_hanging_test_is_interrupted_and_its_stack_shown(report: str) -> None:
    assert re.search(r"^FAILED .*test_hangs - .*Still running after 0.2 s", report, re.MULTILINE)
    assert "threading.Event().wait()" in report


@pytest.mark.parametrize(
    "name",
    [
        "starts_beside_a_segment_of_an_ended_process",
        "sees_an_orphan_that_is_removed_soon",
        "is_clean",
        "draws_the_same[0]",
        "draws_the_same[1]",
        "sees_no_settings_of_the_shell",
    ],
)
def test_a_clean_test_passes(report: str, name: str) -> None:
    assert re.search(rf"^PASSED .*test_{re.escape(name)}$", report, re.MULTILINE), report
    assert not re.search(rf"^ERROR .*test_{re.escape(name)}", report, re.MULTILINE), report

"""Log lines: warnings by default, one handler on request, and no flood."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ding_lite.errors import ConfigError
from ding_lite.log import Throttle, configure, named_in_logs
from ding_lite.testing.clock import ManualClock
from tests.threads import together

PACKAGE = logging.getLogger("ding_lite")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    handlers, level = list(PACKAGE.handlers), PACKAGE.level
    yield
    PACKAGE.handlers[:] = handlers
    PACKAGE.setLevel(level)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.mark.parametrize(
    ("message", "argument", "level", "text"),
    [
        ("connected to node %d", 0, logging.INFO, "connected to node 0\n"),
        ("hm %s", "", logging.WARNING, "warning: hm \n"),
        ("a \x1b[2J\r%s", "\x9b\u2028\tλ\n b", 20, "a \\x1b[2J\\r\\x9b\\u2028\tλ\n b\n"),
    ],
    ids=["information", "warning", "control characters"],
)
def test_a_line_has_time_node_and_message(stream, monkeypatch, message, argument, level, text):
    monkeypatch.setattr(time, "localtime", time.gmtime)
    name = "ding_lite.parallel.router.node_router"
    record = logging.LogRecord(name, level, "router.py", 7, message, (argument,), None)
    record.created = 86_400 * 365 + 12 * 3600 + 3 * 60 + 44 + 0.125
    record.msecs = 125.0
    configure(node="node 1 collector", stream=stream).handle(record)
    begin = "12:03:44.125 node 1 collector | parallel.router.node_router | "
    assert stream.getvalue() == begin + text


def test_an_exception_follows_its_line_with_its_traceback(stream: io.StringIO) -> None:
    configure(stream=stream)
    try:
        raise LookupError("no such node")
    except LookupError:
        logging.getLogger("ding_lite.runtime").exception("it broke")
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("node 0 | runtime | error: it broke")
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1] == "LookupError: no such node"


@pytest.mark.parametrize("level", ["loud", "WARNNG", "", None, 2.5])
def test_a_level_that_does_not_exist_is_refused_and_changes_nothing(stream, level) -> None:
    configure(logging.WARNING, stream=stream)
    before = list(PACKAGE.handlers)
    with pytest.raises(ConfigError, match=f"There is no log level {level!r}.*DEBUG") as caught:
        configure(level)
    assert ('Did you mean "WARNING"?' in str(caught.value)) == (level == "WARNNG")
    assert (PACKAGE.handlers, PACKAGE.level) == (before, logging.WARNING)


def test_configuring_again_replaces_the_handler_of_the_call_before_and_no_other() -> None:
    first, second = io.StringIO(), io.StringIO()
    own = logging.StreamHandler(io.StringIO())
    own.setFormatter(logging.Formatter())
    PACKAGE.addHandler(own)
    configure(stream=first)
    configure(node="node 7", stream=second)
    logging.getLogger("ding_lite.x").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("node 7 | x | once") == 1
    assert own in PACKAGE.handlers  # the program has added it


def test_lines_go_to_standard_error_as_it_is_when_configured(capsys) -> None:
    handler = configure()
    logging.getLogger("ding_lite.x").info("hello")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("node 0 | x | hello\n")
    assert isinstance(handler, logging.StreamHandler)
    assert handler.stream is sys.stderr


def test_a_line_has_the_name_that_the_process_was_given(stream: io.StringIO) -> None:
    configure(stream=stream)
    logger = logging.getLogger("ding_lite.x")

    def speak_and_fail() -> None:
        with named_in_logs("node 1 collector"):
            logger.info("as a node")
            together(lambda: logger.info("on another thread"))
            raise LookupError

    logger.info("alone")
    with pytest.raises(LookupError):
        speak_and_fail()
    logger.info("alone again")
    speakers = [re.split(r" (.*?) \|", line)[1] for line in stream.getvalue().splitlines()]
    assert speakers == ["node 0", "node 1 collector", "node 1 collector", "node 0"]


def test_warnings_are_written_unless_a_program_configures_logging() -> None:
    program = """
import ding_lite.log
import logging
logger = logging.getLogger("ding_lite.x")
logger.warning("shown")
logger.info("not shown")
ding_lite.log.configure("error")
logger.warning("not shown either")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == "shown\n"


class Lines(logging.Handler):
    """Keeps what a logger of its own is told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.logger = logging.Logger("test", logging.DEBUG)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


@pytest.fixture
def log() -> Lines:
    return Lines()


def test_once_logs_the_first_line_about_a_cause_and_drops_the_rest(log, clock) -> None:
    throttle = Throttle(log.logger, clock)
    for step in range(3):
        throttle.once(logging.WARNING, "slow", "slow in step %d", step)
        throttle.once(logging.INFO, "late", "late in step %d", step)
        clock.advance(1e9)
    assert log.lines == ["WARNING slow in step 0", "INFO late in step 0"]


def test_every_logs_again_when_so_many_seconds_have_passed(log: Lines, clock: ManualClock) -> None:
    throttle = Throttle(log.logger, clock)
    for _ in range(9):
        throttle.every(2.0, logging.INFO, "tick", "at %g s", clock.now())
        clock.advance(0.5)
    assert log.lines == ["INFO at 0 s", "INFO at 2 s", "INFO at 4 s"]


def test_a_line_below_the_level_does_not_count_for_the_throttle(stream, clock) -> None:
    throttle = Throttle(logging.getLogger("ding_lite.x"), clock)
    for level in ("warning", "info", "info"):
        configure(level, stream=stream)
        throttle.once(logging.INFO, "slow", "slow")
    assert stream.getvalue().count("slow") == 1

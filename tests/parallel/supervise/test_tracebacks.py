"""Tracebacks start at the first frame of the user's program."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path

from ding_lite.errors import ConfigError
from ding_lite.parallel import Parallel
from ding_lite.parallel.supervise import tracebacks as traces
from ding_lite.parallel.supervise.tracebacks import format_error, within_program
from ding_lite.settings.environment import Settings


def error_of(fn: Callable[[], object]) -> BaseException:
    """Return the error of a function, with a traceback that starts in the package."""
    try:
        Parallel.runner(1)(fn)
    except BaseException as error:  # noqa: BLE001 - whatever it may be
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        return error
    raise AssertionError("nothing was raised")


def fail() -> None:
    raise LookupError("gone")


def test_the_frames_that_call_the_program_are_left_out() -> None:
    error = error_of(fail)
    assert error.__traceback__ is not None
    assert "ding_lite" in error.__traceback__.tb_frame.f_code.co_filename
    message = format_error(error)
    assert message.splitlines()[0] == "Traceback (most recent call last):"
    assert message.splitlines()[1].endswith(", in fail")
    assert message.rstrip().endswith("LookupError: gone")


def test_frames_of_the_library_within_the_program_are_kept() -> None:
    def main() -> None:
        Settings.from_environ({"DING_LITE_NODE_ID": "first"})

    message = format_error(error_of(main))
    assert "ValueError: invalid literal" in message  # what it follows from
    shown = message.rpartition("Traceback (most recent call last):\n")[2].splitlines()
    assert shown[0].endswith(", in main")
    assert ", in from_environ" in message


def raised_by(fn: Callable[[], object]) -> BaseException:
    """Return the error of a function, without the frames of this file."""
    try:
        fn()
    except Exception as error:  # noqa: BLE001 - whatever it may be
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals["__name__"] == __name__:
            trace = trace.tb_next
        return error.with_traceback(trace)
    raise AssertionError("nothing was raised")


def test_a_ding_lite_error_without_a_program_frame_has_no_traceback() -> None:
    error = raised_by(lambda: Settings.from_environ({"DING_LITE_NODE_ID": "first"}))
    assert isinstance(error, ConfigError)
    assert within_program(error.__traceback__) is None
    assert format_error(error) == ""


def test_a_bug_of_the_library_keeps_its_whole_traceback() -> None:
    error = raised_by(lambda: within_program("no trace"))  # type: ignore[arg-type]
    assert ", in within_program" in format_error(error)
    assert str(Path(traces.__file__)) in format_error(error)


def test_a_syntax_error_in_the_program_is_shown_at_its_line(tmp_path, monkeypatch) -> None:
    (tmp_path / "slipped.py").write_text("def main(:\n    ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    message = format_error(raised_by(lambda: importlib.import_module("slipped")))
    assert message.splitlines()[0].endswith('slipped.py", line 1')
    assert "frozen importlib" not in message


def test_errors_in_a_cycle_of_causes_are_formatted_once() -> None:
    first, second = ConfigError("first"), ConfigError("second")
    first.__cause__, second.__cause__ = second, first
    assert format_error(first) == ""
    with contextlib.suppress(ConfigError):
        raise second
    assert format_error(first).count("ConfigError: second") == 1

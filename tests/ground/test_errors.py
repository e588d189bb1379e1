"""Errors: what each one prints, and the suggestion for a mistyped name."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

from hypothesis import given, strategies as st

from ding_lite import errors
from ding_lite.errors import DingLiteError, did_you_mean


# The table of docs/reference/errors.md is compared with their bases.
def test_an_error_keeps_its_message_and_its_notes() -> None:
    for name in errors.__all__:
        error_type: type[DingLiteError] = getattr(errors, name)
        assert (error_type.__doc__ or "").endswith("."), name
        for message in ("`lr` is 0; it must be above 0.", "two\nlines", "λ → 'µ'", ""):
            error = error_type(message)
            error.add_note("in middleware `train`")
            for twin in (error, pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
                assert type(twin) is error_type
                assert str(twin) == message
                assert twin.__notes__ == ["in middleware `train`"]


def test_the_words_of_another_node_cannot_control_the_terminal() -> None:
    error = errors.RemoteError("\x1b[2J λ \ud800", remote_traceback="in\n\x9b2J")
    assert (str(error), error.__notes__) == (r"\x1b[2J λ \ud800", ["in\n\\x9b2J"])


def test_a_slip_is_recognised_whatever_its_case_among_names_of_any_iterable() -> None:
    known = {"gamma": 0.5, "learning_rate": 0.1}
    for name in ("learning_rte", "Learning_Rate", "LEARNING_RATE", "learningrate"):
        assert did_you_mean(name, known) == ' Did you mean "learning_rate"?'
        assert did_you_mean(name, iter(known)) == ' Did you mean "learning_rate"?'


@given(letters=st.lists(st.sampled_from("abcdefgh_"), min_size=4, unique=True), data=st.data())
def test_one_missing_one_doubled_or_two_swapped_letters_are_recognised(letters, data) -> None:
    name = "".join(letters)
    at = data.draw(st.integers(0, len(name) - 2))
    swapped = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    for slip in (name[:at] + name[at + 1 :], name[: at + 1] + name[at:], swapped):
        assert did_you_mean(slip, [name]) == f' Did you mean "{name}"?'


def test_the_line_for_pip_works_in_any_folder(tmp_path, monkeypatch) -> None:
    root = Path(errors.__file__).resolve().parent.parent
    monkeypatch.chdir(root)
    assert errors.pip_line("box2d") == "pip install -e '.[box2d]'"
    monkeypatch.chdir(tmp_path)
    assert errors.pip_line("box2d") == f"pip install -e '{root}[box2d]'"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages/ding_lite/errors.py"))
    assert errors.pip_line("box2d") == 'pip install "ding-lite[box2d]"'

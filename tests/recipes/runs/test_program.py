"""The frame around a program's `main`."""

from __future__ import annotations

import pytest

from ding_lite.errors import CheckpointError, ConfigError, SaveError
from ding_lite.recipes import run_program


def test_ctrl_c_ends_with_130() -> None:
    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as caught:
        run_program(main)
    assert caught.value.code == 130


def test_any_other_error_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_program(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError, 2), (CheckpointError, 2), (SaveError, 1)]
)
def test_an_error_that_a_user_can_mend_is_reported_in_a_sentence(
    error: type[Exception], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise error("The disk is full.")

    with pytest.raises(SystemExit) as ended:
        run_program(main)
    assert ended.value.code == code
    assert capsys.readouterr().err == "error: The disk is full.\n"

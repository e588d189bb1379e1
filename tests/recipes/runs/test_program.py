"""The frame around a program's `main`."""

from __future__ import annotations

import pytest

from ding_lite.errors import CheckpointError, ConfigError, SaveError
from ding_lite.recipes import run_program


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt, 130), (ConfigError, 2), (CheckpointError, 2), (SaveError, 1)],
)
def test_ctrl_c_and_what_a_user_can_mend_have_an_exit_code(
    error: type[BaseException], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise error("The disk is full.")

    with pytest.raises(SystemExit) as ended:
        run_program(main)
    assert ended.value.code == code
    said = "" if error is KeyboardInterrupt else "error: The disk is full.\n"
    assert capsys.readouterr().err == said


def test_any_other_error_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_program(lambda: 1 / 0)

"""The program with an environment and a logger of a user's own, as it stands."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.fonts import open_fonts

PROGRAM = Path(__file__).with_name("own_env_and_logger.py")


@pytest.fixture(scope="session", autouse=True)
def _fonts() -> None:
    open_fonts()


def test_the_program_solves_its_environment_and_its_logger_gets_the_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = runpy.run_path(str(PROGRAM), run_name="__main__")
    assert namespace["result"].solved
    *rows, _ = (line.split() for line in capsys.readouterr().out.splitlines())
    assert {"return": rows[0][1] != "None", "eval_return": rows[-1][2]} == {
        "return": True,
        "eval_return": "1.0",
    }
    assert all(int(env_step) % 200 == 0 for env_step, *_ in rows)

"""`ding-lite doctor`."""

from __future__ import annotations

import importlib.metadata
import io
import os
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path

import pytest

from ding_lite.cli.doctor import doctor
from ding_lite.cli.doctor.doctor import Finding
from ding_lite.cli.main import main
from ding_lite.errors import pip_line

pytestmark = pytest.mark.usefixtures("_here")


def look(name: str) -> list[Finding]:
    return list(doctor._findings(getattr(doctor, name)))


@pytest.mark.procs
def test_all_is_well_where_the_tests_run(monkeypatch, capsys) -> None:
    monkeypatch.setenv("DING_LITE_PORTS", "50515")
    monkeypatch.setenv("DING_LITE_ROLES", "learner")
    code = main(["doctor"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, ""), out
    subjects = {line[6:20].strip(): line[:4].strip() for line in out.splitlines()[:-2]}
    for subject in ("python", "packages", "runs", "nodes by ipc", "nodes by tcp", "threads", "gpu"):
        assert subjects[subject] == "ok", subject
    assert out.splitlines()[-1].endswith("ding_lite can run on this machine.")


@pytest.mark.parametrize(("no_color", "begins"), [("", "\x1b[32mok  \x1b[0m  "), ("1", "ok    ")])
def test_a_terminal_shows_colors_unless_the_user_wants_none(monkeypatch, no_color, begins) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdout", screen := Screen())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    doctor._print(Finding("ok", "python", "3.11"))
    assert screen.getvalue() == f"{begins}python          3.11\n"


def test_a_failed_check_ends_with_1_and_a_warning_with_0(capsys, monkeypatch) -> None:
    class Met:
        def look(self) -> Iterator[Finding]:
            yield Finding("warn", "nodes", "slow", "Wait.")

    monkeypatch.setattr(doctor, "_Meeting", Met)
    assert doctor.examine() == 0
    assert capsys.readouterr().out.endswith("\n1 to look at; ding_lite can run on this machine.\n")
    monkeypatch.setenv("DING_LITE_NODE_ID", "first")
    assert doctor.examine() == 1
    out = capsys.readouterr().out
    assert "\nfail  environment     DING_LITE_NODE_ID is 'first'; a whole number was" in out
    assert "\n                      `ding-lite env` shows all variables.\n" in out
    assert out.endswith("\n1 to mend.\n")


def test_a_check_that_raises_is_a_failed_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        yield Finding("ok", "first", "fine")
        raise RuntimeError("no such file")

    monkeypatch.setattr(doctor, "_memory", broken)
    first, second = look("_memory")
    assert first.level == "ok"
    assert (second.level, second.found) == ("fail", "RuntimeError: no such file")


def test_a_package_that_is_missing_or_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        return ["numpy>=99", "no-such-package>=1", "rich>=1", 'ray>=1; extra == "ray"']

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    old, missing, fine = look("_packages")
    assert (old.level, old.subject, old.advice) == ("fail", "numpy", 'pip install "numpy>=99"')
    assert " is not >=99" in old.found
    assert (missing.level, missing.found) == ("fail", "no-such-package is not installed")
    assert (fine.level, fine.found.split()[0]) == ("ok", "rich")
    [extra] = [finding for finding in look("_extras") if finding.subject == "ray"]
    assert extra.level == "-"


def test_an_extra_with_a_package_that_is_missing_or_too_old_is_named(monkeypatch) -> None:
    needed = {
        "ding_lite": [
            *('numpy>=1; extra == "atari"', 'no-such-package>=1; extra == "atari"'),
            *('numpy>=99; extra == "tune"', 'rich>=1; extra == "wandb"'),
            *('no-such-package>=1; extra == "export"', 'rich>=1; extra == "export"'),
            'gymnasium[box2d]>=1; extra == "box2d"',
        ],
        "gymnasium": [
            'rich; extra == "box2d"',
            'no-box2d==1; python_version < "3.99" and extra == "box2d"',
            'other; python_version >= "3.99" and extra == "box2d"',
        ],
    }
    monkeypatch.setattr(importlib.metadata, "requires", needed.__getitem__)
    found = {finding.subject: finding for finding in look("_extras")}
    assert found.keys() == {"atari", "tune", "wandb", "export", "box2d"}
    assert found["atari"].level == found["tune"].level == "warn"
    assert "no-such-package is not installed" in found["atari"].found
    assert found["atari"].advice == pip_line("atari")
    assert " is not >=99" in found["tune"].found
    assert found["wandb"].found.startswith("rich ")
    assert all(found[name].found.startswith("not installed; ") for name in ("export", "box2d"))


FOR_DEVELOPERS = {"browser", "docs", "release", "site", "test"}


def test_every_extra_for_users_is_checked() -> None:
    settings = RawConfigParser()
    settings.read(Path(__file__).resolve().parents[3] / "setup.cfg")
    offered = {*settings["options.extras_require"]}
    assert offered - FOR_DEVELOPERS == doctor._EXTRAS.keys()


def test_a_directory_that_cannot_be_written_to_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    [finding] = look("_disk")
    assert (finding.level, finding.found) == ("fail", f"{Path.cwd()}: Permission denied")


def test_shared_memory_that_cannot_be_written_to_is_named_with_its_uses(monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    [finding] = look("_shared_memory")
    assert (finding.level, finding.found) == ("fail", "/dev/shm cannot be written to")
    assert "environments in worker processes need it" in finding.advice
    assert "weights go from node to node by socket" in finding.advice


@pytest.mark.parametrize(
    ("name", "constant"),
    [("_memory", "LITTLE_MEMORY"), ("_shared_memory", "LITTLE_SHARED"), ("_disk", "LITTLE_DISK")],
)
def test_a_shortage_is_a_warning_with_advice(name, constant, monkeypatch) -> None:
    assert [finding.level for finding in look(name)] == ["ok"]
    monkeypatch.setattr(doctor, constant, 1 << 60)
    [finding] = look(name)
    assert finding.level == "warn"
    assert finding.advice


def test_few_cores_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(doctor, "_core_quota", lambda: 1.5)
    [finding] = look("_processors")
    assert (finding.level, finding.found) == (
        "warn",
        "4 cores, of which this container may use 1.5",
    )
    monkeypatch.setattr(doctor, "_core_quota", lambda: None)
    assert look("_processors") == [Finding("ok", "processors", "4 cores")]


def test_nodes_that_cannot_connect_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = doctor._Meeting()
    meeting._process.kill()
    found = list(meeting.look())
    assert [finding.subject for finding in found] == ["nodes by ipc", "nodes by tcp"]
    assert {finding.level for finding in found} <= {"fail", "ok"}
    assert found[1].level == "fail"
    assert "docs/troubleshooting.md" in found[1].advice

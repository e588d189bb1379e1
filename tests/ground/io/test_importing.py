"""Files and modules of users are imported by their names, as Python itself would."""

import sys
from pathlib import Path

import pytest

from ding_lite.errors import ConfigError
from ding_lite.io.importing import find_member, import_place, look_here


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith(("imported_", "raised_"))]:
        del sys.modules[name]


def test_a_file_finds_its_neighbours_and_is_found_by_its_name():
    Path("deep").mkdir()
    Path("deep/imported_one.py").write_text("import imported_two\nnumber = imported_two.number\n")
    Path("deep/imported_two.py").write_text("number = 7\n")
    module = import_place("deep/imported_one.py")
    assert (module.number, module.__name__) == (7, "imported_one")
    assert import_place("imported_one") is module


def test_a_module_of_the_working_directory_is_found_once_it_is_asked_for():
    Path("imported_here.py").write_text("number = 8\n")
    with pytest.raises(ConfigError, match=r"with its ending: imported_here\.py"):
        import_place("imported_here")
    look_here()
    assert import_place("imported_here").number == 8


@pytest.mark.parametrize(
    ("place", "reported"),
    [
        ("no/such.py", "There is no file 'no/such.py'"),
        ("json.py", "has the name of another module, `json`"),
        ("a.b.py", "a name without dots"),
        ("no-module", "no name of a module"),
    ],
)
def test_a_place_that_cannot_be_imported_is_refused_with_the_reason(place, reported):
    for name in ("json.py", "a.b.py"):
        Path(name).write_text("")
    with pytest.raises(ConfigError, match=reported):
        import_place(place)


def test_the_place_of_a_module_may_be_deleted():
    Path("imported_gone.py").write_text("")
    import_place("imported_gone.py")
    Path("moved").mkdir()
    Path("imported_gone.py").rename("moved/imported_gone.py")
    with pytest.raises(ConfigError, match="has the name of another module, `imported_gone`"):
        import_place("moved/imported_gone.py")


def test_an_import_that_fails_within_a_module_is_no_slip():
    Path("imported_broken.py").write_text("import no_such_neighbour\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_neighbour"):
        import_place("imported_broken.py")


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("import no_such", r"raised_one\.py raised ModuleNotFoundError .*line 1 of .*Mend it"),
        ("1 +", "raised SyntaxError while it was imported: "),
        ("import sys\nsys.exit(3)", r"raised SystemExit while it was imported in line 2 of .*: 3"),
        ("from .two import x", "Name the module instead: package.module:NAME"),
    ],
)
def test_a_member_of_a_module_that_raises_is_refused_with_the_line(text, reported):
    Path("raised_one.py").write_text(text)
    with pytest.raises(ConfigError, match=reported):
        find_member("raised_one.py", "network")


@pytest.mark.parametrize(
    "begin",
    [
        "from ding_lite import Task\nTask().run(max_step=1)",
        "import ding_lite\nding_lite.train('dqn', 'CartPole-v1', max_env_steps=8, quiet=True)",
        "from ding_lite import Parallel\nParallel.runner(1)(print)",
    ],
)
def test_a_program_that_begins_a_run_when_it_is_imported_is_refused(begin):
    Path("imported_run.py").write_text(f"def network(spec): ...\n{begin}\n")
    with pytest.raises(ConfigError, match=r"imported_run\.py was imported .*if __name__ =="):
        find_member("imported_run.py", "network")
    assert [each.name for each in Path().iterdir() if each.name != "__pycache__"] == [
        "imported_run.py"
    ]

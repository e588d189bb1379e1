"""Modules are imported from the folders that a run was signed with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ding_lite.io.importing import import_place
from ding_lite.io.places import folders_of, look_in


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("placed_")]:
        del sys.modules[name]


def folder(name: str, *files: str) -> str:
    """Make a folder with modules."""
    for file in files:
        path = Path(name, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"here = {name!r}\n")
    return str(Path(name).resolve())


def test_folders_are_those_of_the_users_modules_that_are_not_installed() -> None:
    own = folder("own", "placed_one.py", "placed_pack/__init__.py", "placed_space/inner.py")
    sys.path.append(own)
    names = ["placed_one", "placed_pack.inner", "placed_space.inner"]
    places = [*names, "json", "sys", "torch.optim", "/a/file.py", "placed_none", "", ".x"]
    assert folders_of(places) == {name.partition(".")[0]: [own] for name in names}
    import_place("placed_one")
    assert folders_of(["placed_one"]) == {"placed_one": [own]}


def test_a_module_is_imported_from_its_folder_although_the_path_lacks_it() -> None:
    own = folder("own", "placed_two.py")
    before = [*sys.path]
    assert look_in({"placed_two": [own]}, ["placed_two"]) == ""
    assert sys.path == [*before, own]
    assert "placed_two" not in sys.modules
    assert import_place("placed_two").here == "own"


def test_a_module_that_another_folder_has_first_is_refused() -> None:
    own, other = folder("own", "placed_three.py"), folder("other", "placed_three.py")
    sys.path.insert(0, other)
    fault = look_in({"placed_three": [own]}, ["placed_three.inner"])
    assert fault == (
        f"the module `placed_three`, which was in {own} when it was saved, and is now found in "
        f"{other}"
    )
    assert "which was in no folder that is known" in look_in({}, ["placed_three"])
    assert "placed_three" not in sys.modules
    import_place("placed_three")  # as the program of the user may do
    assert look_in({"placed_three": [own]}, ["placed_three.inner"]) == ""


def test_a_namespace_of_several_folders_has_no_further_one() -> None:
    own = folder("own", "placed_space/inner.py")
    sys.path.append(own)
    signed = folders_of(["placed_space"])
    import_place("placed_space.inner")
    assert look_in(signed, ["placed_space.other"]) == ""
    other = folder("other", "placed_space/other.py")
    sys.path.append(other)
    assert f"now found in {other}" in look_in(signed, ["placed_space.other"])
    assert look_in(signed, ["placed_space.inner"]) == ""  # it is imported already


def test_what_is_not_found_any_more_is_named_and_leaves_the_path_as_it_is() -> None:
    before = [*sys.path]
    fault = look_in({"placed_gone": ["/no/such"]}, ["json", "placed_gone"])
    assert fault.endswith("which was in /no/such when it was saved and is not found any more")
    assert sys.path == before
    folder(".", "placed_file.py")
    for file in ("/no/such.py", "placed_file.py"):  # a relative path leads to another file here
        assert look_in({}, [file]) == f"the file {file}, which is not there any more"
    assert look_in({}, [str(Path("placed_file.py").resolve()), json.__name__]) == ""

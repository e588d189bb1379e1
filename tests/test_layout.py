"""Each module has a test at the same place under the same name, or is listed with its test."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from itertools import pairwise
from pathlib import Path

from tests.architecture import PACKAGE, House, Module, floor_of

TESTS = Path(__file__).resolve().parent

LISTS = tomllib.loads((TESTS / "layout.toml").read_text())
COVERS = [(test, path) for test, paths in LISTS["covers"].items() for path in paths.split()]
REACHES = [
    (test, chain.split(" > ")) for test, all_of in LISTS["reaches"].items() for chain in all_of
]
LISTED = [*COVERS, *[(test, chain[-1]) for test, chain in REACHES]]


@cache
def parsed(test: str) -> Module:
    return Module(test, (TESTS / test).read_text())


def place_of(module: Module) -> str:
    """Return where the test of a module belongs, below tests/."""
    folder, _, file = module.path.rpartition("/")
    room = ["ground"] if floor_of(module.name) == "ground" or not folder else []
    return "/".join([*room, *filter(None, [folder]), f"test_{file}"])


def public_names(module: Module) -> set[str]:
    """Return the public names that a module defines."""
    names = set()
    for node in module.tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
    return {name for name in names if not name.startswith("_")}


def uses(test: str, module: Module) -> bool:
    """Tell whether a test uses a module, or a name of it that a package re-exports."""
    if re.search(rf"\b{re.escape(module.name)}\b", parsed(test).source):
        return True
    packages = {each.name for each in House.real() if each.path.endswith("__init__.py")}
    public = public_names(module)
    for _, full in parsed(test).uses:
        front, _, name = full.rpartition(".")
        if front in packages and name in public:
            return True
    return False


def imports(module: Module, other: Module) -> bool:
    """Tell whether a module imports another one, or starts it by its name."""
    names = {House.real().target(item) for item in module.imports}
    return other.name in names or f'"{other.name}"' in module.source


@cache
def modules() -> dict[str, Module]:
    """Return all modules except `__init__` and `__main__`, by path without suffix."""
    plain = (module for module in House.real() if not module.path.endswith("__.py"))
    return {module.path.removesuffix(".py"): module for module in plain}


def test_a_module_has_a_test_of_its_name_or_is_listed_and_not_both() -> None:
    listed = [path for _, path in LISTED]
    counts = {
        f"tests/{place_of(module)}": listed.count(path) + (TESTS / place_of(module)).is_file()
        for path, module in modules().items()
    }
    assert [place for place, count in counts.items() if count == 0] == []
    assert [place for place, count in counts.items() if count > 1] == []


def test_listed_modules_and_tests_exist() -> None:
    assert {path for _, path in LISTED} <= modules().keys()
    assert [test for test, _ in LISTED if not (TESTS / test).is_file()] == []


def test_a_listed_test_uses_the_module() -> None:
    assert [pair for pair in COVERS if not uses(pair[0], modules()[pair[1]])] == []


def test_a_chain_of_imports_leads_from_the_listed_test_to_the_module() -> None:
    for test, paths in REACHES:
        chain = [modules()[path] for path in paths]
        assert uses(test, chain[0]), (test, paths)
        assert all(imports(one, next_one) for one, next_one in pairwise(chain)), (test, paths)
        # It would stand under `covers` if the test used the module itself.
        assert not uses(test, chain[-1]), (test, paths)


def test_a_test_beside_those_of_modules_has_the_name_of_one_or_is_a_topic() -> None:
    own = {place_of(module) for module in modules().values()}
    folders = {module.path.rpartition("/")[0] for module in House.real()} - {"", "io", "settings"}
    others = {
        f"{folder}/{file.name}"
        for folder in {*folders, "ground", "ground/io", "ground/settings"}
        for file in (TESTS / folder).glob("test_*.py")
    }
    topics = LISTS["topics"].items()
    assert others - own == {
        f"{folder}/test_{k}.py" for folder, all_of in topics for k in all_of.split()
    }


def test_every_folder_with_modules_is_a_package_that_the_wheel_has() -> None:
    folders = {module.path.rpartition("/")[0] for module in House.real()}
    lacking = [at for at in folders if not (TESTS.parent / PACKAGE / at / "__init__.py").is_file()]
    assert lacking == []

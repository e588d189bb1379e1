"""Count what docs/design/0014-the-house.md shows: `python -m tests.measures [CHECKOUT]`.

It reads the source of a checkout, by default its own, so that older versions can be measured, too.
Only to count the modules on the way of a message does it run the package, in other processes.
"""

# ruff: noqa: T201, SIM905
from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests import prose

DOORWAYS = """
. runtime parallel rl evolution distributed middleware recipes testing framework rl_utils
""".split()


def main() -> None:
    """Print a line for each measure."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    package = {name_of(file, root): file for file in sorted((root / "ding_lite").rglob("*.py"))}
    imports = {name: set(imported(name, tree(file), package)) for name, file in package.items()}
    docstrings = [text for file in package.values() for text in docs_of(tree(file))]
    tests = sorted((root / "tests").rglob("*.py"))
    files = Counter(file.parent for file in package.values() if file.name != "__init__.py")
    of_parallel = {name for name in package if name.startswith("ding_lite.parallel.")}
    lines = lines_of(package.values())
    of_docstrings = sum(text.count("\n") + 1 for text in docstrings)

    print("import circles:", sorted(map(len, circles(imports))))
    print("files in one folder, at most:", max(files.values()))
    print("levels of modules in parallel/:", levels(imports, of_parallel))
    print("sub-packages of parallel/:", sum(1 for _ in (root / "ding_lite/parallel").glob("*/")))
    print("classes of more than 20 public methods:", *large_classes(package.values()))
    print("public methods of the router:", router_surface(package.values()))
    print("public names:", sum(public_names(root / "ding_lite")))
    print(f"lines of ding_lite/: {lines:,}, of docstrings {of_docstrings / lines:.0%}")
    print(f"lines of tests/: {lines_of(tests):,}", flush=True)
    path = Path(__file__).with_name("message_path.py")
    subprocess.run([sys.executable, path], env={**os.environ, "PYTHONPATH": str(root)}, check=False)
    prose.ROOT = root
    found = [0, 0]
    for file in (file for files in prose.areas().values() for file in files):
        found[0] += sum(1 for _ in prose.banned_words(file))
        found[1] += sum(1 for _ in prose.riddles(file))
    print("words that the style bans, first lines that are questions:", *found)


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def name_of(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(name: str, parsed: ast.Module, package: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a module imports anywhere, functions included."""
    for node in ast.walk(parsed):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [each if each in package else node.module for each in found]
        yield from (each for each in found if each in package and each != name)


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the import cycles, each as a set of modules."""
    reached = {name: reach(name, imports) for name in imports}
    sets = {frozenset(b for b in reached[a] if a in reached[b]) for a in imports if a in reached[a]}
    return [set(each) for each in sets]


def reach(start: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    new = set(imports[start])
    while new:
        found |= new
        new = {b for a in new for b in imports[a]} - found
    return found


def levels(imports: dict[str, set[str]], names: set[str]) -> int:
    """Return the length of the longest chain of imports among some modules."""

    @cache
    def depth(name: str) -> int:
        return 1 + max((depth(other) for other in imports[name] & names), default=0)

    return max(depth(name) for name in names)


def docs_of(parsed: ast.Module) -> Iterator[str]:
    """Yield the docstrings of modules, classes, functions and fields."""
    for node in ast.walk(parsed):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text


def methods(definition: ast.ClassDef) -> list[str]:
    return [
        node.name
        for node in definition.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
    ]


def classes(files: Iterable[Path]) -> Iterator[ast.ClassDef]:
    for file in files:
        yield from (node for node in ast.walk(tree(file)) if isinstance(node, ast.ClassDef))


def large_classes(files: Iterable[Path]) -> Iterator[str]:
    for definition in classes(files):
        if len(set(methods(definition))) > 20:
            yield f"{definition.name} ({len(set(methods(definition)))})"


def router_surface(files: Iterable[Path]) -> int:
    found = [set(methods(each)) for each in classes(files) if each.name == "Router"]
    return max(map(len, found))


def public_names(package: Path) -> Iterator[int]:
    """Yield the number of names in `__all__` of each package that users import from."""
    for door in DOORWAYS:
        folder = package if door == "." else package / door
        file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        for node in tree(file).body:
            match node:
                case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names)):
                    yield len(names)


def lines_of(files: Iterable[Path]) -> int:
    return sum(file.read_text().count("\n") for file in files)


if __name__ == "__main__":
    main()

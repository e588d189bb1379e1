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
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests import prose
from tests.architecture import House, circles

DOORWAYS = """
. runtime parallel rl evolution distributed middleware recipes testing framework rl_utils
""".split()


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    house = House.read(root / "ding_lite")
    imports = {m.name: {house.target(item) for item in m.imports} - {m.name} for m in house}
    imports = {name: targets & house.modules.keys() for name, targets in imports.items()}
    files = Counter(Path(module.path).parent for module in house if "__init__" not in module.path)
    of_parallel = {name for name in imports if name.startswith("ding_lite.parallel.")}
    definitions = [node for module in house for node in ast.walk(module.tree)]
    texts = (getattr(n.value, "value", None) for n in definitions if isinstance(n, ast.Expr))
    docs = [text for text in texts if isinstance(text, str)]
    lines = sum(module.source.count("\n") for module in house)
    of_docs = sum(text.count("\n") + 1 for text in docs)
    tests = [file.read_text() for file in (root / "tests").rglob("*.py")]

    print("import circles:", sorted(map(len, circles(imports))))
    print("files in one folder, at most:", max(files.values()))
    print("levels of modules in parallel/:", levels(imports, of_parallel))
    print("sub-packages of parallel/:", sum(1 for _ in (root / "ding_lite/parallel").glob("*/")))
    methods = [(n.name, methods_of(n)) for n in definitions if isinstance(n, ast.ClassDef)]
    large = [f"{name} ({len(found)})" for name, found in methods if len(found) > 20]
    print("classes of more than 20 public methods:", *large)
    router = max(len(found) for name, found in methods if name == "Router")
    print("public methods of the router:", router)
    print("public names:", sum(public_names(root / "ding_lite")))
    print(f"lines of ding_lite/: {lines:,}, of docstrings {of_docs / lines:.0%}")
    print(f"lines of tests/: {sum(text.count(chr(10)) for text in tests):,}", flush=True)
    path = Path(__file__).with_name("message_path.py")
    subprocess.run([sys.executable, path], env={**os.environ, "PYTHONPATH": str(root)}, check=False)
    prose.ROOT = root
    found = [0, 0]
    for file in (file for files in prose.areas().values() for file in files):
        found[0] += sum(1 for _ in prose.banned_words(file))
        found[1] += sum(1 for _ in prose.riddles(file))
    print("words that the style bans, first lines that are questions:", *found)


def levels(imports: dict[str, set[str]], names: set[str]) -> int:
    """Return the length of the longest chain of imports among some modules."""

    @cache
    def depth(name: str) -> int:
        return 1 + max((depth(other) for other in imports[name] & names), default=0)

    return max(depth(name) for name in names)


def methods_of(definition: ast.ClassDef) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = (node.name for node in definition.body if isinstance(node, functions))
    return {name for name in names if not name.startswith("_")}


def public_names(package: Path) -> Iterator[int]:
    """Yield the number of names in `__all__` of each package that users import from."""
    for door in DOORWAYS:
        folder = package if door == "." else package / door
        file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        for node in ast.parse(file.read_text()).body:
            match node:
                case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names)):
                    yield len(names)


if __name__ == "__main__":
    main()

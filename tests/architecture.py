"""Rules for the source: layers ("floors"), single owners of dangerous operations, some bans.

The package is parsed and not imported. Each rule is a function of a `House` (the parsed modules)
that yields violations. `tests/test_architecture.py` applies the rules to ding_lite, and to small
examples that violate them. The "roof" is `ding_lite` itself; "doorways" are packages that only
re-export.
"""

from __future__ import annotations

import ast
import gc
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

PACKAGE = "ding_lite"
GROUND = {"errors", "deprecation", "cancellation", "interruption", "clock", "io"}
GROUND |= {"exit_codes", "settings", "log", "nest", "records", "version"}
DOORWAYS = {"framework", "rl_utils"}
ROOF = {"", "__main__"}
MAY_IMPORT: dict[str, set[str]] = {
    "ground": {"ground"},
    "runtime": {"ground", "runtime"},
    "parallel": {"ground", "runtime", "parallel"},
    "rl": {"ground", "rl"},
    "evolution": {"ground", "rl", "evolution"},
    "distributed": {"ground", "parallel", "rl", "distributed"},
    "middleware": {"ground", "runtime", "rl", "evolution", "distributed", "middleware"},
}
MAY_IMPORT["options"] = {"ground", "runtime", "rl", "options"}
MAY_IMPORT["recipes"] = {*MAY_IMPORT, "recipes"}
MAY_IMPORT["testing"] = {*MAY_IMPORT, "testing"} - {"recipes"}
MAY_IMPORT["cli"] = {*MAY_IMPORT, "cli"}
NO_TORCH_AT_IMPORT = {"ground", "runtime", "parallel"}

# What may be imported or named in one place only: dotted name -> globs below ding_lite/.
OWNERS: dict[str, tuple[str, ...]] = {
    "zmq": ("parallel/transport/zeromq/*.py",),
    "multiprocessing.shared_memory": ("parallel/memory/segments.py",),
    "mmap": ("parallel/memory/segments.py",),
    "os.environ": ("settings/environment.py",),
    "os.environb": ("settings/environment.py",),
    "os.getenv": ("settings/environment.py",),
    "os.putenv": ("settings/environment.py",),
    "time.sleep": ("clock.py",),
    "asyncio.sleep": ("clock.py",),
    "tensorboard": ("middleware/report/*.py", "cli/*.py", "cli/doctor/*.py"),
    "torch.utils.tensorboard": ("middleware/report/*.py", "cli/*.py", "cli/doctor/*.py"),
    "matplotlib": ("middleware/report/*.py", "cli/*.py", "cli/doctor/*.py"),
    "rich": ("middleware/report/*.py", "cli/*.py", "cli/doctor/*.py"),
    "easydict": ("settings/config.py",),
    "accelerate": ("distributed/accelerate/accelerator.py",),
    "ray": ("parallel/supervise/ray/cluster.py",),
    "numba": ("rl/replay/sum_tree_numba.py",),
    "sys.setswitchinterval": ("parallel/supervise/node_process.py",),
    "torch.set_num_threads": ("settings/environment.py",),
    "Box2D": ("rl/envs/vector.py",),
    **dict.fromkeys(
        (
            *("pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"),
            *("torch.load", "torch.save", "torch.serialization"),
        ),
        (),
    ),
    # `main` and its arguments, which multiprocessing has pickled for its own child.
    "multiprocessing.reduction": ("parallel/supervise/node_process.py",),
}
# Rows of sub-packages: each may import those of its own row and of the rows before it.
ORDER: dict[str, tuple[str, ...]] = {
    "parallel": (
        "network wire memory",
        "transport",
        "link",
        "observe",
        "router",
        "tree launch supervise",
    ),
    "rl": (
        "batch host_or_device packing memory spec seeding torch_random protocols wrong_calls",
        "weights",
        "recorded",
        "networks formulas replay envs checkpoint reward_norm",
        "evaluation policies",
        "torch_policies",
    ),
}
MAX_MODULES = 12
NUMBER_OF_TYPE_IGNORES = 6
"""At most that many in ding_lite/; it may only fall."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_MUTABLE_MAKERS = {"list", "dict", "set", "bytearray", "defaultdict", "deque", "OrderedDict"}
_MUTATORS = {
    *("append", "add", "update", "setdefault", "pop", "popitem", "clear", "extend", "insert"),
    *("remove", "discard", "appendleft", "popleft", "sort", "reverse"),
}


class Fault(NamedTuple):
    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{PACKAGE}/{self.path}:{self.line}: {self.what}"


@dataclass(frozen=True)
class Import:
    """A name imported by a statement or by `import_module("...")`."""

    line: int
    module: str
    name: str | None
    on_load: bool
    """Whether it runs when the module is loaded: not in a function, not for type checkers."""

    @property
    def dotted(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass
class Module:
    path: str
    source: str
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.source)

    @cached_property
    def name(self) -> str:
        parts = [PACKAGE, *self.path.removesuffix(".py").split("/")]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def floor(self) -> str:
        return floor_of(self.name)

    @cached_property
    def nodes(self) -> list[tuple[ast.AST, bool]]:
        """All nodes except contexts, and whether each runs when the module is imported."""
        return [*_walk(self.tree)]

    @cached_property
    def imports(self) -> list[Import]:
        return list(_imports(self))

    @cached_property
    def uses(self) -> list[tuple[int, str]]:
        """Line and full dotted name of everything imported, or used through an import."""
        local = {alias: full for _, alias, full in _aliases(self)}
        found = [(item.line, item.dotted) for item in self.imports]
        for node, _ in self.nodes:
            if isinstance(node, ast.Attribute) and (full := _dotted(node, local)):
                found.append((node.lineno, full))
        return found


@dataclass(frozen=True)
class House:
    """All modules of a package."""

    modules: dict[str, Module]

    @classmethod
    def read(cls, root: Path) -> House:
        """Parse every module below a folder as if it were ding_lite/."""
        files = sorted(root.rglob("*.py"))
        modules = [Module(file.relative_to(root).as_posix(), file.read_text()) for file in files]
        return cls({module.name: module for module in modules})

    @classmethod
    @cache
    def real(cls) -> House:
        """Parse ding_lite once, with the garbage collector off."""
        gc.disable()
        try:
            house = cls.read(Path(__file__).resolve().parent.parent / PACKAGE)
            for module in house:
                _ = module.nodes
            gc.freeze()
        finally:
            gc.enable()
        return house

    def __iter__(self) -> Iterator[Module]:
        return iter(self.modules.values())

    def target(self, item: Import) -> str:
        """Return the imported module: `from a import b` means a.b if that is a module."""
        return item.dotted if item.dotted in self.modules else item.module


Rule = Callable[[House], Iterator[Fault]]


def floor_of(name: str) -> str:
    """Return the layer of a dotted name of the package; the empty string is the roof."""
    second = name.split(".")[1] if "." in name else ""
    return "ground" if second in GROUND else second


def floors(house: House) -> Iterator[Fault]:
    """Each layer imports only the layers that the design allows."""
    for module, item in _ours(house):
        above = floor_of(house.target(item))
        if module.floor in ROOF | DOORWAYS or above in ROOF | DOORWAYS:
            continue
        if module.floor not in MAY_IMPORT:
            yield Fault(module.path, 1, f"`{module.floor}` is on no floor of the design")
        elif above not in MAY_IMPORT[module.floor]:
            what = f"{module.floor} may not import {above} (`{item.dotted}`)"
            yield Fault(module.path, item.line, what)


def ground_stands_alone(house: House) -> Iterator[Fault]:
    """The lowest layer imports only the standard library and numpy."""
    known = {*sys.stdlib_module_names, "numpy", PACKAGE}
    for module in house:
        for item in module.imports:
            first = item.module.split(".")[0]
            if module.floor == "ground" and first not in known and first not in OWNERS:
                yield Fault(module.path, item.line, f"the ground may not import `{first}`")


def doorways(house: House) -> Iterator[Fault]:
    """Roof and doorways only re-export, and no other module imports them."""
    for module, item in _ours(house):
        through = floor_of(house.target(item))
        if through in ROOF | DOORWAYS and module.floor != through and module.floor not in ROOF:
            what = f"`{item.dotted}` comes through the front door; import where it is defined"
            yield Fault(module.path, item.line, what)
    for module in house:
        if module.floor in DOORWAYS:
            for node in module.tree.body:
                if not _only_re_exports(node):
                    yield Fault(module.path, node.lineno, "a doorway only re-exports")


def no_shortcut_through_init(house: House) -> Iterator[Fault]:
    """Within a layer no module imports from a re-exporting `__init__`."""
    for module, item in _ours(house):
        target = house.modules.get(house.target(item))
        if target is None or target is module or target.floor != module.floor:
            continue
        if target.path.endswith("__init__.py") and target.floor not in ROOF | DOORWAYS:
            what = f"`{item.dotted}` comes from an `__init__` of the same floor"
            yield Fault(module.path, item.line, what)


def single_owners(house: House) -> Iterator[Fault]:
    """Dangerous operations are allowed in one module each, or nowhere."""
    for module in house:
        seen = set()
        for line, full in module.uses:
            for thing, owners in OWNERS.items():
                if full != thing and not full.startswith(f"{thing}."):
                    continue
                if any(Path(module.path).match(owner) for owner in owners):
                    continue
                if (line, thing) not in seen:
                    seen.add((line, thing))
                    where = f"only in {' and '.join(owners)}" if owners else "nowhere"
                    yield Fault(module.path, line, f"`{thing}` is allowed {where}")


def no_unpickling_of_arrays(house: House) -> Iterator[Fault]:
    """No call sets `allow_pickle`."""
    for module in house:
        for node, _ in module.nodes:
            match node:
                case ast.keyword(arg="allow_pickle", value=ast.Constant(value=False)):
                    pass
                case ast.keyword(arg="allow_pickle", value=value):
                    yield Fault(module.path, value.lineno, "`allow_pickle` must be False")


def no_torch_at_import(house: House) -> Iterator[Fault]:
    """The lower layers import without torch."""
    for module in house:
        if module.floor not in NO_TORCH_AT_IMPORT:
            continue
        for item in module.imports:
            if item.on_load and item.module.split(".")[0] == "torch":
                yield Fault(module.path, item.line, "torch must not be imported on load here")


def bans(house: House) -> Iterator[Fault]:
    """No print outside cli/, no assert, eval, exec or `global` anywhere."""
    for module in house:
        for node, _ in module.nodes:
            if isinstance(node, ast.Assert):
                yield Fault(module.path, node.lineno, "`assert` is for tests; raise an error")
            elif isinstance(node, ast.Global):
                yield Fault(module.path, node.lineno, "`global` makes hidden state")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id == "print" and module.floor != "cli":
                    yield Fault(module.path, node.lineno, "`print` is for cli/ and examples/")
                elif node.func.id in {"eval", "exec"}:
                    yield Fault(module.path, node.lineno, f"`{node.func.id}` runs text as code")


def no_mutable_globals(house: House) -> Iterator[Fault]:
    """A module-level list, dict or set is a constant with a name in capitals."""
    for module in house:
        tables = set()
        for name, node in _mutable_globals(module.tree):
            tables.add(name)
            if name != name.upper() and name != "__all__":
                what = f"`{name}` is mutable and global; a table's name is in capitals"
                yield Fault(module.path, node.lineno, what)
        for name, line in _mutations(module):
            if name in tables:
                yield Fault(module.path, line, f"`{name}` is a global table, and changed here")


def type_ignores_have_codes(house: House) -> Iterator[Fault]:
    """Each `# type: ignore` has a code, and their number is limited."""
    count = 0
    for module in house:
        if not re.search(r"type:\s*ignore", module.source):
            continue
        for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
            if token.type != tokenize.COMMENT or not re.search(r"type:\s*ignore", token.string):
                continue
            count += 1
            line = token.start[0]
            if not re.search(r"type:\s*ignore\[[a-z, -]+\]", token.string):
                yield Fault(module.path, line, "`# type: ignore` without a code")
            if count > NUMBER_OF_TYPE_IGNORES:
                what = f"`# type: ignore` number {count}; at most {NUMBER_OF_TYPE_IGNORES}"
                yield Fault(module.path, line, what)


def no_import_circles(house: House) -> Iterator[Fault]:
    """There are no import cycles, including lazy imports and those for type checkers."""
    of: dict[str, set[str]] = {module.name: set() for module in house}
    for module, item in _ours(house):
        of[module.name].add(house.target(item))
    for circle in circles(of):
        path = house.modules[circle[0]].path
        yield Fault(path, 1, f"an import circle: {' -> '.join([*circle, circle[0]])}")


def order_of_sub_packages(house: House) -> Iterator[Fault]:
    """Inside a layer, a sub-package imports only its own row and the rows before it."""
    for module, item in _ours(house):
        rows = ORDER.get(module.floor, ())
        rank = {name: k for k, row in enumerate(rows) for name in row.split()}
        own, other = _room(module.name), _room(house.target(item))
        if floor_of(house.target(item)) != module.floor or not rows or not own or own == other:
            continue
        if own not in rank:
            yield Fault(module.path, 1, f"`{module.floor}/{own}` is in no row of ORDER")
        elif rank.get(other, 0) > rank[own]:
            what = f"{module.floor}/{own} may not import {module.floor}/{other} (`{item.dotted}`)"
            yield Fault(module.path, item.line, what)


def small_folders(house: House) -> Iterator[Fault]:
    """A folder has at most 12 modules; one with more has a reason in its `__init__`."""
    of: dict[str, list[str]] = {}
    for module in house:
        folder, _, file = module.path.rpartition("/")
        if file != "__init__.py":
            of.setdefault(folder, []).append(file)
    for folder, files in of.items():
        door = house.modules.get(".".join([PACKAGE, *filter(None, folder.split("/"))]))
        says_why = door is not None and f"{len(files)} modules" in (
            ast.get_docstring(door.tree) or ""
        )
        if len(files) > MAX_MODULES and not says_why:
            yield Fault(f"{folder}/__init__.py", 1, f"{len(files)} modules; at most {MAX_MODULES}")


RULES: list[Rule] = [
    no_import_circles,
    order_of_sub_packages,
    small_folders,
    floors,
    ground_stands_alone,
    doorways,
    no_shortcut_through_init,
    single_owners,
    no_unpickling_of_arrays,
    no_torch_at_import,
    bans,
    no_mutable_globals,
    type_ignores_have_codes,
]


def _ours(house: House) -> Iterator[tuple[Module, Import]]:
    for module in house:
        for item in module.imports:
            if item.module.split(".")[0] == PACKAGE:
                yield module, item


def _room(name: str) -> str:
    return name.split(".")[2] if name.count(".") >= 2 else ""


def circles(of: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in sorted(of[name]):
            if other not in number and other in of:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == number[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1 or name in of[name]:
                found.append(group)

    for name in of:
        if name not in number:
            visit(name)
    return found


def _imports(module: Module) -> Iterator[Import]:
    package = module.name if module.path.endswith("__init__.py") else module.name.rpartition(".")[0]
    for node, on_load in module.nodes:
        match node:
            case ast.Import():
                yield from (Import(node.lineno, a.name, None, on_load) for a in node.names)
            case ast.ImportFrom():
                base = node.module or ""
                if node.level:
                    above = package.split(".")[: len(package.split(".")) - node.level + 1]
                    base = ".".join([*above, *base.split(".")]).rstrip(".")
                yield from (Import(node.lineno, base, a.name, on_load) for a in node.names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(node.lineno, name, None, on_load)


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Walk a tree; yield for each node whether it runs when the module is imported."""
    left: list[tuple[ast.AST, bool]] = [(tree, True)]
    while left:
        node, on_load = left.pop()
        yield node, on_load
        lazy: list[ast.stmt] = []
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            lazy = node.body
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr_context):
                is_function = isinstance(child, _FUNCTIONS)
                left.append((child, on_load and not is_function and child not in lazy))


def _aliases(module: Module) -> Iterator[tuple[int, str, str]]:
    for node, _ in module.nodes:
        if isinstance(node, ast.Import):
            for a in node.names:
                first = a.name.split(".")[0]
                yield node.lineno, a.asname or first, a.name if a.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            for a in node.names:
                yield node.lineno, a.asname or a.name, f"{node.module}.{a.name}"


def _dotted(node: ast.expr, local: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return local.get(node.id)
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value, local)):
        return f"{before}.{node.attr}"
    return None


def _only_re_exports(node: ast.stmt) -> bool:
    match node:
        case ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
    return False


def _mutable_globals(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names, value = [t.id for t in node.targets if isinstance(t, ast.Name)], node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            names, value = [node.target.id], node.value
        else:
            continue
        displays = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
        made = isinstance(value, ast.Call) and _last_name(value.func) in _MUTABLE_MAKERS
        if made or isinstance(value, displays):
            yield from ((name, node) for name in names)


def _mutations(module: Module) -> Iterator[tuple[str, int]]:
    """Return names that functions change in place, as `x[k] = v`, `x.append(v)` or `x |= y` do."""
    for node, on_load in module.nodes:
        if on_load:
            continue
        match node:
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                yield name, node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
                if method in _MUTATORS:
                    yield name, node.lineno
            case ast.AugAssign(target=ast.Name(id=name)):
                yield name, node.lineno


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")

"""The tables of docs/reference agree with the code, and README's numbers were measured."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from ding_lite import errors, middleware as mw
from ding_lite.options.derived import sentences_of
from ding_lite.options.run_options import ALSO_SETTINGS, OF_ENVS, OF_FILES
from ding_lite.recipes.table import RECIPES
from ding_lite.runtime.context import LOCAL_KEYS
from ding_lite.settings.environment import PREFIX, Settings
from tests.docpages import blocks
from tests.middleware.test_context_blocks import block_of
from tests.peers import page as peers
from tests.test_docs import PAGES
from tests.test_public_api import MODULES, public_names

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"

FORMER_NAMES = {"ding_lite.framework", "ding_lite.framework.wrapper", "ding_lite.rl_utils"}
"""Modules of DI-engine's names; the pages show ours."""


def table_rows(page: str) -> list[list[str]]:
    """Read the cells of all tables of a page, without headings."""
    lines = (REFERENCE / page).read_text().splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith(("| `", "| [`"))]
    assert rows
    return [[cell.strip() for cell in row] for row in rows]


def test_environment_lists_every_setting_with_its_default_and_meaning() -> None:
    shown = {name.strip("`"): cells for name, *cells in table_rows("environment.md")}
    docs = sentences_of(Settings)

    def default(value: object) -> str:
        if isinstance(value, bool):
            return str(int(value))
        return "none" if value in (None, ()) else str(value)

    assert shown == {
        PREFIX + field.name.upper(): [default(field.default), docs[field.name]]
        for field in fields(Settings)
    }


def test_the_command_line_lists_the_options_that_a_file_may_have() -> None:
    text = (REFERENCE / "command-line.md").read_text()
    listed = text.partition("may have all settings and these options:")[2].partition(":\n")[0]
    known = {*OF_FILES, *OF_ENVS, *ALSO_SETTINGS, "search"} - {"env"}
    assert set(re.findall("`([a-z_]+)`", listed)) == known


def test_settings_lists_all_defaults_and_presets(request: pytest.FixtureRequest) -> None:
    page = REFERENCE / "settings.md"
    if request.config.getoption("--update-snapshots"):
        page.write_text(settings_page())
    assert page.read_text() == settings_page()


def settings_page() -> str:
    """Render the settings of all policies: their defaults, and the values of their presets."""
    defaults = {
        name: {
            field.name: field.default
            for config in (recipe.policy_config, recipe.config)
            for field in fields(config)
        }
        for name, recipe in RECIPES.items()
    }
    names = dict.fromkeys(name for of_policy in defaults.values() for name in of_policy)
    titles = [recipe.policy.__name__ for recipe in RECIPES.values()]
    lines = [
        "# Settings",
        "",
        "The settings (hyperparameters) of `ding-lite train`: `--set NAME=VALUE` in the command",
        "line, `train(..., NAME=VALUE)` in Python. `ding-lite train POLICY ENV --settings` also",
        "says what each means, and `DQNConfig` and the like have the same names. This page is made",
        "from the code.",
        "",
        "## Defaults",
        "",
        f"| setting | {' | '.join(titles)} |",
        "|---|" + "---|" * len(titles),
    ]
    for name in names:
        cells = [shown(each[name]) if name in each else "" for each in defaults.values()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    lines += [
        "",
        "## Presets",
        "",
        "All values of each preset that are not defaults. [Presets](presets.md) names their",
        "sources.",
    ]
    for title, (name, recipe) in zip(titles, RECIPES.items(), strict=True):
        if recipe.presets:
            lines += ["", f"### {title}", "", "| environment | values |", "|---|---|"]
        for env, preset in recipe.presets.items():
            other = {k: v for k, v in preset.items() if defaults[name].get(k, ...) != v}
            values = ", ".join(f"`{key}={shown(value)}`" for key, value in other.items())
            lines.append(f"| `{env}` | {values} |")
    return "\n".join(lines) + "\n"


def shown(value: object) -> str:
    """Return a value as `--set` takes it."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, tuple | list):
        return ",".join(map(shown, value)) if value else "none"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value}" if isinstance(value, str | int) else repr(value)


def test_presets_lists_the_environments_of_four_policies() -> None:
    shown: dict[str, set[str]] = {"ppo": set(), "dqn": set(), "sac": set(), "td3": set()}
    for cells in table_rows("presets.md"):
        for name, cell in zip(shown, cells[1:], strict=False):
            shown[name] |= set(re.findall("`(.+?)`", cells[0])) if cell else set()
    assert shown == {name: set(RECIPES[name].presets) for name in shown}


def test_errors_lists_every_class_with_the_builtin_it_is() -> None:
    shown = {}
    for name, bases in table_rows("errors.md"):
        shown[re.sub(r"[\[\]`]|\(.*\)", "", name)] = set(re.findall(r"`(\w+)`", bases))

    defined = {
        name: {base.__name__ for base in cls.__bases__ if base is not errors.DingLiteError}
        for name, cls in vars(errors).items()
        if inspect.isclass(cls) and issubclass(cls, errors.DingLiteError)
    }
    del defined["DingLiteError"]
    assert shown == defined


def test_each_error_is_raised_somewhere_and_explained() -> None:
    page = (REFERENCE / "errors.md").read_text()
    source = "\n".join(file.read_text() for file in Path(errors.__file__).parent.rglob("*.py"))
    for name, _ in table_rows("errors.md"):
        bare = re.sub(r"[\[\]`]|\(.*\)", "", name)
        assert re.search(rf"(?<!class ){bare}\(", source), bare
        assert f"\n## {bare}\n" in page, bare


def test_the_page_of_ctx_keys_names_all_readers_and_writers_of_each_key() -> None:
    middleware = [name for name in mw.__all__ if not name.startswith("resume")]
    blocks = {name: block_of(getattr(mw, name)) for name in middleware}
    shown = {cells[0].strip("`"): cells for cells in table_rows("ctx-keys.md")}
    touched = set().union(*(each.reads | each.writes | each.keeps for each in blocks.values()))
    assert set(shown) == touched | {"total_step", "finish"}

    def named(cell: str) -> set[str]:
        return set(re.findall(r"\w+", cell)) & set(mw.__all__)

    for key, (_, _, writers, readers, kept, sent) in shown.items():
        assert named(writers) == {name for name in blocks if key in blocks[name].writes}, key
        assert named(readers) == {name for name in blocks if key in blocks[name].reads}, key
        if key not in ("total_step", "finish"):
            is_kept = any(key in block.keeps for block in blocks.values())
            assert (kept == "yes") == is_kept, key
            assert (sent == "no") == (key in LOCAL_KEYS), key


def test_the_table_in_readme_is_that_of_the_newest_run_beside_peers() -> None:
    page = (ROOT / "README.md").read_text()
    _, _, after = page.partition("<!-- peers: make bench-peers writes this table -->\n")
    table, end, _ = after.partition("<!-- end of peers -->")
    assert end
    assert table == peers.summary(peers.newest())
    assert (peers.FOLDER / "README.md").read_text() == peers.markdown(peers.newest())


@pytest.fixture(scope="module")
def used_names() -> set[str]:
    """Collect the names that the programs of README.md and docs/ use, beyond importing them."""
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    code = [each for page in pages for each in blocks(page.read_text())]
    return set().union(
        *(names_in(each.code) for each in code if each.language == "python" and each.run)
    )


def names_in(code: str) -> set[str]:
    """Collect the names and attributes of a program, and of programs in its strings."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and "\nfrom ding_lite import" in str(node.value):
            names |= names_in(str(node.value))
    return names


@pytest.mark.parametrize("module", [name for name in MODULES if name not in FORMER_NAMES])
def test_every_public_name_is_used_in_a_program_of_the_docs(used_names, module: str) -> None:
    names = {name for name in public_names(importlib.import_module(module)) if name[0] != "_"}
    assert names <= used_names

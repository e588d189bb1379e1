"""Build the site: `make site` runs mkdocs, which calls the functions below that begin with `on_`.

They write the reference of the Python names from tests/public_api.txt, one page for each public
module, and fail the build when a name has no entry on its page. Nothing of ding_lite is imported:
mkdocstrings reads the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from html import unescape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_API = ROOT / "tests" / "public_api.txt"
_MODULE = re.compile(r"^== (ding_lite[\w.]*)$")
_NAME = re.compile(r"^(?:class |def |module )?(?P<name>\w+)(?: \(from (?P<home>[\w.]+)\))?")
_MEMBER = re.compile(r"^    (?:@\w+ )?(?P<name>\w+)")
_FENCE_WORDS = re.compile(r"^( *```python)(?: alone| no-run)+ *$", re.MULTILINE)
_CELL = re.compile(r"<(table|tr|td)\b(?=[^>]*>)")
_CONTEXT = re.compile(r"^Context:\n((?: {4}.*\n)+)", re.MULTILINE)


@dataclass(frozen=True)
class Name:
    module: str
    """The public module from which it is imported."""
    name: str
    home: str | None
    """The module that defines it, where that belongs to another public module."""
    members: list[str] = field(default_factory=list, compare=False)
    """The public attributes and methods of a class."""

    @property
    def path(self) -> str:
        """What its entry is found by."""
        return f"{self.module}.{self.name}"


def public_names(text: str) -> dict[str, list[Name]]:
    """Read the names of each public module from the list of them."""
    found: dict[str, list[Name]] = {}
    module = None
    for line in text.splitlines():
        if line.startswith("== "):
            heading = _MODULE.match(line)
            module = heading[1] if heading else None
        elif module and (match := _NAME.match(line)):
            found.setdefault(module, []).append(Name(module, match["name"], match["home"]))
        elif module and (match := _MEMBER.match(line)) and match["name"] != "__init__":
            found[module][-1].members.append(match["name"])
    return found


NAMES = public_names(PUBLIC_API.read_text())


def reference_page(module: str, public: Mapping[str, Sequence[Name]]) -> str:
    """Write the page of a module, for mkdocstrings to fill in."""
    lines = [f"# {module}", "", f"::: {module}", "    options:"]
    lines += ["      members: false", "      show_root_heading: false"]
    lines += ["      show_root_toc_entry: false", ""]
    elsewhere = {name: entry for name in public[module] if (entry := _entry_of(name, public))}
    if elsewhere:
        lines += ["| name | described as |", "|---|---|"]
    for name, entry in elsewhere.items():
        link = f"[`{entry}`]({entry.rpartition('.')[0]}.md#{entry})"
        lines.append(f"| [](){{#{name.path}}} `{name.name}` | {link} |")
    for name in public[module]:
        if name not in elsewhere:
            source = _source_of(name)
            lines += ["", *([] if source == name.path else [f"[](){{#{name.path}}}", ""])]
            lines.append(f"::: {source}")
    return "\n".join(lines) + "\n"


def _entry_of(name: Name, public: Mapping[str, Sequence[Name]]) -> str | None:
    around = [other for other in public if f"{name.home}.".startswith(f"{other}.")]
    owner = max(around, key=len, default="")
    others = public.get(owner, [])
    return f"{owner}.{name.name}" if any(name.name == other.name for other in others) else None


def _source_of(name: Name) -> str:
    """Return the path of a name; the path of its definition where a submodule has the same name."""
    package = ROOT / name.module.replace(".", "/")
    if not ((package / f"{name.name}.py").exists() or (package / name.name).is_dir()):
        return name.path
    for node in ast.parse((package / "__init__.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and name.name in {each.name for each in node.names}:
            return f"{node.module}.{name.name}"
    return name.path


def without_entry(names: Iterable[Name], html: str) -> list[str]:
    """Return the names and members that have no entry on the page of their module."""
    anchors = {unescape(each) for each in re.findall(r'\bid="([^"]+)"', html)}
    paths = [
        f"{name.path}{member}"
        for name in names
        for member in ("", *(f".{member}" for member in name.members))
    ]
    return [path for path in paths if path not in anchors]


def all_pages(docs: Path) -> list[str]:
    """Return the pages of the site, by name; those of the reference in the order of the list."""
    written = sorted(file.relative_to(docs).as_posix() for file in docs.rglob("*.md"))
    return [*written, *(f"api/{module}.md" for module in NAMES)]


def expanded(nav: Any, pages: Iterable[str]) -> Any:
    """Put in place of each `folder/*` of the nav the pages that it does not name elsewhere."""
    named = set(_leaves(nav))
    pages = [page for page in pages if page not in named]

    def expand(item: Any) -> Any:
        if isinstance(item, dict):
            return {title: expand(inner) for title, inner in item.items()}
        if isinstance(item, list):
            return [each for inner in item for each in _as_list(expand(inner))]
        return [page for page in pages if fnmatch(page, item)] if item.endswith("/*") else item

    return expand(nav)


def _as_list(item: Any) -> list[Any]:
    return item if isinstance(item, list) else [item]


def _leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from _leaves(item)


def in_google_style(docstring: str) -> str:
    """Make the sections `Example:` and `Context:` of a docstring what mkdocstrings knows."""
    docstring = re.sub(r"^Example:$", "Examples:", docstring, flags=re.MULTILINE)
    return _CONTEXT.sub(lambda block: re.sub(r"(?m)^ {4}(?=\w)", "    - ", block[0]), docstring)


# -- called by mkdocs -----------------------------------------------------------------------


def on_config(config: Any) -> Any:
    config.nav = expanded(config.nav, all_pages(Path(config.docs_dir)))
    config.watch.append(str(PUBLIC_API))
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for module in NAMES:
        page = reference_page(module, NAMES)
        files.append(File.generated(config, f"api/{module}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Leave out what only the tests of the pages read, and read Markdown inside of tables.

    A search shows guides before pages of these folders, and the first page has no other beside it.
    """
    if page and page.file.src_uri.startswith(("api/", "benchmarks/", "design/")):
        page.meta["search"] = {"boost": 0.3}
    if page and page.is_homepage:
        page.meta["hide"] = ["navigation"]
    markdown = _FENCE_WORDS.sub(r"\1", markdown)
    return _CELL.sub(r"<\1 markdown", markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Fail the build where a public name has no entry."""
    from mkdocs.exceptions import PluginError

    module = page.file.src_uri.removeprefix("api/").removesuffix(".md")
    if page.file.src_uri.startswith("api/") and (missing := without_entry(NAMES[module], output)):
        raise PluginError(f"{page.file.src_uri} has no entry for {', '.join(missing)}")
    return output

"""The site has all pages, and an entry for each public name; `make site` builds it strictly."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.site import pictures
from tests.site.hooks import (
    NAMES,
    all_pages,
    expanded,
    in_google_style,
    on_page_markdown,
    reference_page,
    without_entry,
)
from tests.site.recordings import Frame, Run, svg
from tests.test_public_api import MODULES, public_names

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
        return
    for item in nav.values() if isinstance(nav, dict) else nav:
        yield from leaves(item)


def test_the_nav_names_each_page_once() -> None:
    assert Counter(leaves(expanded(CONFIG["nav"], all_pages(DOCS)))) == Counter(all_pages(DOCS))


def test_a_star_in_the_nav_is_the_pages_of_a_folder_that_it_does_not_name() -> None:
    nav = [{"First": ["a/2.md"]}, {"Rest": ["a/*", "b.md"]}]
    filled = expanded(nav, ["a/1.md", "a/2.md", "a/deep/3.md", "b.md"])
    assert filled == [{"First": ["a/2.md"]}, {"Rest": ["a/1.md", "a/deep/3.md", "b.md"]}]


def test_the_reference_has_the_public_names() -> None:
    found = {module: [name.name for name in names] for module, names in NAMES.items()}
    assert found == {name: public_names(importlib.import_module(name)) for name in MODULES}


@pytest.mark.parametrize("module", NAMES)
def test_each_entry_of_the_reference_is_read_from_where_the_name_is_defined(module: str) -> None:
    page = reference_page(module, NAMES)
    entries = set(re.findall(r"^::: ding_lite.*$|\(ding_lite[\w.]+\.md#.*?\)", page, re.MULTILINE))
    assert len(entries) == 1 + len(NAMES[module])
    for name in NAMES[module]:
        public = getattr(importlib.import_module(module), name.name)
        sources = [
            path
            for entry in entries
            if (path := entry.strip(":() ").partition("#")[2] or entry.strip(":() "))
            and path.endswith(f".{name.name}")
            and found(path) is public
        ]
        assert sources, name


def found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_a_public_name_or_method_without_an_entry_is_found() -> None:
    names = NAMES["ding_lite.parallel"] + NAMES["ding_lite.log"]
    html = '<h2 id="ding_lite.parallel.Parallel" class="doc">'
    missing = ["ding_lite.parallel.Parallel.runner", "ding_lite.log.configure"]
    assert without_entry(names, html) == missing


def test_examples_and_ctx_keys_of_a_docstring_become_sections() -> None:
    text = (
        "Do it.\n\nContext:\n    reads: a,\n        b\n    keeps: c\n\nExample:\n    >>> 1\n    1"
    )
    assert in_google_style(text) == (
        "Do it.\n\nContext:\n    - reads: a,\n        b\n    - keeps: c\n\n"
        "Examples:\n    >>> 1\n    1"
    )


def test_marks_for_the_tests_of_pages_are_left_out() -> None:
    text = "```python alone\nx = 1\n```\n<td>\n\n```python no-run\n```\n"
    assert on_page_markdown(text) == "```python\nx = 1\n```\n<td markdown>\n\n```python\n```\n"


def test_the_site_loads_nothing_from_other_hosts() -> None:
    assert CONFIG["theme"]["font"] is False
    assert "iframe-worker" in CONFIG["extra"]["polyfills"][0]  # or the theme takes one from a host
    own = [*CONFIG["extra_css"], *CONFIG["extra"]["polyfills"]]
    assert all((DOCS / file).is_file() for file in own)
    mermaid = [page.name for page in DOCS.rglob("*.md") if "```mermaid" in page.read_text()]
    assert mermaid == [], "The theme draws Mermaid by a program of another host."


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_pictures_of_nodes_are_as_the_program_draws_them(name: str) -> None:
    assert (DOCS / "images" / name).read_text() == pictures.DRAWN[name]()


@pytest.mark.parametrize(
    ("name", "at_most"),
    [("demo.svg", 300_000), ("top.svg", 300_000), ("before-and-after.gif", 500_000)],
)
def test_recordings_are_small(name: str, at_most: int) -> None:
    assert 1_000 < (DOCS / "images" / name).stat().st_size <= at_most


def test_a_recording_shows_each_row_for_its_time_and_ends_with_the_last_state() -> None:
    same, first, last = (Run(0, text, "#ffffff", False) for text in ("$ x", "50 %", "<done>"))
    picture = svg([Frame(0.0, ((same,), (first,))), Frame(2.5, ((same,), (last,)))], 20, "x")
    groups = re.findall(r"<g.*?</g>", picture, re.DOTALL)
    assert [re.sub(r"<text.*?>|</text>|\n", "", group) for group in groups] == [
        "<g>$ x</g>",
        '<g visibility="hidden"><set attributeName="visibility" to="visible" '
        'begin="loop.begin+0s" dur="2.5s"/>50 %</g>',
        '<g><set attributeName="visibility" to="hidden" begin="loop.begin" dur="2.5s"/>'
        "&lt;done&gt;</g>",
    ]

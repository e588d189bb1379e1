"""Pages as a browser reads them."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """An HTML page: its elements, and all texts within each; tags that do not close are faults."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    @classmethod
    def of(cls, file: str | Path) -> Page:
        """Read a file, which has nothing in it that a browser would run or fetch."""
        page = cls(Path(file).read_text())
        assert page.named("script") == []
        for name, attributes in page.elements:
            for key, value in attributes.items():
                assert not key.startswith("on")
                assert key not in ("src", "href") or value.startswith("data:")
            if name == "svg":
                assert attributes["role"] == "img"
                assert attributes["aria-label"]
            assert name != "img" or attributes["alt"]
        assert "http" not in Path(file).read_text().replace("http-equiv", "")
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open and data.strip():
            self.texts.append(data.strip())

    def named(self, name: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.elements if tag == name]

    def of_class(self, name: str) -> list[dict[str, str]]:
        return [own for _, own in self.elements if name in own.get("class", "").split()]

"""Show all sections of our docstrings: an extension of mkdocstrings, named in mkdocs.yml."""

from __future__ import annotations

from typing import Any

import griffe

from tests.site.hooks import in_google_style


class OurSections(griffe.Extension):  # type: ignore[misc]
    """Rewrite each docstring before it is parsed."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = in_google_style(obj.docstring.value)

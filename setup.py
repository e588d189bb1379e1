"""Everything about the package stands in setup.cfg, but for the text that an index shows of it."""

import re
from configparser import RawConfigParser
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
_LINK = re.compile(r"(?<!\w)(?P<image>!?)\[(?P<words>[^\[\]]*)\]\((?P<target>[^)\s]+)\)")


def readme(text: str, url: str, version: str) -> str:
    """Return README.md for an index page, on which relative links lead nowhere.

    They lead to the files of this version below `url`. Without a `url` their words stay, and
    pictures are left out.
    """

    def absolute(link: re.Match[str]) -> str:
        image, words, target = link["image"], link["words"], link["target"]
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        if not url:
            return "" if image else words
        kind = "raw" if image else "blob"
        return f"{image}[{words}]({url.rstrip('/')}/{kind}/v{version}/{target})"

    return _LINK.sub(absolute, text)


def main() -> None:
    """Build the package."""
    settings = RawConfigParser()
    settings.read(ROOT / "setup.cfg")
    url = settings.get("metadata", "url", fallback="")
    found = re.search(r'__version__ = "(.+)"', (ROOT / "ding_lite" / "version.py").read_text())
    assert found
    setup(long_description=readme((ROOT / "README.md").read_text(), url, found[1]))


if __name__ == "__main__":
    main()

"""Make a release: `make release` builds and checks it, and `make release ARGS=--tag` also tags it.

It refuses a tree with changes, a version without a section in CHANGELOG.md, and a version of which
another commit has the tag.
Nothing leaves the machine: it prints the commands that publish what it has made.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def version_of(root: Path) -> str:
    text = (root / "ding_lite" / "version.py").read_text()
    return str(re.findall(r'__version__ = "(.+)"', text)[0])


def section_of(version: str, changelog: str) -> str:
    """Return the section of the changelog for a version, or an empty string."""
    heading = rf"^## {re.escape(version)}\b.*\n"
    found = re.search(rf"{heading}(?P<text>(?:(?!## ).*\n?)*)", changelog, re.MULTILINE)
    return found["text"].strip() if found else ""


def tagged_commit(root: Path, version: str) -> str:
    """Return the commit that has the tag of a version, or nothing."""
    has_tag = git(root, "tag", "--list", f"v{version}")
    return git(root, "rev-list", "-n1", f"v{version}") if has_tag else ""


def refusals(root: Path) -> list[str]:
    """Return the reasons not to make a release of a clone."""
    version = version_of(root)
    found = []
    if changes := git(root, "status", "--porcelain"):
        found.append(f"The tree has changes; commit them first:\n{changes}")
    if not section_of(version, (root / "CHANGELOG.md").read_text()):
        found.append(
            f"CHANGELOG.md says nothing below `## {version}`, the version of ding_lite/version.py."
            " Move what is below `## Unreleased` there."
        )
    if tagged_commit(root, version) not in ("", git(root, "rev-parse", "HEAD")):
        found.append(
            f"Another commit has the tag v{version}; raise the version in ding_lite/version.py."
        )
    return found


def build(root: Path) -> list[Path]:
    """Build the source archive and the wheel, and check the page that an index shows for them."""
    made = root / "dist"
    for old in made.glob("ding_lite-*"):
        old.unlink()
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(root)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    files = sorted(made.glob("ding_lite-*"))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    return files


def main(root: Path) -> int:
    """Make the release of a clone; return the exit code."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--tag", action="store_true", help="tag this commit with the version")
    arguments = parser.parse_args()
    if found := refusals(root):
        sys.stderr.write("\n".join(found) + "\nNo release was made.\n")
        return 1
    version = version_of(root)
    files = build(root)
    settings = RawConfigParser()
    settings.read(root / "setup.cfg")
    if not settings.has_option("metadata", "url"):
        sys.stdout.write("setup.cfg has no `url`: the page on an index will have no links.\n")
    sys.stdout.write("".join(f"Built {file.relative_to(root)}\n" for file in files))
    publish = f"twine upload {' '.join(str(file.relative_to(root)) for file in files)}"
    if arguments.tag and not tagged_commit(root, version):
        notes = section_of(version, (root / "CHANGELOG.md").read_text())
        message = f"ding_lite {version}\n\n{notes}"
        git(root, "tag", "--annotate", f"v{version}", "--cleanup=verbatim", "--message", message)
        sys.stdout.write(f"Tagged v{version}\n")
        publish = f"git push origin v{version} && {publish}"
    sys.stdout.write(f"To publish: {publish}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))

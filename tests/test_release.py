"""A release needs a clean tree, a section in the changelog, and links that work elsewhere."""

from __future__ import annotations

import re
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest
import yaml

import ding_lite
from setup import readme
from tests import release
from tests.release import git, refusals, section_of

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = (
    "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-12-01)\n\n- A change.\n\n## 0.1.0\n\n- One.\n"
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "ding_lite").mkdir()
    (tmp_path / "ding_lite" / "version.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.name", "A")
    git(tmp_path, "config", "user.email", "a@example.org")
    commit(tmp_path)
    return tmp_path


def commit(clone: Path) -> None:
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--allow-empty", "--message", "A commit")


def test_a_clean_tree_with_a_section_of_its_version_may_be_released(clone: Path) -> None:
    assert refusals(clone) == []


@pytest.mark.parametrize("file", ["CHANGELOG.md", "new.py"])
def test_a_tree_with_changes_is_refused(clone: Path, file: str) -> None:
    (clone / file).write_text(CHANGELOG + "More.\n")
    (refusal,) = refusals(clone)
    assert "The tree has changes" in refusal
    assert file in refusal


@pytest.mark.parametrize(
    "changelog",
    [
        CHANGELOG.replace("0.2.0 (", "0.3.0 ("),
        CHANGELOG.replace("0.2.0 (", "0.2.01 ("),
        CHANGELOG.replace("- A change.\n", ""),
    ],
)
def test_a_version_without_a_section_in_the_changelog_is_refused(clone, changelog) -> None:
    (clone / "CHANGELOG.md").write_text(changelog)
    commit(clone)
    (refusal,) = refusals(clone)
    assert "CHANGELOG.md says nothing below `## 0.2.0`" in refusal


def test_a_version_of_another_commit_is_refused(clone: Path) -> None:
    git(clone, "tag", "v0.2.0")
    assert refusals(clone) == []
    commit(clone)
    (refusal,) = refusals(clone)
    assert "Another commit has the tag v0.2.0" in refusal


def test_the_source_distribution_has_what_the_readme_refers_to() -> None:
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines()]
    packed = {name for verb, *names in lines if verb in ("include", "graft") for name in names}
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"\]\(([^)#:]+)\)", text)) | {"examples"}
    assert {target.split("/")[0] for target in targets} - packed - {"LICENSE"} == set()


def test_the_source_distribution_has_no_file_that_needs_the_tests() -> None:
    text = (ROOT / "MANIFEST.in").read_text()
    assert "prune tests" in text.splitlines()
    included = {name for line in text.splitlines() if line[0] != "#" for name in line.split()[1:]}
    assert {"Makefile", "mkdocs.yml"} & included == set()


def test_a_refused_release_builds_nothing(clone, monkeypatch, capsys) -> None:
    (clone / "new.py").touch()
    monkeypatch.setattr(sys, "argv", ["release", "--tag"])
    assert release.main(clone) == 1
    assert "No release was made." in capsys.readouterr().err
    assert not (clone / "dist").exists()
    assert git(clone, "tag") == ""


@pytest.mark.parametrize(("words", "tags"), [([], ""), (["--tag"], "v0.2.0")])
def test_a_release_is_tagged_on_request(clone, monkeypatch, words, tags) -> None:
    monkeypatch.setattr(sys, "argv", ["release", *words])
    monkeypatch.setattr(release, "build", lambda root: [root / "dist" / "ding_lite-0.2.0.tar.gz"])
    assert release.main(clone) == 0
    assert git(clone, "tag") == tags
    if tags:
        notes = git(clone, "tag", "--list", "--format=%(contents)")
        assert notes == "ding_lite 0.2.0\n\n- A change."


def test_a_section_of_the_changelog_ends_at_the_next_one() -> None:
    assert section_of("0.2.0", CHANGELOG) == "- A change."
    assert section_of("0.1.0", CHANGELOG) == "- One."
    assert section_of("Unreleased", CHANGELOG) == ""


def test_links_of_the_readme_lead_to_the_files_of_the_version_on_an_index_page() -> None:
    text = "See [a](docs/a.md#b), ![c](docs/c.png), [d](https://example.org) and `x[0](y)`."
    assert readme(text, "https://host.example/o/r/", "0.2.0") == (
        "See [a](https://host.example/o/r/blob/v0.2.0/docs/a.md#b), "
        "![c](https://host.example/o/r/raw/v0.2.0/docs/c.png), [d](https://example.org) "
        "and `x[0](y)`."
    )
    assert readme(text, "", "0.2.0") == "See a, , [d](https://example.org) and `x[0](y)`."


@pytest.mark.parametrize("url", ["", "https://host.example/o/r"])
def test_all_links_of_our_readme_work_on_an_index_page(url: str) -> None:
    shown = readme((ROOT / "README.md").read_text(), url, "0.2.0")
    targets = re.findall(r"(?<!\w)\[[^\]]*\]\(([^)]*)\)", shown)
    assert [target for target in targets if not target.startswith(("https:", "#"))] == []
    assert "(docs/" not in shown


def test_the_citation_names_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == ding_lite.__version__
    assert citation["title"].startswith("ding_lite")


def test_each_job_of_the_workflow_runs_verbs_of_the_makefile() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    verbs = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for name, job in jobs.items():
        commands = [step["run"].split() for step in job["steps"] if "run" in step]
        assert commands, name
        assert all(make == "make" and verb in verbs for make, verb, *_ in commands), name


def test_each_dependency_is_imported_and_has_a_reason_in_the_design_notes() -> None:
    settings = RawConfigParser()
    settings.read(ROOT / "setup.cfg")
    needed = re.findall(r"^([\w-]+)>=", settings["options"]["install_requires"], re.MULTILINE)
    note = (ROOT / "docs" / "design" / "0014-the-house.md").read_text()
    listed = note.partition("## Dependencies")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)`", listed, re.MULTILINE) == needed
    source = "\n".join(file.read_text() for file in (ROOT / "ding_lite").rglob("*.py"))
    for package in needed:
        name = package.replace("pyzmq", "zmq")
        assert re.search(rf"(import|from) (torch\.utils\.)?{name}\b", source), package

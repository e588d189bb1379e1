"""There are no banned words, and no first lines that begin with a question word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import prose
from tests.prose import Place, areas, banned_words, riddles

AREAS = areas()


@pytest.mark.parametrize("area", AREAS)
def test_an_area_has_no_banned_words_and_no_first_line_with_a_question_word(area: str) -> None:
    found = [place for file in AREAS[area] for place in (*banned_words(file), *riddles(file))]
    assert not found, "\n".join(map(str, found))


BAD = [
    ('"""Tell whoever asks."""', 1),
    ("x = 1  # nobody\n# asks somebody\n\n# whose turn", 3),
    ('class A:\n    x: int\n    """Everybody\'s number, where none has one."""', 2),
    ("def test_a_node_who_waits(): ...", 1),
    ('"""None of them is there. No one asks. None is left."""', 3),
    ('raise ValueError("nobody knows")', 1),
    ('log(f"node {n} is nobody")', 1),
]
GOOD = [
    '"""Return None, where None is the value. None waits for ever; see `who`."""',
    'x = "who"\ndef who(): ...\n# the whole of it; a no one-way street; none, or all',
    '"""Nodes; none. None: no limit."""',
]


@pytest.mark.parametrize(("source", "count"), BAD)
def test_a_banned_word_is_found(house: Path, source: str, count: int) -> None:
    assert len(words(house / "ding_lite" / "x.py", source)) == count


@pytest.mark.parametrize("source", GOOD)
def test_code_and_values_are_not_checked(house: Path, source: str) -> None:
    assert words(house / "ding_lite" / "x.py", source) == []


def test_programs_in_strings_of_tests_are_not_checked(house: Path) -> None:
    assert words(house / "tests" / "x.py", 'x = "nobody is here"') == []


def test_code_of_pages_and_released_sections_of_a_changelog_are_not_checked(house: Path) -> None:
    page = "Who is `who`?\n```python\nwho = 1\n```\nIt is\nnobody."
    assert [place.line for place in words(house / "docs" / "x.md", page)] == [1, 6]
    past = "# Log\n\n## Unreleased\n\nwhose\n\n## 0.1\n\nwhose\n"
    assert len(words(house / "CHANGELOG.md", past)) == 1


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""What a node owes."""', 1),
        ('"""A node."""\nclass A:\n    """Whether it owes."""', 1),
        ('"""A node."""\nclass _A:\n    """How it owes."""', 0),
        ('class A:\n    x: int\n    """Whether it owes."""', 0),
    ],
)
def test_a_first_line_with_a_question_word_is_found(house: Path, source: str, count: int) -> None:
    file = house / "ding_lite" / "x.py"
    file.write_text(source)
    assert len([*riddles(file)]) == count


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    for folder in ("ding_lite", "tests", "docs"):
        (tmp_path / folder).mkdir()
    return tmp_path


def words(file: Path, source: str) -> list[Place]:
    """Return what is found in a file of this text."""
    file.write_text(source)
    return [*banned_words(file)]

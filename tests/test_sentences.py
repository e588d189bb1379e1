"""There are no banned words, and no first lines that begin with a question word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import prose
from tests.prose import areas, banned_words, riddles

AREAS = areas()


@pytest.mark.parametrize("area", AREAS)
def test_an_area_has_no_banned_words_and_no_first_line_with_a_question_word(area: str) -> None:
    found = [place for file in AREAS[area] for place in (*banned_words(file), *riddles(file))]
    assert not found, "\n".join(map(str, found))


CODE, TEST = "ding_lite/x.py", "tests/x.py"
TEXTS = [
    (CODE, '"""Tell whoever asks."""', [1]),
    (CODE, "x = 1  # nobody\n# asks somebody\n\n# whose turn", [1, 2, 4]),
    (CODE, 'class A:\n    x: int\n    """Everybody\'s number, where none has one."""', [3, 3]),
    (CODE, "def test_a_node_who_waits(): ...", [1]),
    (CODE, '"""None of them is there. No one asks. None is left."""', [1, 1, 1]),
    (CODE, 'raise ValueError("nobody knows")', [1]),
    (CODE, 'log(f"node {n} is nobody")', [1]),
    (CODE, '"""Return None, where None is the value. None waits for ever; see `who`."""', []),
    (CODE, 'x = "who"\ndef who(): ...\n# the whole of it; a no one-way street; none, or all', []),
    (CODE, '"""Nodes; none. None: no limit."""', []),
    (TEST, 'x = "nobody is here"', []),  # programs in strings of tests
    ("docs/x.md", "Who is `who`?\n```python\nwho = 1\n```\nIt is\nnobody.", [1, 6]),
    ("CHANGELOG.md", "# Log\n\n## Unreleased\n\nwhose\n\n## 0.1\n\nwhose\n", [5]),
]


@pytest.mark.parametrize(("path", "source", "lines"), TEXTS)
def test_banned_words_are_found_except_in_code(house: Path, path, source, lines) -> None:
    (house / path).write_text(source)
    assert [place.line for place in banned_words(house / path)] == lines


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

"""Every program of README.md and docs/ runs as printed, and every link has a target."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docpages import blocks, faults_of_page, program
from tests.warm import PROGRAMS, Warm, warm

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECONDS_PER_PAGE = 120.0
OPTIMIZERS = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes")
"""What PyTorch imports for an optimizer of a page, in a second."""


@pytest.fixture(scope="module")
def process() -> Iterator[Warm]:
    with warm([*PROGRAMS, *OPTIMIZERS]) as process:
        yield process


@pytest.mark.deadline(SECONDS_PER_PAGE)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_programs_and_links_of_a_page_are_right(process, page, tmp_path) -> None:
    faults = faults_of_page(page, tmp_path, process, seconds=SECONDS_PER_PAGE)
    assert not faults, "\n".join(faults)


def test_collectors_on_several_nodes_have_environments_with_seeds_of_their_own() -> None:
    found = [
        (page.name, block.code)
        for page in PAGES
        for block in blocks(page.read_text())
        if re.search(r"(collector|agent)\.use\(mw\.collect", block.code)
    ]
    assert len(found) >= 7
    alike = [name for name, code in found if not re.search("node_(seed|id)", code)]
    assert alike == []


GOOD = """
# A page

See [below](#second-part), [another](other.md#its-title) and [the web](https://example.org).

```python
x = 1 + 1
print(x)
# prints: 2
```

## Second part

```bash
rm -rf not-run
```

    ```python
    print("a"); print(f"{x:.3f} s")
    # prints:
    # a
    # ... s
    ```

```python no-run
undefined(x)
```
"""


ALONE = """
```python
x = 1
```

```python alone
print("x" in globals())
# prints: False
```

```python
print(x)
# prints: 1
```
"""


@pytest.mark.parametrize("page", [GOOD, ALONE])
def test_a_good_page_passes(process: Warm, tmp_path: Path, page: str) -> None:
    assert faults(process, tmp_path, page) == []


@pytest.mark.parametrize(
    ("was", "becomes", "complaint"),
    [
        ("# prints: 2", "# prints: 3", "page.md:7: says it prints\n  3\nbut prints\n  2"),
        ("# ... s", "# ... m", "but prints\n  a\n  2.000 s"),
        ("    # a\n", "", "but prints\n  a\n  2.000 s"),
        ("# prints: 2", "# prints: 2\nx += 1", "page.md:7: `# prints:` must start a line"),
        ("print(x)\n# prints", "print(x)  # prints", "page.md:7: `# prints:` must start a line"),
        ("x = 1 + 1", "x = 1 + ", "page.md:7: invalid syntax"),
        ("undefined(x)", "undefined(x", "page.md:26: '(' was never closed"),
        ("print(x)", "print(y)", "name 'y' is not defined"),
        ("print(x)", "raise SystemExit(3)", "exit code 3"),
        ("print(x)", "import time; time.sleep(300)", "still running after 5 s"),
        ("other.md#its", "other.md#no", "no heading for `other.md#no-title`"),
        ("other.md#its", "gone.md#its", "`gone.md#its-title` does not exist"),
        ("#second-part", "#third-part", "no heading for `#third-part`"),
        ("# A page", "![curve](curve.png)", "`curve.png` does not exist"),
        ("print(x)", "print(1 / 0)", "line 8, in <module>"),
        # of a block by itself, or behind it
        ("prints: False", "prints: True", "page.md:7: says it prints\n  True\nbut prints\n  False"),
        (
            "```python\nprint(x)",
            "```python\nprint(2 * x)",
            "page.md:12: says it prints\n  1\nbut prints\n  2",
        ),
        ('print("x"', '1 / 0; print("x"', "line 7, in <module>"),
    ],
)
def test_a_wrong_page_fails(process, tmp_path, was, becomes, complaint) -> None:
    page = GOOD if was in GOOD else ALONE
    assert was in page
    seconds = 5.0 if "time.sleep" in becomes else 60.0
    (fault,) = faults(process, tmp_path, page.replace(was, becomes), seconds=seconds)
    assert complaint in fault


def test_pages_run_in_their_own_folder_and_without_settings(process, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DING_LITE_LABELS", "learner")
    text = "```python\nimport os\nprint(sorted(os.listdir()), 'DING_LITE_LABELS' in os.environ)\n"
    text += "# prints: ['program.py'] False\n```\n"
    assert faults(process, tmp_path, text) == []
    assert "DING_LITE_LABELS" in os.environ


def test_a_page_may_start_nodes_which_import_it(process: Warm, tmp_path: Path) -> None:
    text = """
```python
from ding_lite import Parallel


def main() -> int:
    return 10 + Parallel().node_id
```

```python
if __name__ == "__main__":
    print(Parallel.runner(n_parallel_workers=2)(main))
# prints: [10, 11]
```

```python
if __name__ == "__main__":
    print("after that")
# prints: after that
```
"""
    assert faults(process, tmp_path, text, seconds=20.0) == []


def test_blocks_know_their_line_and_program_keeps_it() -> None:
    assert [block.line for block in blocks(GOOD)] == [7, 15, 19, 26]
    assert program(blocks(GOOD)).splitlines()[6] == "x = 1 + 1"


def faults(process: Warm, folder: Path, text: str, *, seconds: float = 60.0) -> list[str]:
    (folder / "page.md").write_text(text)
    (folder / "other.md").write_text("# Its title\n")
    (folder / "run").mkdir()
    return faults_of_page(folder / "page.md", folder / "run", process, seconds=seconds)

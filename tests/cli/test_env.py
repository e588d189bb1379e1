"""`ding-lite env`."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from ding_lite.settings.environment import PREFIX, Settings, variables_set
from tests.cli.calls import Typed, on_a_terminal
from tests.parallel.launch.environs import MPICH, TORCHRUN

NAMES = [PREFIX + field.name.upper() for field in fields(Settings)]


def test_the_plain_table_has_every_variable_once(typed: Typed, tmp_path: Path) -> None:
    code, out, error = typed(tmp_path, "env", DING_LITE_LABELS=" gpu, fast ", DING_LITE_ROLES=" ")
    assert (code, error) == (0, "")
    heading, *lines = out.splitlines()
    assert heading.split() == ["name", "value", "source", "meaning"]
    assert [line.split()[0] for line in lines] == NAMES
    rows = {line.split()[0]: line.split(maxsplit=3)[1:] for line in lines}
    assert rows["DING_LITE_LABELS"] == [
        "gpu,fast",
        "environment",
        "Further labels of this node, separated by commas.",
    ]
    assert rows["DING_LITE_ROLES"][:2] == ["none", "default"]
    assert rows["DING_LITE_TORCH_THREADS"][:2] == ["1", "default"]
    assert rows["DING_LITE_ELASTIC"][:2] == ["0", "default"]
    assert {row[1] for name, row in rows.items() if name != "DING_LITE_LABELS"} == {"default"}


def test_json_has_values_as_they_were_understood(typed: Typed, tmp_path: Path) -> None:
    code, out, error = typed(
        tmp_path, "env", "--json", DING_LITE_NUM_NODES="3", DING_LITE_PORTS="7000,7001",
        DING_LITE_TORCH_THREADS="1",
    )  # fmt: skip
    assert (code, error) == (0, "")
    rows = json.loads(out)
    assert [row["name"] for row in rows] == NAMES
    assert all(set(row) == {"name", "value", "source", "meaning"} for row in rows)
    assert all(row["meaning"].endswith(".") for row in rows)
    values = {row["name"]: row["value"] for row in rows}
    assert values["DING_LITE_NUM_NODES"] == 3
    assert values["DING_LITE_PORTS"] == [7000, 7001]
    assert values["DING_LITE_NODE_ID"] is None
    sources = {row["name"]: row["source"] for row in rows}
    assert sources["DING_LITE_TORCH_THREADS"] == "environment"  # although it is the default


def test_a_wrong_variable_is_shown_as_it_was_typed_and_explained(typed, tmp_path) -> None:
    code, out, error = typed(tmp_path, "env", DING_LITE_NODE_ID="first")
    assert code == 2
    [line] = [line for line in out.splitlines() if line.startswith("DING_LITE_NODE_ID ")]
    assert line.split()[1:3] == ["first", "environment"]
    assert error.startswith("ding-lite env: DING_LITE_NODE_ID is 'first'; a whole number was")

    code, out, error = typed(tmp_path, "env", DING_LITE_LABLES="a")
    assert code == 2
    assert out.count("\n") == len(NAMES) + 1
    assert 'Did you mean "DING_LITE_LABELS"?' in error


def test_what_a_launcher_says_is_listed_with_its_name(typed: Typed, tmp_path: Path) -> None:
    given: Any = {**TORCHRUN, "DING_LITE_PORTS": "7000", "DING_LITE_LABELS": "gpu"}
    code, out, error = typed(tmp_path, "env", "--json", **given)
    assert (code, error) == (0, "")
    found = {row["name"]: (row["value"], row["source"]) for row in json.loads(out)}
    assert found.pop("DING_LITE_NUM_NODES") == (3, "torchrun")
    assert found.pop("DING_LITE_NODE_ID") == (1, "torchrun")
    assert found.pop("DING_LITE_PORTS") == ([7000], "environment")
    assert found.pop("DING_LITE_LABELS") == (["gpu"], "environment")
    assert {source for _, source in found.values()} == {"default"}


def test_a_launcher_is_described_below_the_table(typed: Typed, tmp_path: Path) -> None:
    given: Any = TORCHRUN
    code, out, error = typed(tmp_path, "env", **given)
    assert (code, error) == (0, "")
    *_, empty, described = out.splitlines()
    assert empty == ""
    assert re.fullmatch(
        r"torchrun has started this process as node 1 of 3\. "
        r"Node 0 is found at 127\.0\.0\.1:\d+ by all of them\.",
        described,
    )
    untold: Any = {**MPICH, "MASTER_ADDR": ""}
    _, out, _ = typed(tmp_path, "env", **untold)
    assert "node 2 of 5, without the host of node 0. Set MASTER_ADDR" in out.splitlines()[-1]


def test_a_launcher_that_is_contradicted_is_explained_below_the_table(typed, tmp_path) -> None:
    given: Any = {**TORCHRUN, "DING_LITE_NUM_NODES": "4"}
    code, out, error = typed(tmp_path, "env", **given)
    assert code == 2
    assert out.count("\n") == len(NAMES) + 1
    assert error.startswith("ding-lite env: DING_LITE_NUM_NODES is 4, but torchrun has started")


def test_a_terminal_gets_a_table_as_wide_as_it_is(tmp_path: Path) -> None:
    text = shown_on_a_terminal(tmp_path, columns=80)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > len(NAMES) + 1  # some meanings need two lines
    assert [word for word in text.split() if word.startswith("DING_LITE_")] == NAMES
    assert any(line.split()[1:3] == ["[bold]", "environment"] for line in lines)


def test_a_terminal_too_narrow_for_the_table_gets_whole_words(tmp_path: Path) -> None:
    lines = shown_on_a_terminal(tmp_path, columns=40).splitlines()
    assert [line.split()[0] for line in lines] == ["name", *NAMES]
    assert lines[0].split() == ["name", "value", "source", "meaning"]


def shown_on_a_terminal(folder: Path, *, columns: int) -> str:
    code, text = on_a_terminal(folder, "env", columns=columns, DING_LITE_LABELS="[bold]")
    assert code == 0, text
    return text


def test_only_our_variables_that_are_not_empty_count_as_set() -> None:
    environ = {"HOME": "/", "DING_LITE_ROLES": " ", "DING_LITE_X": " 1 ", "DING_LITE_LABELS": "a"}
    assert variables_set(environ) == {"DING_LITE_LABELS": "a", "DING_LITE_X": "1"}

"""The parts of the comparison with other packages that do not need these packages."""

from __future__ import annotations

import pytest

from tests.peers import __main__ as command, page
from tests.peers.environments import INSTALLS, SHARED, python_of
from tests.peers.workloads import LOCAL, OURS, PLAIN, WORKLOADS, sides_of


def test_a_workload_has_a_program_of_ours_first_and_peers_that_can_be_installed() -> None:
    for name in WORKLOADS:
        ours, *others = sides_of(name)
        assert ours == OURS, name
        assert others, name
        assert {SHARED.get(side, side) for side in others} - {*LOCAL} <= INSTALLS.keys(), name
        assert {OURS, *others} <= page.NAMES.keys(), name


@pytest.mark.procs
def test_a_program_prints_the_numbers_of_its_workload() -> None:
    reported = command.run(python_of(OURS), "middleware", OURS, {"count": 5})
    plain = command.run(python_of(PLAIN), "middleware", PLAIN, {"count": 5})
    assert reported["version"].startswith("ding_lite ")
    assert reported["cost"] > plain["cost"] > 0.0


def test_a_peer_that_fails_is_left_out_of_all_sizes_and_ours_ends_the_run(monkeypatch, capsys):
    failing = "di_engine"

    def run(python: str, name: str, side: str, size: dict[str, int]) -> dict[str, object]:
        if side == failing and size["count"] == 5:
            raise command.SideFailed("it has failed: no memory")
        return {"version": side, "cost": 1.0}

    monkeypatch.setattr(command, "python_of", str)
    monkeypatch.setattr(command, "run", run)
    results = command.measure("middleware", 2, [""])
    assert [{*result["sides"]} for result in results] == [{OURS, PLAIN}] * 3
    assert "no memory\n  di_engine is left out" in capsys.readouterr().out
    failing = OURS
    with pytest.raises(SystemExit, match="no memory"):
        command.measure("middleware", 2, [""])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "no such workload: nothing; there are: dqn_update"),
        (["--rounds", "0"], "--rounds is 0; at least 1 was expected"),
    ],
)
def test_a_wrong_argument_is_an_error(words, message, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["tests.peers", *words])
    with pytest.raises(SystemExit):
        command.main()
    assert message in capsys.readouterr().err


RECORDS = {
    "ppo_steps": {
        "date": "2026-11-25T04:00:00+00:00",
        "commit": "abc",
        "rounds": 3,
        "machine": {"cores": 2, "cpu": "A CPU", "load_before": [0.1], "load_after": [1.2]},
        "results": [
            {
                "size": {"width": 64},
                "sides": {
                    "ding_lite": [
                        {"version": "ding_lite 1", "cost": cost, "note": "30,000 otherwise"}
                        for cost in (40_000.0, 44_000.0, 90_000.0)
                    ],
                    "plain": [{"version": "torch 2", "cost": cost} for cost in (9e3, 1.1e4, 1e4)],
                    "stable_baselines3": [{"version": "sb3 2", "cost": 11_000.0}] * 3,
                },
            }
        ],
    }
}


def test_the_page_and_the_readme_have_medians_and_ratios() -> None:
    text = page.markdown(RECORDS)
    assert "| ding_lite | 44,000 | ding_lite 1; 30,000 otherwise |" in text
    assert "| Stable-Baselines3 | 11,000 (4.0x) | sb3 2 |" in text
    assert "more is better. `ppo_steps`, 2026-11-25, commit abc, rounds: 3" in text
    assert text.index("Stable-Baselines3 |") < text.index("a plain loop |")  # the better one first
    [*_, row] = page.summary(RECORDS).splitlines()
    assert row.endswith("| **44,000** env steps/s | Stable-Baselines3 4.0x, a plain loop 4.4x |")


def test_the_page_takes_the_newest_run_of_each_workload(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    run = RECORDS["ppo_steps"]
    page.save("ppo_steps", run)
    page.save("ppo_steps", {**run, "date": "2026-11-26T04:00:00+00:00", "commit": "def"})
    page.save("replay", run)
    found = page.newest()
    assert {name: each["commit"] for name, each in found.items()} == {
        "ppo_steps": "def",
        "replay": "abc",
    }

"""`ding-lite report`: the page, from real runs and from damaged ones."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ding_lite.cli.main import main
from ding_lite.cli.report.figures import Line, chart, ticks
from ding_lite.cli.report.records import Record, rates
from ding_lite.recipes.runs import video
from ding_lite.recipes.runs.directory import Lock
from ding_lite.recipes.runs.results import read_result
from tests.cli.calls import ROOT
from tests.cli.report.pages import Page
from tests.recipes.runs.test_results import leave
from tests.warm import Warm

pytestmark = pytest.mark.usefixtures("_here")
EVIL = "<script>alert('1')</script>&\"<b>"


def written(*words: str) -> Page:
    assert main(["report", *words, "--out", "page.html"]) == 0
    return Page.of("page.html")


def test_seeds_are_one_curve_with_a_band_and_other_settings_another(runs, capsys) -> None:
    page = written(str(runs / "runs/dqn"), "--no-video")
    assert capsys.readouterr().out == "Written to page.html\n"
    assert {"dqn on CartPole-v1", "lr 0.003 (3 seeds)", "lr 0.25"} <= set(page.texts)
    assert any("median" in text and "least to the greatest" in text for text in page.texts)
    charts = page.named("svg")
    assert charts[0]["aria-label"].startswith("Evaluations: return of greedy episodes over env")
    assert {own["class"] for own in page.of_class("band")} == {"band c0"}
    assert {"curve c0", "curve c1"} == {own["class"] for own in page.of_class("curve")}
    for number in (1, 2, 3, 4):
        assert str(runs / f"runs/dqn/CartPole-v1/{number}") in page.texts
    assert {"done", "target 475", "Time by stage", "train", "collect", "evaluate"} <= set(
        page.texts
    )
    assert "12 evaluations" in page.texts


def test_settings_versions_and_the_command_are_told(runs: Path) -> None:
    page = written(str(runs / "runs/dqn"), "--no-video")
    assert page.texts[page.texts.index("lr") + 1 :][:2] == ["0.003", "0.25"]
    assert {"hidden", "max_env_steps", "320", "torch version"} <= set(page.texts)
    config = json.loads((runs / "runs/dqn/CartPole-v1/1/config.json").read_text())
    assert config["command"] is None  # by pytest, which is no program to repeat it by
    [commands] = [text for text in page.texts if text.startswith("ding-lite train")]
    first, *_ = commands.splitlines()
    assert first.startswith("ding-lite train dqn CartPole-v1 --config /")
    assert main([*first.split()[1:], "--quiet", "--out", "again"]) == 0
    again = json.loads(Path("again/config.json").read_text())
    assert {name: again[name] for name in ("options", "config")} == {
        name: config[name] for name in ("options", "config")
    }


def test_the_command_as_typed_is_recorded_without_its_directory() -> None:
    leave("r/1")
    config = json.loads(Path("r/1/config.json").read_text())
    typed = ["ding-lite", "train", "dqn", "a b", "--out", "r/1", "--resume", "--seed", "3"]
    Path("r/1/config.json").write_text(json.dumps({**config, "command": typed}))
    assert Record(read_result(Path("r/1"))).command == "ding-lite train dqn 'a b' --seed 3"
    foreign = {**config, "example": "mine", "command": ["rm", "-r", "/"]}
    Path("r/1/config.json").write_text(json.dumps(foreign))
    assert Record(read_result(Path("r/1"))).command == ""
    lines = {**config, "command": ["python", "x\ntouch y\r\x1b[2J\u2028"]}
    Path("r/1/config.json").write_text(json.dumps(lines))
    command = Record(read_result(Path("r/1"))).command
    assert command == "python 'x\\ntouch y\\r\\x1b[2J\\u2028'"
    Path("r/1/config.json").write_text(json.dumps(foreign))
    assert "# 'r/1': its command was not recorded" in written("r/1", "--no-video").texts


def test_the_pipeline_is_drawn_with_what_runs_where(runs: Path) -> None:
    run = Record(read_result(runs / "runs/dqn/CartPole-v1/1"))
    names = [stage.name for stage in run.pipeline]
    assert names[:4] == ["collect", "add_to", "train", "evaluate"]
    assert {stage.where for stage in run.pipeline} == {"every node"}
    assert {stage.name: stage.marks for stage in run.pipeline}["checkpoint"] == (
        "before and after the rest",
    )
    page = written(str(runs / "runs/dqn"), "--no-video")
    assert page.texts.count("Pipeline") == 1  # all runs have the same one
    drawn = page.texts[page.texts.index("every node") + 1 :]
    assert [text for text in drawn if text in names][: len(names)] == names


def test_a_population_has_its_lineage_and_hyperparameters(runs: Path) -> None:
    page = written(str(runs / "runs/evolve-dqn"), "--no-video")
    labels = [own["aria-label"] for own in page.named("svg")]
    assert any(label.startswith("Lineage of ") for label in labels)
    for name in ("fitness", "lr", "batch_size"):
        assert any(label.startswith(f"{name} over generation") for label in labels)
    lives = Record(read_result(runs / "runs/evolve-dqn/CartPole-v1/1")).lives
    circles = [own for own in page.of_class("kin") if "cx" in own]
    assert len(circles) == len(lives) > 3
    assert any("generation 0, agent 0 (first): fitness" in text for text in page.texts)


def test_names_of_a_run_are_text_and_nothing_else() -> None:
    folder = f"r/{EVIL.replace('/', '_')}"
    evil: dict[str, Any] = {EVIL: EVIL}
    leave(folder, env=EVIL, program=EVIL, **evil)
    leave("r/2", env=EVIL, program=EVIL, **{**evil, EVIL: "other"})
    path = Path(folder)
    life: dict[str, Any] = {"generation": 0, "place": 0, "id": 0, "parent": None, "mutation": EVIL}
    life |= {"fitness": 1.0, "hyperparameters": {EVIL: 2}}
    (path / "lineage.jsonl").write_text(json.dumps(life) + "\n")
    (path / "pipeline.txt").write_text(f"task on\n  1  {EVIL}  on {EVIL}, {EVIL}\n")
    node = {"node": 0, "labels": [EVIL], "state": EVIL, "total_step": EVIL}
    (path / "nodes.jsonl").write_text(json.dumps({"wall_s": 1, "nodes": [node]}) + "\n")
    (path / "result.json").write_text(json.dumps({"seconds": {EVIL: 1}, "eval_return": EVIL}))
    page = written("r", "--no-video")
    assert page.texts.count(EVIL) > 8
    assert {name for name, _ in page.elements}.isdisjoint({"b", "script"})


def test_a_video_of_the_best_policy_is_part_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "find_ffmpeg", lambda: None)
    monkeypatch.setattr("ding_lite.cli.report.report._STEPS", 3)
    words = ["--max-env-steps", "64", "--set", "hidden=8,", "--quiet", "--out", "here"]
    assert main(["train", "dqn", "ding_lite/Catch-v0", *words]) == 0
    page = written("here")
    [picture] = page.named("img")
    assert picture["src"].startswith("data:image/gif;base64,R0lGOD")
    assert picture["alt"].startswith("The policy plays an episode: return ")
    assert picture["alt"].endswith(" in 3 env steps")  # where it was cut
    assert written("here", "--no-video").named("img") == []


def test_what_keeps_a_video_from_being_made_is_told(runs: Path) -> None:
    shutil.copytree(runs / "runs/dqn/CartPole-v1/1", "r")
    shutil.rmtree("r/best")
    (Path("r/checkpoint") / "manifest.json").write_text("{")
    page = written("r")
    assert any("There is no video: The checkpoint in r/checkpoint" in text for text in page.texts)


def test_a_run_without_evaluations_or_with_half_a_line_has_a_page(runs: Path) -> None:
    leave("r", rows=1)
    texts = written("r", "--no-video").texts
    assert "Curves" in texts
    assert "Evaluations: return of greedy episodes" not in texts
    Path("r/metrics.jsonl").write_text('{"env_step": 8, "wall_s": 0.5, "loss": 1.0}\n')
    assert "Curves" not in written("r", "--no-video").texts
    shutil.copytree(runs / "runs/evolve-dqn/CartPole-v1/1", "half")
    for name in ("metrics.jsonl", "lineage.jsonl"):
        text = (Path("half") / name).read_text()
        (Path("half") / name).write_text(text[:-20])
    for name in ("result.json", "pipeline.txt", "nodes.jsonl"):
        (Path("half") / name).write_bytes(b'{"\xff\n[]\n{"nodes": 3}\n')
    page = written("half", "--no-video")
    assert any(label["aria-label"].startswith("Lineage") for label in page.named("svg"))
    assert "none yet" in page.texts


TRAINING = "* of training episodes, which explore, as the run has no evaluation"


@pytest.mark.parametrize(
    ("rows", "result", "told"),
    [
        (3, '{"eval_return": 3.0, "eval_episodes": 1}', {"1 evaluation", "3 in 1 episode"}),
        (1, None, {"5*", TRAINING}),
        (4, None, {"4.0 s", "none yet"}),
        (4, '{"eval_return": 3.0, "eval_episodes": 1, "wall_s": 116.51}', {"116.5 s"}),
    ],
    ids=["no plurals", "of training", "under way", "whole time"],
)
def test_the_numbers_of_a_run_are_told_with_what_they_are_of(rows, result, told) -> None:
    leave("r", rows=rows)
    if result:
        Path("r/result.json").write_text(result)
    texts = written("r", "--no-video").texts
    assert told <= {*texts}
    assert any("*" in text for text in texts) == (TRAINING in told)


def test_a_run_without_a_description_has_no_final_evaluation_to_wait_for() -> None:
    leave("r")
    Path("r/config.json").unlink()
    texts = written("r", "--no-video").texts
    assert {"unknown", "none"} <= set(texts)
    assert "none yet" not in texts


def test_nodes_have_a_state_only_while_the_run_goes_on() -> None:
    leave("r")
    node = {"node": 0, "labels": [], "state": "waiting", "total_step": 4}
    Path("r/nodes.jsonl").write_text(json.dumps({"wall_s": 1, "nodes": [node]}) + "\n")
    lock = Lock(Path("r"))
    assert "waiting" in written("r", "--no-video").texts
    lock.release()
    page = written("r", "--no-video")
    assert "Nodes and their messages" in page.texts
    assert "waiting" not in page.texts


def test_the_search_of_an_evolution_is_shown_as_on_the_command_line(runs: Path) -> None:
    texts = written(str(runs / "runs/evolve-dqn"), "--no-video").texts
    search = texts[texts.index("search") + 1]
    assert search.startswith("lr=")
    assert search.endswith(":log, batch_size=32:256")


def test_the_state_of_a_run_is_told(runs: Path) -> None:
    shutil.copytree(runs / "runs/dqn/CartPole-v1/1", "r")

    def state() -> str:
        return Record(read_result(Path("r"))).state

    assert state() == "done"
    lock = Lock(Path("r"))
    assert state() == "running"
    assert "running" in written("r", "--no-video").texts
    lock.release()
    Path("r/result.json").unlink()
    assert state() == "interrupted"
    Path("r/config.json").unlink()
    assert state() == "unknown"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["empty"], "There is no run in empty"),
        (["foreign"], "names no program"),
        (["damaged"], "is damaged: line 1 of 1 is no row"),
        (["new"], "have not written anything yet"),
        (["r", "--port", "8000"], "nothing is served without --live"),
        (["r", "--live", "--out", "x.html"], "nothing is written with --live"),
        (["r", "--out", "empty"], "empty is a directory"),
        (["r", "--out", "r/config.json/x"], "r/config.json cannot be made: it is there, and no"),
    ],
)
def test_what_makes_no_report_is_told_in_a_sentence(words, message, capsys) -> None:
    for name in ("r", "damaged", "new"):
        leave(name)
    for name in ("empty", "foreign"):
        Path(name).mkdir()
    Path("foreign/config.json").write_text('{"name": "of something else"}')
    Path("foreign/metrics.jsonl").write_text('{"env_step": 1, "wall_s": 1}\n')
    Path("damaged/metrics.jsonl").write_text("{\n")
    Path("new/metrics.jsonl").write_text("")
    assert main(["report", "--no-video", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_page_in_a_new_folder_of_the_run_in_this_one_names_the_run(monkeypatch) -> None:
    leave("r")
    monkeypatch.chdir("r")
    assert main(["report", ".", "--no-video", "--out", "new/page.html"]) == 0
    page = Page.of("new/page.html")
    assert str(Path.cwd()) in page.texts
    assert "." not in page.texts


def test_a_page_for_which_there_is_no_room_leaves_nothing_behind(capsys) -> None:
    leave("r")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        assert main(["report", "--no-video", "r"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "report.html cannot be written: File too large" in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["r"]


def test_an_axis_of_generations_has_whole_numbers_only() -> None:
    one = Line("agents", np.array([0.0, 1.0]), np.array([0.5, 0.25]))
    texts = [text.text for text in chart("fitness", [one], x_label="generation").iter("text")]
    assert texts[texts.index("generation") - 2 :] == ["0", "1", "generation"]


def test_counts_become_rates_and_begin_anew_with_a_node() -> None:
    points = [{"wall_s": s, "out": count} for s, count in ((1, 10), (3, 30), (4, 5), (4, 9))]
    seconds, rate = rates(points, ("out", "none"))
    assert (seconds.tolist(), rate.tolist()) == ([0, 1, 3, 4], [10, 10, 10, 0])


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3e9, 7e-3), (1e-300, 1e-299)])
def test_an_axis_has_a_few_round_numbers(low: float, high: float) -> None:
    assert 2 <= len(ticks(low, high, most=5)) <= 6


@pytest.mark.procs
def test_nodes_and_their_messages_are_recorded_and_drawn(process: Warm, tmp_path: Path) -> None:
    example = ROOT / "examples" / "impala_cartpole.py"
    words = ["--max-env-steps", "6000", "--target", "1000", "--out", "here"]
    message = process.run(example, *words, seconds=100.0, folder=tmp_path, finalize=False)
    assert message.code == 0, message.err
    page = written("here", "--no-video")
    assert "Nodes and their messages" in page.texts
    assert {"node 0 (learner)", "node 1 (collector)", "node 2 (collector)"} <= set(page.texts)
    labels = [own["aria-label"] for own in page.named("svg")]
    assert any(label.startswith("Messages sent per second over seconds") for label in labels)
    assert {"learner", "collector", "fetch_weights", "receive"} <= set(page.texts)
    command = f"python {example} --max-env-steps 6000 --target 1000"
    assert command in page.texts


@pytest.mark.parametrize("depth", [60, 300, 950])
def test_files_of_deep_lists_are_read_as_damaged_or_drawn(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    leave("r/1")
    Path("r/1/result.json").write_text(f'{{"eval_return": 3, "eval_episodes": {deep}}}')
    Path("r/1/nodes.jsonl").write_text(
        f'{{"wall_s": 1, "nodes": [{{"node": 1, "state": {deep}, "total_step": {deep}}}]}}\n'
    )
    written("r/1", "--no-video")
    config = json.loads(Path("r/1/config.json").read_text())
    text = json.dumps({**config, "versions": {"a": "@"}}).replace('"@"', deep)
    Path("r/1/config.json").write_text(text)
    assert main(["report", "r/1", "--no-video"]) == (0 if depth < 64 else 2)


def test_a_page_shows_the_beginning_of_what_is_very_long() -> None:
    leave("r/1", program="p" * 10_000)
    row = {"env_step": 1, "wall_s": 1.0, "return": 1.0}
    metrics = {f"metric {n}": n for n in range(1_000)} | {"m" * 10_000: 1}
    Path("r/1/metrics.jsonl").write_text(json.dumps({**row, **metrics}) + "\n")
    nodes = [{"node": n, "labels": ["l" * 300]} for n in range(1_000)]
    Path("r/1/nodes.jsonl").write_text(json.dumps({"wall_s": 1, "nodes": nodes}) + "\n")
    life = {"place": 0, "fitness": 1.0, "hyperparameters": {}}
    lives = [{**life, "generation": n, "id": n, "parent": n - 1} for n in range(12_000)]
    Path("r/1/lineage.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lives))
    stages = "".join(f"  {n}  stage  on n{n}\n" for n in range(1_000))
    Path("r/1/pipeline.txt").write_text(f"task\n{stages}")
    page = written("r/1", "--no-video")
    assert {"1,001 other metrics", "... and 801 more.", "... and 800 more."} <= {*page.texts}
    assert any("the last 5,000 of 12,000 entries" in text for text in page.texts)
    assert f"{'p' * 200}..." in page.texts
    assert Path("page.html").stat().st_size < 4_000_000

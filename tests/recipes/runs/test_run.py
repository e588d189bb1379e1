"""The directory of a run, its verdict and its last line."""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError, NodeFailed, SaveError
from ding_lite.recipes import Options, Run
from ding_lite.recipes.runs.directory import Lock
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.evaluation import Played
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.runtime.context import Context
from ding_lite.runtime.saving import Stateful
from ding_lite.runtime.task import Task
from tests.middleware.test_evaluate import Balancer

KEYS = [
    *("example", "env", "seed", "solved", "env_steps", "episodes"),
    *("train_iter", "wall_s", "eval_return", "nodes", "eval_episodes"),
]


def options(**changes: Any) -> Options:
    values = {
        "env": "CartPole-v1",
        "seed": 0,
        "max_env_steps": 100,
        "target": 475.0,
        "smoke": False,
        "out": None,
    }
    return Options(**{**values, **changes})


def make_policy(kind: type[DQN] = DQN) -> DQN:
    with make_envs("CartPole-v1", 1) as envs:
        return kind(envs.spec, DQNConfig(hidden=(8,), n_step=1))


def test_the_settings_of_the_run_are_written_down() -> None:
    with Run("mine", options(seed=3), config=DQNConfig(lr=0.5, hidden=(7,))) as run:
        message = json.loads((run.directory / "config.json").read_text())
    assert message["example"] == "mine"
    assert message["options"]["seed"] == 3
    assert (message["config"]["lr"], message["config"]["hidden"]) == (0.5, [7])
    assert set(message["versions"]) == {"python", "ding_lite", "torch", "numpy", "gymnasium"}
    assert "out" not in message["options"]  # where it lies is not what it is


def test_the_last_line_has_every_key_in_order(clock, capsys) -> None:
    with Run("mine", options(), clock=clock) as run, make_envs("CartPole-v1", 4) as envs:
        policy = make_policy(Balancer)
        with Task() as task:
            task.use(mw.collect(policy, envs, steps=4))
            task.use(mw.train(policy))
            task.use(mw.jsonl(run.metrics, every=10))
            task.run(max_step=620)
        clock.advance(12.5)
        run.conclude(policy)

    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert (run.directory / "result.json").read_text() == out
    line = json.loads(out)
    assert list(line) == KEYS
    values = ["mine", "CartPole-v1", 0, True, 2480, 4, 620, 12.5, 500.0, 1, 20]
    assert [*line.values()] == values


def test_what_has_no_meaning_is_null_as_is_the_verdict_without_a_target(capsys) -> None:
    with Run("mine", options(target=math.inf)) as run:
        run.conclude(make_policy())
    out, message = capsys.readouterr()
    line = json.loads(out)
    assert list(line) == KEYS
    assert line["eval_return"] < 475.0
    absent = ("solved", "env_steps", "episodes", "train_iter")
    assert [line[name] for name in absent] == [None] * 4
    assert message.startswith("\nTrained on CartPole-v1: a mean return of ")
    assert "target" not in message


def test_a_person_is_told_what_there_is_and_what_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    with Run("mine", options()) as run, make_envs("CartPole-v1", 4) as envs:
        policy = make_policy(Balancer)
        with Task() as task:
            task.use(mw.collect(policy, envs, steps=4))
            task.use(mw.checkpoint(policy, run.checkpoint, every=100))
            task.use(mw.jsonl(run.metrics, every=10))
            task.use(mw.tensorboard(run.directory))
            task.run(max_step=10)
        run.conclude(policy, try_next="Try next: more.")

    message = capsys.readouterr().err.splitlines()
    assert message[1].startswith("Solved CartPole-v1: a mean return of 500.0 in 20 greedy episodes")
    assert message[2:] == [
        "  metrics      runs/mine/1/metrics.jsonl",
        "  checkpoint   runs/mine/1/checkpoint",
        "  TensorBoard  tensorboard --logdir runs/mine/1",
        "Try next: more.",
    ]


@pytest.mark.parametrize("is_saved", [True, False])
def test_ctrl_c_says_where_the_checkpoint_is(is_saved, capsys) -> None:
    def interrupted() -> None:
        with Run("mine", options(out=Path("my run"))) as run:
            if is_saved:
                run.checkpoint.mkdir()
                (run.checkpoint / "manifest.json").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    where = "nothing was saved yet."
    if is_saved:
        where = "the checkpoint is in my run/checkpoint. To go on with it, add the "
        where += "options --resume --out 'my run'"
    assert capsys.readouterr().err == f"\nInterrupted; {where}\n"


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_node_0_that_was_killed_as_the_run_ended_is_named_with_how_to_go_on(
    tmp_path: Path, is_saved: bool
) -> None:
    with Run("made_up", options(out=tmp_path), quiet=True) as run:
        if is_saved:
            train_a_little(run)
        with pytest.raises(NodeFailed, match="Node 0 was killed while the run ended") as caught:
            run.of_node_0([None, 1])
    assert caught.value.node_id == 0
    how = f"--resume --out {tmp_path}" if is_saved else "nothing was saved yet"
    assert how in str(caught.value)
    assert run.of_node_0([7, None]) == 7


def test_the_run_of_nodes_that_a_launcher_has_started_is_that_of_node_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DING_LITE_NUM_NODES", "2")
    monkeypatch.setenv("DING_LITE_NODE_ID", "0")
    with Run("made_up", options(out=tmp_path, nodes=2), quiet=True) as run:
        assert run.of_node_0([7]) == 7
        monkeypatch.setenv("DING_LITE_NODE_ID", "1")
        of_another = Run("made_up", options(out=tmp_path, nodes=2))
        with pytest.raises(SystemExit, match="0"), of_another:
            of_another.of_node_0([None])
    with pytest.raises(ConfigError, match=r"process is node 1 of a job .*: `--out DIR`"):
        Run("made_up", options(out=None, nodes=2))
    assert Run("made_up", options(out=None)).directory.exists()


def test_runs_that_begin_at_once_get_numbers_of_their_own() -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: Run("mine", options()), range(40)))
    assert sorted(int(run.directory.name) for run in runs) == list(range(1, 41))


def test_another_process_is_kept_out_of_a_run_that_is_under_way(tmp_path: Path) -> None:
    out = tmp_path / "here"
    busy = pytest.raises(ConfigError, match="Another process works on the run in")
    with Run("mine", options(out=out)), busy:
        Run("mine", options(out=out, resume=True)).__enter__()
    with Run("mine", options(out=out, resume=True)):
        pass


def test_a_run_writes_nothing_into_a_directory_that_has_replaced_its_own(tmp_path, clock) -> None:
    out = tmp_path / "here"

    def learn(ctx: Context) -> None:
        ctx.metrics["return"] = 1.0
        if ctx.total_step == 3:  # as if it was stopped meanwhile
            out.rename(tmp_path / "moved")
            out.mkdir()
            clock.advance(2.0)

    with Run("mine", options(out=out), quiet=True, clock=clock) as run:
        with Task() as task:
            task.use(learn).use(mw.checkpoint({"task": task}, run.checkpoint, every=1))
            task.use(run.time(task, every=1)).use(mw.report(run, every=1))
            with pytest.raises(SaveError, match="here was moved or removed while the run worked"):
                task.run(max_step=9)
        with pytest.raises(SaveError, match="was moved or removed"):
            run.judge(make_policy())
    assert not [*out.iterdir()]
    assert (tmp_path / "moved" / "metrics.jsonl").read_text().count("\n") == 3


@pytest.mark.parametrize("first", ["checkpoint", "report"])
def test_a_run_without_its_directory_says_so_and_makes_none(first, tmp_path, clock) -> None:
    out = tmp_path / "here"

    def learn(ctx: Context) -> None:
        ctx.metrics["episode_return"] = 1.0
        if ctx.total_step == 3:  # less than a second after the last check
            out.rename(tmp_path / "moved")

    gone = pytest.raises(SaveError, match=r"here was moved or removed .* --resume --out DIR")
    with gone as caught, Run("mine", options(out=out), quiet=True, clock=clock) as run:
        every = {"checkpoint": 100, "report": 100, first: 1}
        with Task() as task:
            task.use(learn)
            task.use(mw.checkpoint({"task": task}, run.checkpoint, every=every["checkpoint"]))
            task.use(run.time(task, every=1)).use(mw.report(run, every=every["report"]))
            task.run(max_step=9)
    kinds = {"checkpoint": SaveError, "report": FileNotFoundError}
    assert type(caught.value.__cause__) is kinds[first]
    assert not out.exists()


def test_a_run_that_has_ended_can_go_on_while_a_process_that_it_forked_lives(tmp_path) -> None:
    lock = Lock(tmp_path)
    of_the_fork = os.dup(lock._descriptor)
    lock.release()
    Lock(tmp_path).release()
    os.close(of_the_fork)


# -- going on --------------------------------------------------------------------------------


def train_a_little(run: Run, *, steps: int = 10, value: float | None = None) -> Task:
    """Train with what a run has saved, or from the start; return the task, ended."""

    def evaluate(ctx: Context) -> None:
        if value is not None:
            ctx.eval_value, ctx.finish = value, ctx.total_step == steps - 1

    policy = make_policy()
    with make_envs("CartPole-v1", 4) as envs, Task() as task:
        parts: dict[str, Stateful] = {"policy": policy, "envs": envs, "task": task}
        task.use(mw.collect(policy, envs, steps=4))
        task.use(evaluate)
        task.use(mw.checkpoint(parts, run.checkpoint, every=1_000))
        task.use(mw.jsonl(run.metrics, every=10))
        run.resume(parts)
        task.run(max_step=steps)
    return task


def test_a_run_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "here"
    with Run("mine", options(out=out)) as run:
        train_a_little(run)
    with Run("mine", options(out=out, resume=True)) as run:
        assert train_a_little(run).ctx.env_step == 80
    message = capsys.readouterr().err
    assert message == f"The run in {out} goes on at 40 env steps.\n"


def test_a_resumed_run_removes_the_files_that_a_kill_left_unfinished_and_no_others(
    tmp_path,
) -> None:
    with Run("mine", options(out=tmp_path)):
        pass
    before = {*tmp_path.iterdir(), tmp_path / ".mine.unfinished-1234.png"}
    for name in (".mine", ".curve"):
        (tmp_path / f"{name}.unfinished-1234.png").touch()
    with Run("mine", options(out=tmp_path, resume=True)):
        pass
    assert {*tmp_path.iterdir()} == before


def test_a_run_is_not_resumed_with_fewer_env_steps_than_it_has_made(tmp_path: Path) -> None:
    def go(most: int, **more: Any) -> None:
        with Run("mine", options(out=tmp_path, max_env_steps=most, **more), quiet=True) as run:
            train_a_little(run, steps=20)

    go(200)
    go(180, resume=True)
    few = "has made 160 env steps, and `max_env_steps` is 159.* Leave it out, or give more"
    with pytest.raises(ConfigError, match=few):
        go(159, resume=True)
    assert json.loads((tmp_path / "config.json").read_text())["options"]["max_env_steps"] == 180


def test_a_run_may_have_made_more_env_steps_than_its_limit_and_be_resumed_with_it(tmp_path) -> None:
    for resumed in (False, True):  # all environments step at once
        with Run("mine", options(out=tmp_path, max_env_steps=39, resume=resumed)) as run:
            train_a_little(run)
    assert json.loads((tmp_path / "config.json").read_text())["options"]["max_env_steps"] == 39


def test_a_node_that_was_started_again_goes_on_with_what_its_former_life_has_saved(
    tmp_path: Path,
) -> None:
    with Run("mine", options(out=tmp_path / "here")) as run:
        for env_step in (40, 80):
            assert train_a_little(pickle.loads(pickle.dumps(run))).ctx.env_step == env_step


@pytest.mark.parametrize(
    ("value", "max_env_steps"), [(None, 40), (480.0, 1_000)], ids=["all steps", "solved"]
)
def test_a_run_that_had_reached_its_end_does_nothing_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: float | None, max_env_steps: int
) -> None:
    chosen = options(out=tmp_path / "here", max_env_steps=max_env_steps)
    with Run("mine", chosen) as run:
        train_a_little(run, value=value)
    before = run.metrics.read_text()
    with Run("mine", replace(chosen, resume=True)) as run:
        assert train_a_little(run).ctx.env_step == 40
    assert "had reached its end at 40 env steps" in capsys.readouterr().err
    assert run.metrics.read_text() == before


def test_a_run_that_no_evaluation_ends_goes_on_after_a_good_one(tmp_path: Path) -> None:
    seen: list[int] = []

    def evaluate(ctx: Context) -> None:
        seen.append(ctx.total_step)
        ctx.eval_value = 480.0
        if len(seen) == 4:
            raise LookupError  # ends the run between two checkpoints, as a kill does

    for resumed in (False, True):
        chosen = options(out=tmp_path / "here", resume=resumed)
        with Run("mine", chosen) as run, Task() as task:
            task.use(evaluate).use(mw.checkpoint({"task": task}, run.checkpoint, every=2))
            run.resume({"task": task})
            with suppress(LookupError):
                task.run(max_step=4)
    assert seen == [0, 1, 2, 3, 2, 3, 4, 5]


class Inexact:
    """A part that cannot be restored exactly."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        logging.getLogger("ding_lite.x").warning("it begins anew")


@pytest.mark.parametrize("quiet", [False, True])
def test_warnings_of_parts_that_are_restored_are_shown(tmp_path, capsys, quiet) -> None:
    for resumed in (False, True):
        chosen = options(out=tmp_path / "here", resume=resumed)
        with Run("mine", chosen, quiet=quiet) as run, Task() as task:
            parts = {"part": Inexact(), "task": task}
            task.use(mw.checkpoint(parts, run.checkpoint, every=2))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(logging.getLogger(), "handlers", [])  # pytest's own
                run.resume(parts)
            task.run(max_step=2)
    assert ("it begins anew\n" in capsys.readouterr().err) == (not quiet)


def test_a_population_that_has_spent_its_env_steps_on_evaluations_does_nothing_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spend(ctx: Context) -> None:
        ctx.env_step, ctx.eval_steps = 100, 40
        ctx.keep("env_step", "eval_steps")

    for resumed in (False, True):
        chosen = options(out=tmp_path / "here", max_env_steps=140, resume=resumed)
        with Run("mine", chosen) as run, Task() as task:
            parts = {"task": task}
            task.use(spend).use(mw.checkpoint(parts, run.checkpoint, every=1))
            run.resume(parts)
            task.run(max_step=1)
    assert task.ctx.total_step == 0
    assert "had reached its end at 140 env steps." in capsys.readouterr().err


@pytest.mark.parametrize("longer", [{"max_env_steps": 1_000}, {"target": 490.0}])
def test_a_run_that_had_ended_goes_on_when_it_may_become_longer(tmp_path, longer) -> None:
    chosen = options(out=tmp_path / "here", max_env_steps=40 if "target" not in longer else 1_000)
    with Run("mine", chosen) as run:
        train_a_little(run, value=480.0 if "target" in longer else None)
    with Run("mine", replace(chosen, resume=True, **longer)) as run:
        assert train_a_little(run).ctx.env_step == 80
    message = json.loads((run.directory / "config.json").read_text())["options"]
    assert message | longer == message


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path, capsys) -> None:
    out = tmp_path / "here"
    with Run("mine", options(out=out)) as run:
        for left in (run.metrics, run.curve, run.directory / "events.out.tfevents.1.x"):
            left.write_text("old")
    with Run("mine", options(out=out, resume=True)) as run:
        assert [path.name for path in run.directory.iterdir()] == ["config.json"]
        assert train_a_little(run).ctx.env_step == 40
    assert capsys.readouterr().err == f"There is no checkpoint in {out} yet; the run begins.\n"


def test_a_run_that_has_ended_and_lost_its_checkpoint_is_kept(tmp_path: Path) -> None:
    with Run("mine", options(out=tmp_path)) as run:
        kept = [run.metrics, run.curve, run.best / "manifest.json", run.directory / "result.json"]
        run.best.mkdir()
        for file in kept:
            file.write_text("old")
    with (
        pytest.raises(ConfigError, match=r"has ended, and its checkpoint/ is gone.*`--out`"),
        Run("mine", options(out=tmp_path, resume=True)),
    ):
        pass
    assert [file.read_text() for file in kept] == ["old"] * 4


def test_a_trial_run_goes_on_as_one_or_at_length(tmp_path: Path) -> None:
    for smoke in (True, True, False):
        with Run("mine", options(out=tmp_path, resume=True, smoke=smoke)) as run:
            pass
        assert json.loads((run.directory / "config.json").read_text())["options"]["smoke"] is smoke


@pytest.mark.parametrize("was_run", [False, True])
def test_a_run_that_begins_in_a_directory_of_the_user_leaves_other_files(tmp_path, was_run) -> None:
    if was_run:
        with Run("mine", options(out=tmp_path)):
            pass
    (tmp_path / "best").mkdir()
    notes = [tmp_path / "best" / "notes.txt"]
    notes += [] if was_run else [tmp_path / name for name in ("curve.png", "result.json")]
    for note in notes:
        note.write_text("mine")
    with Run("mine", options(out=tmp_path, resume=True)):
        assert [note.read_text() for note in notes] == ["mine"] * len(notes)


@pytest.mark.parametrize("config", [None, "", '{"example": "mi'])
def test_a_run_that_was_killed_before_it_had_its_settings_begins_anew(tmp_path, config) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with Run("mine", options(out=tmp_path, resume=True)) as run:
        assert train_a_little(run).ctx.env_step == 40
    assert json.loads((run.directory / "config.json").read_text())["example"] == "mine"


@pytest.mark.parametrize(
    ("program", "changes", "config", "message"),
    [
        ("mine", {"seed": 1}, DQNConfig(seed=1), "another way: `seed` is 1, and was 0. Resume it"),
        ("mine", {"env": "Acrobot-v1"}, DQNConfig(), "`env` is 'Acrobot-v1', and was 'CartPole-v1"),
        ("mine", {}, DQNConfig(hidden=(8,)), r"`hidden` is \[8\], and was \[64, 64\]"),
        ("mine", {}, None, "`lr` is None, and was 0.002"),
        ("mine", {"smoke": True}, DQNConfig(), "another way: `smoke` is True, and was False"),
        ("yours", {}, DQNConfig(), "is one of `mine`, and this program is `yours`"),
    ],
)
def test_to_go_on_in_another_way_is_refused_by_name(
    tmp_path: Path, program: str, changes: dict[str, Any], config: object, message: str
) -> None:
    with Run("mine", options(out=tmp_path), config=DQNConfig()):
        pass
    chosen = options(out=tmp_path, resume=True, max_env_steps=200, target=1.0, **changes)
    with pytest.raises(ConfigError, match=message):
        Run(program, chosen, config=config).__enter__()
    assert json.loads((tmp_path / "config.json").read_text())["options"]["max_env_steps"] == 100


def test_other_versions_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Run("mine", options(out=tmp_path)):
        pass
    file = tmp_path / "config.json"
    described = json.loads(file.read_text())
    described["versions"]["torch"] = "1.0"
    file.write_text(json.dumps(described))
    with Run("mine", options(out=tmp_path, resume=True)):
        pass
    assert "goes on with torch " in (message := capsys.readouterr().err)
    assert " instead of 1.0: what it learns may not be the same to the last bit." in message


def test_the_running_time_counts_from_the_first_beginning(tmp_path: Path) -> None:
    with Run("mine", options(out=tmp_path)) as run:
        run.metrics.write_text('{"step": 1, "wall_s": 90.0}\n')
        assert run.judge(make_policy())["wall_s"] == 90.0


def test_a_verdict_is_whole_where_the_last_evaluation_has_reached_a_target_of_zero(capsys) -> None:
    env = EnvMaker.of("MountainCar-v0", args={"max_episode_steps": 501})
    with make_envs(env, 1) as envs:
        policy = DQN(envs.spec, DQNConfig(hidden=(8,)))
    with Run("mine", options(env=env, target=0.0)) as run:
        for value, episodes in ((-1.0, 1), (0.0, 20)):
            row = {"env_step": 40, "eval_return": value, "wall_s": 1.0}
            run.metrics.write_text(json.dumps(row) + "\n")
            line = run.judge(policy, eval_share=0.1)
            assert (line["solved"], line["eval_episodes"]) == (False, episodes)
            run.explain(line)
            plural = "episodes" if episodes > 1 else "episode"
            assert f" in {episodes} greedy {plural} (target 0) after" in capsys.readouterr().err
        run.explain({**line, "eval_return": -0.01, "eval_episodes": 0})
        assert " 0.0 in 0 greedy episodes (target 0) after" in capsys.readouterr().err


def as_weights(policy: DQN, value: float) -> dict[str, Any]:
    other = policy.clone()
    other.load_weights({k: torch.full_like(v, value) for k, v in other.weights().items()})
    return other.state_dict()


@pytest.mark.parametrize(
    ("share", "env_step", "confirmed", "delivered", "why"),
    [
        (0.1, 9_000, None, "best", "without a comparison with the last policy, as the share had"),
        (0.1, 11_000, None, "best", "chosen by the same episodes as the last policy, which had -"),
        (0.1, 9_000, Played(3.0, 90, 20), "last", "evaluation, as its evaluation ended the run"),
        (None, 40, None, "best", "chosen by the same episodes as the last policy, which had -"),
    ],
)
def test_the_best_policy_stays_unless_the_last_one_is_better_or_ended_the_run(
    share: float | None,
    env_step: int,
    confirmed: Played | None,
    delivered: str,
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    env = EnvMaker.of("MountainCar-v0", args={"max_episode_steps": 501})
    with make_envs(env, 1) as envs:
        policy = DQN(envs.spec, DQNConfig(hidden=(8,)))
    policy.load_state_dict(as_weights(policy, 0.5))
    with Run("mine", options(env=env, target=0.0)) as run:
        row = {"env_step": env_step, "episode_length": 501.0, "wall_s": 1.0}
        run.metrics.write_text(json.dumps(row) + "\n")
        best = as_weights(policy, 0.25)
        line = run.judge(policy, eval_share=share, confirmed=confirmed, best=best)
        run.explain(line)
    assert line["delivered"] == delivered
    weights = next(iter(policy.weights().values()))
    assert bool((weights == (0.25 if delivered == "best" else 0.5)).all())
    assert why in capsys.readouterr().err


def test_the_running_time_of_a_resumed_run_contains_that_of_all_its_stages(tmp_path, clock) -> None:
    class Draws:
        def __exit__(self, *error: object) -> None:
            clock.advance(5.0)

        def __enter__(self) -> None: ...

        def __call__(self, ctx: Context) -> None: ...

    for resumed in (False, True):
        with Run("mine", options(out=tmp_path, resume=resumed), clock=clock) as run, Task() as task:
            task.use(lambda ctx: clock.advance(1.0)).use(run.time(task, every=1))
            task.use(mw.jsonl(run.metrics, every=1, clock=clock)).use(Draws())
            task.use(mw.checkpoint({"task": task}, run.checkpoint, every=1))
            run.resume({"task": task})
            task.run(max_step=2)
            line = run.judge(make_policy())
    assert line["wall_s"] == sum(line["seconds"].values()) == 9.0


def test_the_last_line_tells_the_time_of_the_verdict_beside_that_of_stages(tmp_path, clock) -> None:
    class Slow(DQN):
        def act(self, *args: Any, **settings: Any) -> NumpyArray:
            clock.advance(1.0)
            return super().act(*args, **settings)

    def learn(ctx: Context) -> None:
        clock.advance(60.0)
        ctx.metrics["return"] = 1.0

    with Run("mine", options(out=tmp_path), clock=clock) as run:
        with Task() as task:
            task.use(learn).use(run.time(task, every=1))
            task.use(mw.jsonl(run.metrics, every=1, clock=clock)).run(max_step=2)
        line = run.judge(make_policy(Slow))
    assert line["seconds"]["learn"] == 120.0
    assert line["seconds"]["verdict"] > 6.0


@pytest.mark.parametrize(
    ("metrics", "env_steps", "counted"),
    [({"eval_steps": 40}, 140, 40), ({"eval_return": 1.0}, 100, None), ({}, 100, 0)],
    ids=["of a population", "not counted", "none"],
)
def test_the_last_line_has_the_env_steps_of_evaluations(metrics, env_steps, counted, tmp_path):
    def evaluate(ctx: Context) -> None:
        ctx.env_step = 100
        ctx.metrics.update(metrics)

    with Run("mine", options(out=tmp_path)) as run:
        with Task() as task:
            task.use(evaluate).use(run.time(task, every=1))
            task.use(mw.jsonl(run.metrics, every=1)).run(max_step=1)
        line = run.judge(make_policy())
    assert (line["env_steps"], line["eval_env_steps"]) == (env_steps, counted)


@pytest.mark.parametrize(("verdict", "is_long"), [(114.0, True), (1.5, False)])
def test_a_verdict_of_more_than_a_tenth_of_a_run_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verdict: float, is_long: bool
) -> None:
    with Run("mine", options(out=tmp_path)) as run:
        train_a_little(run)
        line = run.judge(make_policy())
        seconds = {"learn": 17.0, "verdict": verdict}
        run.explain({**line, "wall_s": 17.0, "seconds": seconds, "verdict_env_steps": 1_000})
    said = "verdict      took 1,000 env steps and 114.0 s, more than a tenth of this run"
    assert (said in capsys.readouterr().err) is is_long


def test_nodes_may_know_the_run_of_their_program(tmp_path: Path) -> None:
    with Run("mine", options(out=tmp_path)) as run:
        known = pickle.loads(pickle.dumps(run))
        assert known.checkpoint == run.checkpoint
        known.__exit__(None, None, None)
        with pytest.raises(ConfigError, match="Another process"):
            Run("mine", options(out=tmp_path, resume=True)).__enter__()
        known._check_directory()
        tmp_path.rename(tmp_path.with_name("moved"))
        tmp_path.mkdir()
        with pytest.raises(SaveError, match="was moved or removed"):
            known._check_directory()


def test_the_command_is_written_down_and_the_result_goes_when_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.orig_argv", ["python3", "-m", "ding_lite", "train", "--seed", "1"])
    with Run("mine", options(out=tmp_path)) as run:
        train_a_little(run)
        run.judge(make_policy())
    monkeypatch.setattr("sys.orig_argv", ["python3", "mine.py", "--resume"])
    with Run("mine", options(out=tmp_path, resume=True)) as run:
        message = json.loads((run.directory / "config.json").read_text())
        assert (tmp_path / "result.json").exists()  # as long as that can fail
        train_a_little(run)
    assert message["command"] == ["ding-lite", "train", "--seed", "1"]
    assert not (tmp_path / "result.json").exists()

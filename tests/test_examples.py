"""Every example runs in its own process, and prints its result as one line of JSON."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest
import torch

from ding_lite import Context, Task
from ding_lite.recipes.runs.verdict import JUDGE_SEED
from ding_lite.rl import DQN, DQNConfig, load_checkpoint, make_envs, mean_return
from tests.warm import PROGRAMS, STRICT, Output, Warm, warm

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
FILES = {
    *("config.json", "metrics.jsonl", "checkpoint", "curve.png", "events"),
    *("pipeline.txt", "result.json"),
}
"""All files of a run of one process."""


SECONDS = 110.0


@pytest.fixture(scope="module")
def process() -> Iterator[Warm]:
    """Return a process that starts examples quickly."""
    with warm(PROGRAMS) as process:
        yield process


def finished(process: Warm, example: Path, *arguments: str, cwd: Path) -> Output:
    """Run an example to its end, in a folder of its own."""
    return process.run(example, *arguments, seconds=SECONDS, folder=cwd, strict=True)


@contextmanager
def started(example: Path, *arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Start an example in a folder of its own, and end it in any case."""
    process = subprocess.Popen(
        [sys.executable, *chain(*(("-W", each) for each in STRICT)), str(example), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def running_in(folder: Path) -> list[int]:
    """Return the ids of the processes of an example: those that work in its folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is none of ours
            if (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found


def saved_in_checkpoint(example: Path, folder: Path) -> DQN:
    """Load the policy that an example with the settings of the demo has saved."""
    config = DQNConfig(lr=3e-3, n_step=3, target_tau=0.01)
    with make_envs("CartPole-v1", 1) as envs:
        policy: DQN = runpy.run_path(str(example))["make_policy"](envs.spec, config)
    policy.load_state_dict(load_checkpoint(folder / "checkpoint").state["policy"])
    return policy


@pytest.mark.procs
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_ends_with_its_result(example: Path, process: Warm, tmp_path: Path) -> None:
    few = "1000" if example.stem == "dqn_pixels" else "600"  # it begins to learn later
    options = ("--smoke", "--seed", "7", "--max-env-steps", few)
    output = finished(process, example, *options, cwd=tmp_path)

    if "lunarlander" in example.stem and find_spec("Box2D") is None:
        assert output.code == 2, output.err
        assert f"pip install -e '{ROOT}[box2d]'" in output.err
        return
    assert output.code == 0, output.err
    result = json.loads(output.out.splitlines()[-1])
    assert (result["example"], result["seed"]) == (example.stem, 7)
    assert 0 < result["env_steps"] < (2_000 if result["nodes"] == 1 else 50_000)
    assert result["train_iter"] > 0
    assert sum(result["seconds"].values()) > 0.9 * result["wall_s"]
    assert result["solved"] is False
    run = tmp_path / "runs" / example.stem / "1"
    left = {path.name.partition(".out.")[0] for path in run.iterdir()}
    assert left >= {"config.json", "result.json"}
    if example.stem in ("dqn_cartpole", "evaluate_elsewhere"):
        assert left - {"nodes.jsonl"} == FILES
        assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")
        assert f"curve        {run.relative_to(tmp_path)}/curve.png" in output.err
        assert "Try next: " in output.err
    assert running_in(tmp_path) == []


@pytest.mark.procs
@pytest.mark.parametrize(
    "name", ["apex_dqn_cartpole", pytest.param("apex_ddpg_pendulum", marks=pytest.mark.slow)]
)
def test_one_learner_learns_from_one_collector(name: str, process: Warm, tmp_path: Path) -> None:
    example = ROOT / "examples" / f"{name}.py"
    output = finished(process, example, "--smoke", "--nodes", "2", cwd=tmp_path)
    assert output.code == 0, output.err
    assert json.loads(output.out)["train_iter"] > 0
    assert running_in(tmp_path) == []


@pytest.mark.procs
@pytest.mark.parametrize("nodes", [pytest.param("1", marks=pytest.mark.slow), "3"])
def test_weights_evaluated_on_another_node_are_shown_and_saved(
    nodes: str, process: Warm, tmp_path: Path
) -> None:
    example = ROOT / "examples" / "evaluate_elsewhere.py"
    arguments = ("--nodes", nodes, "--target", "100", "--out", "here")
    output = finished(process, example, *arguments, cwd=tmp_path)

    assert output.code == 0, output.err
    assert output.out.count("\n") == 1
    result = json.loads(output.out)
    assert result["nodes"] == int(nodes)
    assert result["env_steps"] < 50_000
    last = json.loads((tmp_path / "here" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["eval_return"] >= 100.0
    with make_envs("CartPole-v1", 20, seed=JUDGE_SEED) as envs:
        judged_again = mean_return(
            saved_in_checkpoint(example, tmp_path / "here"), envs, episodes=20
        )
    assert judged_again == result["eval_return"]
    assert running_in(tmp_path) == []


def test_a_learner_ends_with_the_weights_that_another_node_found_good() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "evaluate_elsewhere.py"))
    with make_envs("CartPole-v1", 1) as envs:
        policy, good = DQN(envs.spec), DQN(envs.spec, DQNConfig(seed=1)).weights()
    own = policy.weights()

    def same(some: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(some[name], value) for name, value in policy.weights().items())

    def tell(ctx: Context) -> None:
        task.emit("evaluated", *[(99.0, None), (100.0, good), (9.0, None)][ctx.total_step])

    seen: list[tuple[float, bool, bool]] = []
    with Task() as task:
        task.use(tell)
        task.use(example["report_evaluations"](task, policy, target=100.0))
        task.use(lambda ctx: seen.append((ctx.metrics["eval_return"], same(own), same(good))))
        task.run(max_step=3)
    assert seen == [(99.0, True, False), (100.0, False, True)]


def weights_in(folder: Path) -> dict[str, bytes]:
    saved = load_checkpoint(folder / "checkpoint", only=["policy"]).state["policy"]
    return {name: tensor.numpy().tobytes() for name, tensor in saved["q_net"].items()}


@pytest.mark.procs
def test_ctrl_c_ends_a_run_that_goes_on_to_the_weights_of_an_uninterrupted_one(
    process: Warm, tmp_path: Path
) -> None:
    example = ROOT / "examples" / "dqn_cartpole.py"
    options = ("--seed", "5", "--target", "1000", "--max-env-steps", "2000")
    whole = finished(process, example, *options, "--out", "whole", cwd=tmp_path)
    assert whole.code == 0, whole.err

    with started(example, *options, "--out", "here", cwd=tmp_path) as running:
        metrics = tmp_path / "here" / "metrics.jsonl"
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < 4:  # of 10
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"It ended by itself, with {running.wait(0.01)}.")
        running.send_signal(signal.SIGINT)
        out, err = running.communicate()
    assert (running.returncode, out) == (130, ""), err
    assert "Interrupted; the checkpoint is in here/checkpoint." in err
    assert "Traceback" not in err
    saved = load_checkpoint(tmp_path / "here" / "checkpoint")
    last = json.loads(metrics.read_text().splitlines()[-1])
    updates = saved.state["policy"]["train_iter"]
    assert saved.meta["train_iter"] == updates == last["train_iter"] > 0
    assert (tmp_path / "here" / "curve.png").exists()

    again = finished(process, example, "--resume", "--out", "here", cwd=tmp_path)
    assert again.code == 0, again.err
    assert f"The run in here goes on at {saved.meta['env_step']:,} env steps." in again.err
    assert weights_in(tmp_path / "here") == weights_in(tmp_path / "whole")
    times = {"wall_s": 0.0, "seconds": {}}
    assert json.loads(again.out) | times == json.loads(whole.out) | times
    assert running_in(tmp_path) == []


@pytest.mark.procs
def test_a_resumed_learner_works_with_its_evaluator_on_another_node(
    process: Warm, tmp_path: Path
) -> None:
    example = ROOT / "examples" / "evaluate_elsewhere.py"
    for steps in ("600", "1200"):
        options = ("--target", "1000", "--max-env-steps", steps, "--out", "here", "--resume")
        output = finished(process, example, *options, cwd=tmp_path)
        assert output.code == 0, output.err
        assert json.loads(output.out)["env_steps"] == int(steps)
    assert "The run in here goes on at 600 env steps." in output.err
    assert running_in(tmp_path) == []


@pytest.mark.procs
def test_agents_resume_with_the_weights_and_the_optimiser_of_their_server(
    process: Warm, tmp_path: Path
) -> None:
    example = ROOT / "examples" / "a3c_cartpole.py"
    output = finished(process, example, "--smoke", "--nodes", "2", "--out", "here", cwd=tmp_path)
    assert output.code == 0, output.err
    first = json.loads(output.out)
    longer = ("--max-env-steps", str(first["env_steps"] + 2_000))
    output = finished(process, example, "--resume", "--out", "here", *longer, cwd=tmp_path)
    assert output.code == 0, output.err
    assert f"The run in here goes on at {first['env_steps']:,} env steps." in output.err
    assert json.loads(output.out)["train_iter"] > first["train_iter"]
    server = load_checkpoint(tmp_path / "here" / "checkpoint", only=["server"]).state["server"]
    assert server["policy"]["train_iter"] == server["version"] == server["num_applied"]
    assert running_in(tmp_path) == []

"""`ding-lite train` and `ding-lite evolve`."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ding_lite.cli.main import main
from ding_lite.recipes import load_policy
from ding_lite.rl.policies.dqn import DQN
from tests import seeds
from tests.cli.calls import on_a_terminal

QUICK = ("--set", "hidden=8,", "--set", "batch_size=8", "--set", "warmup=20")
OF_EVOLUTION = "--set eval_episodes=1 --set hidden=8, --set warmup=64 --set turn=16"
OF_EVOLUTION += " --set eval_every=96"
KEYS = [
    *("example", "env", "seed", "solved", "env_steps", "episodes"),
    *("train_iter", "wall_s", "eval_return", "nodes"),
    *("eval_episodes", "seconds", "eval_env_steps", "verdict_env_steps"),
]

pytestmark = pytest.mark.usefixtures("_here")


def train(*words: str, steps: int = 160) -> int:
    return main(["train", "dqn", "CartPole-v1", *QUICK, "--max-env-steps", str(steps), *words])


def test_a_run_ends_with_its_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--seed", "3", "--num-envs", "4") == 0
    out, err = capsys.readouterr()
    [line] = out.splitlines()
    numbers = json.loads(line)
    assert list(numbers) == KEYS
    assert (numbers["example"], numbers["env"], numbers["seed"]) == ("dqn", "CartPole-v1", 3)
    assert (numbers["env_steps"], numbers["solved"]) == (160, False)
    assert "160/160 env steps" in err
    assert "rl.replay.uniform | a replay of 50000 transitions takes" not in err
    assert "Did not solve CartPole-v1" in err


def test_a_quiet_run_writes_nothing_but_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--quiet") == 0
    out, err = capsys.readouterr()
    assert (len(out.splitlines()), err) == (1, "")


def test_settings_have_the_types_that_they_need() -> None:
    words = ("lr=3e-4", "n_step=1", "double=false", "hidden=8,4", "capacity=1e3", "loss=mse")
    settings = [word for setting in words for word in ("--set", setting)]
    assert train("--num-envs", "32", *settings) == 0
    policy = load_policy("runs/dqn/CartPole-v1/1")
    assert isinstance(policy, DQN)
    config = policy.config
    assert (config.lr, config.n_step, config.double) == (3e-4, 1, False)
    assert (config.hidden, config.loss) == ((8, 4), "mse")
    described = json.loads(Path("runs/dqn/CartPole-v1/1/config.json").read_text())
    assert described["config"]["capacity"] == 1_000


def test_loggers_of_ones_own_get_the_metrics_and_a_resumed_run_keeps_or_changes_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("several.py").write_text(
        "".join(
            f"def {name}(metrics, step):\n    print('{name}', step, metrics['loss'])\n"
            for name in ("one", "two")
        )
    )
    few = ("--num-envs", "32", "--out", "here", "--set", "log_every=80")

    def reported(*arguments: str, steps: int) -> dict[str, str]:
        """Train so far, and return the last env step that each logger was told."""
        assert train(*few, *arguments, steps=steps) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()[:-1]]
        return {name: step for name, step, _ in lines}

    both = ("--report", "several.py:one", "--report", "several.py:two")
    assert reported(*both, steps=160) == {"one": "160", "two": "160"}
    assert reported("--resume", steps=224) == {"one": "224", "two": "224"}
    assert reported("--resume", "--report", "several.py:two", steps=256) == {"two": "256"}

    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")  # the run names the file by its full path
    assert reported("--resume", "--out", "../here", steps=288) == {"two": "288"}
    monkeypatch.chdir("..")

    file = Path("here/config.json")
    file.write_text(file.read_text().replace("several.py:two", "several.py:else"))
    assert train(*few, "--resume", steps=320) == 2
    assert "comes from elsewhere, so that this is not imported" in capsys.readouterr().err


def test_all_settings_are_shown_with_where_they_come_from(capsys) -> None:
    assert main(["train", "dqn", "CartPole-v1", "--settings", "--set", "gamma=0.9"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["setting", "value", "source", "meaning"]
    rows = {line.split()[0]: line.split(maxsplit=3)[1:] for line in lines}
    assert rows["gamma"][:2] == ["0.9", "given"]
    assert rows["lr"][:2] == ["0.003", "preset"]
    assert rows["hidden"][:2] == ["64,64", "default"]
    assert rows["max_grad_norm"][:2] == ["none", "default"]
    assert rows["frame_stack"][2].startswith("Number of the newest observations that are stacked")
    assert rows["capacity"][2].startswith("Maximum number of transitions in the replay.")
    assert rows["--max-env-steps"] == ["50000", "preset", "Maximum number of env steps."]
    assert rows["--num-envs"][:2] == ["8", "default"]
    assert rows["--target"][:2] == ["475.0", "default"]
    assert "seed" not in rows
    assert not Path("runs").exists()


def test_settings_of_an_own_algorithm_need_no_sentence(capsys) -> None:
    Path("mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from ding_lite.rl import TorchPolicy, TorchPolicyConfig\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class MineConfig(TorchPolicyConfig):\n"
        "    quantiles: int = 21\n"
        "class Mine(TorchPolicy[MineConfig]):\n"
        "    build = choose = loss = lambda self: None\n"
    )
    assert main(["train", "mine.py:Mine", "CartPole-v1", "--settings"]) == 0
    assert ["quantiles", "21", "default"] in map(str.split, capsys.readouterr().out.splitlines())


@pytest.mark.procs
def test_on_a_terminal_there_is_one_line_that_moves_and_ctrl_c_says_how_to_go_on(tmp_path) -> None:
    words = ("train", "dqn", "CartPole-v1", *QUICK, "--target", "1000", "--out", "here")
    interrupted: list[bool] = []

    def interrupt(process: subprocess.Popen[bytes], shown: bytes) -> None:
        if not interrupted and shown.count(b" env steps") > 3:
            interrupted.append(True)
            process.send_signal(signal.SIGINT)

    code, text = on_a_terminal(tmp_path, *words, columns=100, watch=interrupt, OMP_NUM_THREADS="1")
    assert code == 130, text
    assert '"example"' not in text
    assert "━" in text
    assert "/1,000" in text or "eval" not in text
    assert "Interrupted; the checkpoint is in here/checkpoint." in text
    assert "--resume --out here" in text
    assert "Traceback" not in text


def test_an_environment_of_ones_own_is_trained_resumed_and_watched_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    shutil.copy(seeds.__path__[0] + "/own_env_and_logger.py", "own_env.py")
    with Path("own_env.py").open("a") as file:
        file.write('gym.register("own_env/Corridor-v0", entry_point=Corridor)\n')

    def train_own(env: str, length: int, *words: str, steps: int = 320) -> int:
        limit = ("--max-env-steps", str(steps), "--env-arg", f"length={length}", "--num-envs", "4")
        return main(["train", "dqn", env, *QUICK, *limit, *words])

    assert train_own("own_env.py:Corridor", 3) == 0
    run = Path("runs/dqn/Corridor/1")
    described = json.loads((run / "config.json").read_text())["options"]
    assert described["env"] == f"{Path.cwd()}/own_env.py:Corridor"
    assert described["env_args"] == {"length": 3}
    resumed = ("--out", str(run), "--resume")
    assert train_own("own_env.py:Corridor", 4, *resumed, steps=400) == 2
    assert "`env_args` is {'length': 4}, and was {'length': 3}" in capsys.readouterr().err
    words = ("train", "dqn", "own_env.py:Corridor", "--max-env-steps", "400")
    assert main([*words, *resumed]) == 0
    assert json.loads(capsys.readouterr().out)["env_steps"] == 400

    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert main(["watch", f"../{run}", "--episodes", "1"]) == 0
    assert capsys.readouterr().out.startswith("DQN on Corridor")
    monkeypatch.chdir("..")

    assert train_own("own_env:own_env/Corridor-v0", 3, "--import", "own_env.py") == 0
    assert json.loads(capsys.readouterr().out)["env"] == "own_env/Corridor-v0"
    assert load_policy("runs/dqn/own_env/Corridor-v0/1").spec.obs_shape == (101,)
    assert train_own("own_env:Coridor", 3) == 2
    assert 'Did you mean "Corridor"?' in capsys.readouterr().err


def test_a_project_that_has_moved_is_resumed_and_watched_in_its_new_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def go_to(folder: str) -> None:
        """As if a new process started in the folder."""
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [p for p in sys.path if "project" not in p])
        monkeypatch.delitem(sys.modules, "project_env", raising=False)

    Path("project").mkdir()
    shutil.copy(seeds.__path__[0] + "/own_env_and_logger.py", "project/project_env.py")
    go_to("project")
    own = ("--import", "project_env.py", "--report", "project_env.py:to_my_dashboard")
    words = ["train", "dqn", "project_env.py:Corridor", "--num-envs", "4", "--out", "run"]
    assert main([*words, *QUICK, *own, "--max-env-steps", "160"]) == 0

    monkeypatch.chdir("..")
    Path("project").rename("project moved")
    go_to("project moved")
    capsys.readouterr()
    assert main(["watch", "run", "--episodes", "1"]) == 2
    assert "project/project_env.py, which is not there any more" in capsys.readouterr().err
    assert main(["watch", "run", "--episodes", "1", "--trust"]) == 0
    assert main([*words, "--resume", "--max-env-steps", "320"]) == 0
    assert main(["train", "dqn", "project_env:Corridor", *words[3:], "--resume"]) == 0
    assert '"env_steps": 320' in capsys.readouterr().out.splitlines()[-1]

    monkeypatch.chdir("..")
    Path("project moved").rename("project")
    go_to(".")
    assert main(["watch", "project/run", "--episodes", "1", "--trust"]) == 2
    assert "If it has moved, run this in the folder that has it." in capsys.readouterr().err


# -- evolve ------------------------------------------------------------------------------


def test_an_evolution_ends_with_its_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("evolve", "dqn", "CartPole-v1", "--population", "2", "--max-env-steps", "900")
    searches = ("--search", "lr=1e-4:1e-2:log", "--search", "batch_size=8:16")
    Path("evolved.py").write_text("def tell(metrics, step):\n    print('told', step)\n")
    report = ("--report", "evolved.py:tell")
    assert (
        main([*words, *searches, *OF_EVOLUTION.split(), *report, "--seed", "3", "--out", "run"])
        == 0
    )
    out, err = capsys.readouterr()
    *reported, line = out.splitlines()
    assert reported
    assert all(one.startswith("told ") for one in reported)
    numbers = json.loads(line)
    assert list(numbers)[:10] == KEYS[:10]
    assert numbers["example"] == "evolve-dqn"
    assert numbers["seed"] == 3
    assert numbers["population"] == 2
    assert 100 < numbers["env_steps"] <= 900
    assert numbers["hyperparameters"].keys() == {"lr", "batch_size"}
    assert "generation 0: best " in err
    assert "becomes" in err
    assert "lineage      run/lineage.jsonl" in err


def test_settings_of_evolution_are_shown_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evolve", "dqn", "CartPole-v1", "--settings", "--set", "mutation_sd=0.5"]) == 0
    shown = {line.split()[0]: line.split()[1:3] for line in capsys.readouterr().out.splitlines()}
    assert shown["mutation_sd"] == ["0.5", "given"]
    assert shown["population"] == ["6", "default"]
    assert shown["capacity"] == ["50000", "preset"]

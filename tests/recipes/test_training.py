"""Training by name, in one call."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from easydict import EasyDict

import ding_lite
from ding_lite import middleware as mw
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.recipes import TrainResult, load_policy
from ding_lite.recipes.table import made_by
from ding_lite.rl.batch import Transitions
from ding_lite.rl.checkpoint.save_load import load_checkpoint, save_checkpoint
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.rl.envs.vector import Envs, make_envs
from ding_lite.rl.evaluation import Played, mean_return, play
from ding_lite.rl.networks.conv import Conv
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_policies.config import TorchPolicyConfig
from ding_lite.rl.torch_policies.r2d2 import R2D2, R2D2Config
from ding_lite.rl.torch_policies.torch_policy import TorchPolicy
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware

QUICK: dict[str, Any] = {"max_env_steps": 160, "hidden": (8,), "batch_size": 8, "warmup": 20}
MANY: dict[str, Any] = {**QUICK, "num_envs": 32, "quiet": True}
"""Too many environments for an episode to end, so that no curve is drawn, which takes longest."""
SEQUENCES = R2D2Config(hidden=(8,), memory_size=8, sequence_length=3, burn_in=1, batch_size=8)
EVALUATED: dict[str, Any] = {"num_envs": 4, "seed": 3, "eval_every": 40, "target": 1e6}


def train(env: str = "CartPole-v1", settings: Any = None, **more: Any) -> TrainResult:
    return ding_lite.train("dqn", env, settings, quiet=True, **{**QUICK, **more})


class Watched(NamedTuple):
    """A run, and the metrics that its own middleware saw."""

    result: TrainResult
    seen: list[tuple[int, dict[str, float]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Train once, for all tests that read the results, or go on with a copy of them."""
    seen: list[tuple[int, dict[str, float]]] = []
    tell = mw.report(lambda metrics, env_step: seen.append((env_step, metrics)), every=10)
    with contextlib.chdir(folder := tmp_path_factory.mktemp("whole")):
        result = train(use=[lambda ctx: ctx.metrics.update(mine=1.0), tell], **EVALUATED)
    return Watched(replace(result, directory=folder / result.directory), seen)


@pytest.fixture
def here(run: Watched) -> Path:
    return Path(shutil.copytree(run.result.directory, "here"))


def rows_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def same_weights(one: Policy, other: Policy) -> bool:
    weights = other.weights()
    return all(bool((value == weights[name]).all()) for name, value in one.weights().items())


def test_it_returns_the_policy_and_leaves_a_whole_run(run: Watched) -> None:
    result = run.result
    assert isinstance(result.policy, DQN)
    assert result.policy.config.hidden == (8,)
    assert result.directory.parts[-4:] == ("runs", "dqn", "CartPole-v1", "1")
    left = {path.name.partition(".out.")[0] for path in result.directory.iterdir()}
    assert left == {
        *("config.json", "metrics.jsonl", "checkpoint", "best", "curve.png", "events"),
        *("pipeline.txt", "result.json", "best_evaluated"),
    }
    assert result.solved is False
    assert result.numbers["env_steps"] == 160
    assert result.numbers["train_iter"] > 0
    saved = load_checkpoint(result.directory / "checkpoint")
    assert saved.state.keys() == {"policy", "envs", "eval_envs", "task", "replay"}
    rows = rows_of(run.result.directory)
    assert rows[-1]["memory_mb"] > 10.0
    assert rows[-1]["steps_per_s"] > 0.0
    evaluations = {row["eval_env_step"]: row["eval_return"] for row in rows if "eval_return" in row}
    assert len(evaluations) == 3
    best = load_checkpoint(run.result.directory / "best_evaluated").meta
    assert best["eval_value"] >= max(evaluations.values())
    policy = load_policy(run.result.directory)
    assert policy.config == run.result.policy.config
    assert same_weights(policy, run.result.policy)


def test_a_last_policy_that_is_better_than_the_best_evaluated_one_is_delivered(
    run: Watched, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, numbers = run.result, run.result.numbers
    assert numbers["delivered"] == "last"
    assert numbers["other_return"] < numbers["eval_return"]
    assert same_weights(result.policy, load_policy(here, last=True))
    kept = load_checkpoint(here / "best").meta
    assert (kept["env_step"], kept["eval_value"]) == (160, numbers["eval_return"])
    assert load_checkpoint(here / "best_evaluated").meta["env_step"] < 160

    again = ding_lite.train("dqn", "CartPole-v1", out=here, resume=True)
    assert {**again.numbers, "wall_s": 0, "seconds": 0} == {**numbers, "wall_s": 0, "seconds": 0}
    assert load_checkpoint(here / "best").meta == kept
    assert (
        "  delivered    the last policy, chosen by the same episodes as the policy of the best "
        in (capsys.readouterr().err)
    )


def test_a_run_has_no_result_before_it_has_the_policy_that_this_is_of(here, monkeypatch) -> None:
    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ding_lite.recipes.training.put_best_aside", killed)
    assert (here / "result.json").exists()
    with pytest.raises(KeyboardInterrupt):
        train(out=here, resume=True, **EVALUATED)
    assert not (here / "result.json").exists()
    assert load_checkpoint(here / "best").meta["env_step"] < 160


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_finished_run_goes_on_from_its_best_evaluation_whatever_it_has_delivered(
    here: Path, is_killed: bool
) -> None:
    if is_killed:  # before it could save what it delivers
        shutil.rmtree(here / "best")
    changes: dict[str, Any] = {**EVALUATED, "max_env_steps": 200}
    longer = train(out=here, resume=True, **changes)
    at_once = train(out="at-once", **changes)
    assert load_checkpoint(here / "best").meta == load_checkpoint("at-once/best").meta
    assert same_weights(longer.policy, at_once.policy)
    assert longer.numbers.get("delivered") == at_once.numbers.get("delivered")
    assert longer.numbers["eval_return"] == at_once.numbers["eval_return"]


@pytest.mark.parametrize("max_env_steps", [3_000, 15_000])
def test_what_the_best_and_the_last_policy_play_is_within_the_share(max_env_steps: int) -> None:
    few: dict[str, Any] = {"max_env_steps": max_env_steps, "unroll": 64, "epochs": 1}
    numbers = ding_lite.train("ppo", Scripted, quiet=True, hidden=(8,), **few).numbers
    assert 0 < numbers["eval_env_steps"] <= 0.05 * numbers["env_steps"]
    assert numbers["delivered"] in ("best", "last")
    assert numbers["other_return"] > 0.0
    assert numbers["eval_env_steps"] + numbers["verdict_env_steps"] <= 0.1 * numbers["env_steps"]
    assert numbers["eval_episodes"] >= 1


def test_middleware_of_ones_own_sees_the_metrics_and_adds_to_them(run: Watched) -> None:
    env_step, metrics = run.seen[-1]
    assert env_step == 160
    assert {"loss", "return", "mine", "steps_per_s"} <= metrics.keys()
    assert rows_of(run.result.directory)[-1]["mine"] == 1.0


def test_a_run_of_an_earlier_version_goes_on_with_the_defaults_of_what_it_did_not_know(
    here: Path,
) -> None:
    file = here / "config.json"
    described = json.loads(file.read_text())
    saved = load_checkpoint(here / "checkpoint")
    del described["config"]["atari"], described["config"]["normalize_obs"]
    del saved.meta["parts"]["policy"]["config"]["normalize_obs"]
    file.write_text(json.dumps(described))
    save_checkpoint(here / "checkpoint", saved.state, meta=saved.meta)
    with pytest.raises(ConfigError, match=r"`normalize_obs` is True, and was False\. Resume"):
        train(out=here, resume=True, normalize_obs=True)
    assert train(out=here, resume=True, max_env_steps=200).numbers["env_steps"] == 200
    assert json.loads(file.read_text())["config"]["atari"] is False


def test_what_comes_back_is_the_policy_of_the_best_evaluation(monkeypatch) -> None:
    values = iter([1.0, 3.0, 2.0])
    module = import_module("ding_lite.middleware.evaluate")
    monkeypatch.setattr(module, "play", lambda *args, **more: Played(next(values), 8, 20))
    result = train(eval_every=40, max_env_steps=120, target=1e6)
    assert load_checkpoint(result.directory / "best").meta["eval_value"] == 3.0
    last = load_policy(result.directory, last=True)
    best = load_policy(result.directory)
    assert result.policy.state_dict()["train_iter"] == best.state_dict()["train_iter"]
    assert best.state_dict()["train_iter"] < last.state_dict()["train_iter"]


def test_evaluations_are_drawn_where_no_episode_has_ended(monkeypatch, tmp_path) -> None:
    monkeypatch.undo()
    result = train(num_envs=32, eval_every=80, target=1e6, out=tmp_path / "drawn")
    assert (result.directory / "curve.png").stat().st_size > 1_000


def test_keywords_win_over_a_dict_or_an_easydict() -> None:
    for settings in ({"lr": 0.5, "gamma": 0.9}, EasyDict(lr=0.5, gamma=0.9)):
        config = ding_lite.train("dqn", "CartPole-v1", settings, lr=0.25, **MANY).policy.config
        assert isinstance(config, DQNConfig)
        assert (config.lr, config.gamma) == (0.25, 0.9)


def test_middleware_of_ones_own_are_made_of_the_parts_of_the_run() -> None:
    def evaluate_elsewhere(parts: Mapping[str, Any]) -> list[Middleware]:
        def elsewhere(ctx: Any) -> None:
            ctx.metrics["elsewhere"] = mean_return(parts["policy"], easier)

        easier = make_envs("CartPole-v1", 1, env_args={"sutton_barto_reward": True})
        names.append(list(parts))
        return [elsewhere]

    names: list[list[str]] = []
    result = train(use=evaluate_elsewhere, out="here", max_env_steps=64)
    assert rows_of(result.directory)[-1]["elsewhere"] == -1.0
    assert names == [["policy", "envs", "eval_envs", "task", "replay"]]


def test_a_function_that_makes_no_middleware_is_told_what_it_gets() -> None:
    with pytest.raises(ConfigError, match=r"`use` returned None; a list .*\(policy, envs, "):
        train(use=lambda parts: None)
    with pytest.raises(AttributeError) as caught:
        train(use=lambda ctx: ctx.metrics)
    assert "`use=[fn]` is for a single middleware" in caught.value.__notes__[0]


def test_a_run_that_a_stage_has_ended_does_not_go_on_unless_it_is_made_longer() -> None:
    def end(ctx: Any) -> None:
        if ctx.env_step >= 64:
            ctx.finish = True

    def again(**more: Any) -> int:
        steps: int = train(use=[end], out="here", target=1e6, **more).numbers["env_steps"]
        return steps

    assert again(max_env_steps=200) == 64
    assert again(max_env_steps=200, resume=True) == 64
    assert again(max_env_steps=300, resume=True) == 72
    assert again(max_env_steps=300, resume=True) == 72


def test_numbers_of_numpy_are_options_like_those_of_python() -> None:
    given: dict[str, Any] = {"seed": np.int64(1), "num_envs": np.int32(32), "out": "here"}
    first = train(**given, target=np.float32(1e6), max_env_steps=np.int64(96))
    assert first.numbers["seed"] == 1
    described = json.loads(Path("here/config.json").read_text())
    assert described["options"]["max_env_steps"] == 96
    longer = train(**given, target=1e6, max_env_steps=np.uint8(128), resume=True)
    assert longer.numbers["env_steps"] == 128


def test_the_current_folder_may_change_during_a_run(tmp_path, capsys) -> None:
    def elsewhere(ctx: Any) -> None:
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        os.chdir(tmp_path / "elsewhere")

    more: dict[str, Any] = {"eval_every": 40, "target": 1e6, "use": [elsewhere], "out": "here"}
    ding_lite.train("dqn", "CartPole-v1", **QUICK, **more)
    assert not [*(tmp_path / "elsewhere").iterdir()]
    left = {path.name for path in (tmp_path / "here").iterdir()}
    assert left >= {"metrics.jsonl", "checkpoint", "best", "curve.png", "result.json"}
    assert "  checkpoint   here/checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("slip", "message"),
    [
        ({"settings": [1]}, "`settings` is a list; a dict or an EasyDict was expected"),
        ({"use": 7}, "`use` is an int; a list of middleware was expected"),
        ({"use": mw.report(print, every=9)}, r"`use` is one middleware; .*: use=\[\.\.\.\]"),
        ({"use": mw.stop_at(env_step=9)}, "`use` is one middleware; a list"),
        ({"config": 3}, "`config` is 3; a path was expected"),
        ({"out": 3.5}, r"`out` is 3\.5; a path was expected"),
        ({"out": "a\0b"}, r"`out` is 'a\\x00b'; a path without a NUL was expected"),
        ({"target": "x"}, "`target` is 'x'; it must be a number"),
        ({"out": "a", "resume": "runs/x"}, "`resume` is 'runs/x'; it must be one of: False, True"),
        ({"smoke": "no"}, "`smoke` is 'no'; it must be one of: False, True"),
        ({"atari": True}, "`atari` is on, but CartPoleEnv is no Atari game"),
        ({"target_margin": -1.0}, r"`target_margin` is -1\.0; it must be at least 0\.0"),
        ({"episode_limit": 0}, "`episode_limit` is 0"),
        ({"device": "cuda:77"}, r"which cannot be used here: .*\w\. Use \"cpu\""),
    ],
)
def test_a_slip_in_an_option_is_explained(slip: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(**slip)
    if "device" not in slip:
        with pytest.raises(ConfigError, match=message):
            ding_lite.evolve("dqn", "CartPole-v1", quiet=True, **slip)
    assert not Path("runs").exists()


def test_it_goes_on_where_the_target_is_not_exceeded_by_the_margin() -> None:
    few: dict[str, Any] = {"target": 1.0, "target_margin": 500.0, "eval_every": 40, "out": "here"}
    for max_env_steps in (80, 160):
        result = train(**few, resume=True, max_env_steps=max_env_steps)
        assert result.solved is True
        assert result.numbers["env_steps"] == max_env_steps


@pytest.mark.parametrize(("confirm", "expected"), [(60, [20, 60]), (0, [20])])
def test_what_would_end_a_run_is_confirmed_by_as_many_episodes_as_are_asked_for(
    confirm: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    played = []

    def recorded(policy: Policy, envs: Envs, *, episodes: int) -> Played:
        played.append(episodes)
        return play(policy, envs, episodes=episodes)

    # The package has a function of the module's name.
    module = import_module("ding_lite.middleware.evaluate")
    monkeypatch.setattr(module, "play", recorded)
    result = train(target=5.0, eval_every=40, confirm_episodes=confirm)
    assert (result.solved, result.numbers["env_steps"]) == (True, 64)  # 24 of them random
    assert played == expected


def never_there(**more: Any) -> dict[str, Any]:
    few: dict[str, Any] = {"max_env_steps": 4_000, "hidden": (8,), "update_ratio": 0.05}
    few |= {"warmup": 1_000, "warmup_hold": 1, "quiet": True, **more}
    return ding_lite.train("dqn", "MountainCar-v0", **few).numbers


def test_by_default_evaluations_stay_within_a_tenth_of_the_env_steps() -> None:
    numbers = never_there(env_args={"max_episode_steps": 600}, eval_episodes=4)
    assert (numbers["env_steps"], numbers["solved"]) == (4_000, False)
    assert numbers["eval_env_steps"] == 0  # four episodes of 600 would be too many
    assert (numbers["eval_episodes"], numbers["verdict_env_steps"]) == (1, 600)
    assert numbers["seconds"].keys() >= {"train", "collect", "verdict", "other"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"eval_share": 0.1, "eval_every": 1_000}, "There were no evaluations before the verdict"),
        ({"eval_share": 9.0, "eval_every": 500, "eval_episodes": 1}, ""),
        ({"target": -1e6, "target_margin": 2e6}, ""),
    ],
)
def test_a_run_says_how_to_have_more_evaluations_where_the_share_allows_few(
    more: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    never_there(**{"env_args": {"max_episode_steps": 600}, "quiet": False, **more})
    told = capsys.readouterr().err
    assert ("evaluation" in told.splitlines()[-1]) == bool(said)
    assert said in told


@pytest.mark.parametrize(("length", "episodes"), [(100, 2), (300, 1)])
def test_a_verdict_of_a_short_run_has_one_episode_beyond_its_share(length, episodes) -> None:
    made: dict[str, Any] = {"env_args": {"length": length}, "max_env_steps": 2_000}
    numbers = ding_lite.train("dqn", Lasts, update_ratio=0.05, quiet=True, **made).numbers
    assert numbers["verdict_env_steps"] == length * episodes
    assert numbers["eval_episodes"] == episodes


def test_short_verdicts_and_evaluations_that_were_asked_for_are_whole() -> None:
    small = never_there()
    assert small["eval_env_steps"] <= 400
    assert (small["eval_episodes"], small["verdict_env_steps"]) == (20, 20 * 200)
    asked = never_there(eval_every=2_000)
    assert asked["eval_env_steps"] == 20 * 200
    assert asked["eval_episodes"] == 20


def test_an_evaluation_that_ends_a_run_within_the_share_is_its_verdict() -> None:
    result = ding_lite.train("dqn", "CartPole-v1", quiet=True, target=8.0, out="here", hidden=(8,))
    numbers = result.numbers
    assert (numbers["solved"], numbers["eval_episodes"]) == (True, 20)
    assert numbers["eval_env_steps"] == 0
    assert numbers["verdict_env_steps"] == pytest.approx(20 * numbers["eval_return"])
    again = ding_lite.train("dqn", "CartPole-v1", quiet=True, out="here", resume=True).numbers
    assert {**again, "wall_s": 0, "seconds": 0} == {**numbers, "wall_s": 0, "seconds": 0}


@pytest.mark.parametrize(
    ("policy", "settings", "most"),
    [
        ("ppo", {"unroll": 512, "num_envs": 4}, 204),
        ("ppo", {"unroll": 512, "num_envs": 16}, 208),
        ("dqn", {"warmup": 5_000, "hidden": (8,)}, 200),
    ],
)
def test_a_run_that_is_shorter_than_a_block_of_env_steps_makes_a_shorter_block(
    policy: str, settings: dict[str, Any], most: int
) -> None:
    run: dict[str, Any] = {"max_env_steps": 200, "quiet": True, "target": 1e6, "out": "here"}
    result = ding_lite.train(policy, "CartPole-v1", **run, **settings)
    assert 192 <= result.numbers["env_steps"] <= most
    assert result.numbers["train_iter"] > 0
    longer = ding_lite.train(
        policy, "CartPole-v1", quiet=True, out="here", resume=True, max_env_steps=1_000
    )
    assert longer.numbers["env_steps"] >= 992


class Scripted(gymnasium.Env[Any, Any]):
    """Ends by what is played in it, or very late."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.age += 1
        return np.zeros(2, np.float32), *self.play(action), self.age >= 20_000, {}

    def play(self, action: Any) -> tuple[float, bool]:
        """Ends in each step with a probability."""
        return 1.0, bool(self.np_random.random() < 0.1)


class Lasts(Scripted):
    def __init__(self, length: int) -> None:
        self.length = length

    def play(self, action: Any) -> tuple[float, bool]:
        return 1.0, self.age >= self.length


class Waits(Scripted):
    """Ends soon if acted in at random, and very late if nothing is done."""

    def play(self, action: Any) -> tuple[float, bool]:
        return -float(action), bool(action == 1 and self.np_random.random() < 0.1)


def test_evaluations_of_a_policy_that_only_waits_keep_to_their_share() -> None:
    settings: dict[str, Any] = {"max_env_steps": 10_000, "update_ratio": 0.05, "quiet": True}
    numbers = ding_lite.train("dqn", Waits, **settings).numbers
    assert numbers["eval_env_steps"] <= 1_000
    assert numbers["verdict_env_steps"] == 1_000
    assert numbers["eval_episodes"] == 0
    assert numbers["solved"] is None


def test_a_run_with_priorities_and_without_random_steps_learns_too() -> None:
    settings = {**MANY, "prioritized": True, "warmup": 0}
    assert ding_lite.train("dqn", "CartPole-v1", **settings).numbers["train_iter"] > 0


def test_a_run_with_convolutions_is_loaded_resumed_and_rerun() -> None:
    convs = (Conv(4, 3, 1),)
    first = train("ding_lite/Catch-v0", convs=convs, num_envs=2, max_env_steps=60, out="here")
    assert first.policy.spec.frame_stack == 2
    assert first.numbers["eval_return"] < 9.0
    assert load_policy("here").config == first.policy.config
    longer = train("ding_lite/Catch-v0", out="here", resume=True, num_envs=2, max_env_steps=80)
    assert longer.numbers["env_steps"] == 80
    rerun = train("ding_lite/Catch-v0", config="here/config.json", max_env_steps=60)
    assert rerun.policy.config == longer.policy.config


def test_a_run_in_bfloat16_resumes_in_it_and_leaves_the_process_as_it_was() -> None:
    found: list[str] = []

    def watch(ctx: Context) -> None:
        found.append(torch.get_float32_matmul_precision())

    more: dict[str, Any] = {"num_envs": 2, "warmup": 20, "use": [watch]}
    train("ding_lite/Catch-v0", precision="bfloat16", max_env_steps=60, out="half", **more)
    halves = train("ding_lite/Catch-v0", max_env_steps=80, out="half", resume=True, **more)
    assert set(found) == {"medium"}
    assert torch.get_float32_matmul_precision() == "highest"
    whole = train("ding_lite/Catch-v0", precision="bfloat16", max_env_steps=80, **more)
    for name, weight in whole.policy.weights().items():
        assert torch.equal(weight, halves.policy.weights()[name]), name


def test_an_episode_limit_cuts_what_is_learned_from_and_no_evaluation() -> None:
    result = train(episode_limit=5, eval_every=40, log_every=40, target=1e6)
    rows = rows_of(result.directory)
    assert {row["episode_length"] for row in rows if "episode_length" in row} == {5.0}
    assert max(row["eval_return"] for row in rows if "eval_return" in row) > 5.0
    assert result.numbers["eval_return"] > 5.0
    assert load_policy(result.directory).config == result.policy.config


class Net(torch.nn.Module):
    """A network at the top of a module, so that it is found again by its name."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.body = torch.nn.Linear(spec.obs_shape[0], spec.num_actions or 1)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.body(obs)
        return values


class Linear(TorchPolicy[TorchPolicyConfig]):
    def build(self) -> None:
        self.net = Net(self.spec)

    def choose(self, obs: torch.Tensor, explore: bool) -> torch.Tensor:
        return self.net.forward(obs).argmax(-1)

    def loss(self, batch: Transitions) -> tuple[torch.Tensor, dict[str, float]]:
        return self.net.forward(torch.as_tensor(batch.obs)).square().mean(-1), {}


def test_a_network_of_ones_own_is_found_again_or_asked_for() -> None:
    few = {name: value for name, value in MANY.items() if name != "hidden"}
    result = ding_lite.train(
        "dqn", "CartPole-v1", network=Net, optimizer=torch.optim.RMSprop, device="cpu", **few
    )
    loaded = load_policy(result.directory, last=True)
    assert isinstance(loaded, DQN)
    assert torch.equal(loaded.weights()["body.bias"], result.policy.weights()["body.bias"])

    hidden = ding_lite.train("dqn", "CartPole-v1", network=lambda spec: Net(spec), **few)
    with pytest.raises(CheckpointError, match=r"a network of your own.*load_policy\(.*, network="):
        load_policy(hidden.directory)
    again = load_policy(hidden.directory, network=Net)
    assert again.weights().keys() == {"body.weight", "body.bias"}


def test_networks_are_compiled_as_the_user_wants_it_and_a_resumed_run_goes_on_so() -> None:
    few: dict[str, Any] = {"warmup": 20, "batch_size": 8, "quiet": True, "out": "compiled"}
    few["num_envs"] = 32
    compiled: list[Any] = []

    def note(module: Any) -> Any:
        compiled.append(module)
        return module

    result = ding_lite.train(
        "dqn", "CartPole-v1", network=Net, compile=note, max_env_steps=80, **few
    )
    assert [type(module) for module in compiled] == [Net, Net]
    file = result.directory / "config.json"
    about = json.loads(file.read_text())
    assert "compile" not in about["config"]  # a function is to be given again
    about["config"]["compile"] = "graph"
    file.write_text(json.dumps(about))
    asked: list[dict[str, Any]] = [{}, {"compile": "graph"}]
    for more in asked:
        with pytest.raises(ConfigError, match=r'`compile="graph"` .* a GPU was expected'):
            ding_lite.train("dqn", "CartPole-v1", network=Net, resume=True, **few, **more)
    ding_lite.train(
        "dqn", "CartPole-v1", network=Net, resume=True, compile=False, max_env_steps=160, **few
    )


@pytest.mark.parametrize(
    "policy", [Linear, f"{__file__}:Linear", lambda spec: DQN(spec, DQNConfig(batch_size=8))]
)
def test_a_policy_is_a_class_a_name_in_a_file_or_a_function(policy: Any) -> None:
    few: dict[str, Any] = {"max_env_steps": 160, "warmup": 20, "num_envs": 32, "quiet": True}
    result = ding_lite.train(policy, "CartPole-v1", **few)
    is_function = callable(policy) and not isinstance(policy, type)
    name = "lambda" if is_function else "linear"
    assert result.directory == Path(f"runs/{name}/CartPole-v1/1")
    assert result.numbers["train_iter"] > 0
    assert type(load_policy(result.directory)).__name__ == type(result.policy).__name__


class Mine(DQN):
    """A subclass of a policy of this package."""


def test_a_subclass_has_the_settings_and_presets_of_its_base() -> None:
    result = ding_lite.train(Mine, "CartPole-v1", **MANY, lr=0.25)
    assert isinstance(result.policy, Mine)
    assert result.policy.config.lr == 0.25
    described = json.loads((result.directory / "config.json").read_text())["config"]
    assert described["capacity"] == 50_000  # of the preset
    loaded = load_policy(result.directory)
    assert (type(loaded), loaded.config) == (Mine, result.policy.config)


def test_a_function_gets_the_seed_of_the_run_or_begins_with_it() -> None:
    def with_seed(spec: EnvSpec, seed: int) -> DQN:
        return DQN(spec, DQNConfig(hidden=(8,), seed=seed))

    def without(spec: EnvSpec) -> DQN:
        return DQN(spec, network=torch.nn.Linear(4, 2))

    few: dict[str, Any] = {"max_env_steps": 64, "warmup": 0, "num_envs": 16, "quiet": True}

    def with_its_own(spec: EnvSpec) -> DQN:
        return DQN(spec, DQNConfig(hidden=(8,), seed=3))

    cartpole = EnvMaker.of("CartPole-v1").spec()
    drawn = [
        np.array([made_by(make, cartpole, seed).act(np.zeros((99, 4)))])
        for make in (without, with_its_own)
        for seed in (1, 2)
    ]
    assert not np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[2], drawn[3])
    makers: list[Any] = [with_seed, without]
    for make in makers:
        one, other = (
            ding_lite.train(make, "CartPole-v1", seed=seed, **few).policy for seed in (1, 2)
        )
        assert not same_weights(one, other)


def test_what_makes_no_policy_is_refused() -> None:
    def number(spec: EnvSpec) -> Any:
        return 1

    with pytest.raises(ConfigError, match="`number` returned an int for a spec; a policy was"):
        ding_lite.train(number, "CartPole-v1")
    with pytest.raises(ConfigError, match=r"`SAC`: got an unexpected .*are .*`actor`, `critic`"):
        ding_lite.train("sac", "Pendulum-v1", network=Net)
    with pytest.raises(ConfigError, match=r"has no class or function `Lineer`.*Did you mean"):
        ding_lite.train(f"{__file__}:Lineer", "CartPole-v1")


def test_an_error_in_a_policy_of_the_users_is_raised_as_it_is() -> None:
    class Faulty(Linear):
        def build(self) -> None:
            wrong: dict[str, Any] = {"width": 8}
            self.net = Net(self.spec, **wrong)

    with pytest.raises(TypeError, match="unexpected keyword argument 'width'"):
        ding_lite.train(Faulty, "CartPole-v1")


def test_a_file_has_settings_and_options_and_what_is_given_wins() -> None:
    Path("mine.toml").write_text("lr = 0.5\nhidden = [4]\nnum_envs = 8\nmax_env_steps = 40\n")
    first = ding_lite.train("dqn", "CartPole-v1", config="mine.toml", lr=0.25, quiet=True)
    config = first.policy.config
    assert isinstance(config, DQNConfig)
    assert (config.lr, config.hidden, first.numbers["env_steps"]) == (0.25, (4,), 40)
    again = ding_lite.train(
        "dqn", "CartPole-v1", config=first.directory / "config.json", seed=1, quiet=True
    )
    reported = [json.loads((one.directory / "config.json").read_text()) for one in (first, again)]
    assert reported[0]["config"] == reported[1]["config"]
    Path("mine.toml").write_text("learning_rate = 0.5")
    with pytest.raises(ConfigError, match=r'Unknown setting "learning_rate"\. Did you mean "lr"'):
        ding_lite.train("dqn", "CartPole-v1", config="mine.toml")


def test_a_policy_with_memory_learns_from_sequences_and_goes_on(tmp_path: Path) -> None:
    given: dict[str, Any] = {"out": tmp_path, "quiet": True, "target": 2.0, "batch_size": 8}
    recall = "ding_lite.testing.probes:probe/Recall-v0"
    first = ding_lite.train("r2d2", recall, max_env_steps=240, **given)
    assert first.numbers["train_iter"] > 0
    longer = ding_lite.train("r2d2", recall, max_env_steps=320, resume=True, **given)
    assert longer.numbers["train_iter"] > first.numbers["train_iter"]
    policy: Any = load_policy(tmp_path)
    memory = policy.make_memory(2)
    assert type(policy) is R2D2
    assert policy.config.memory == "gru"  # of the preset
    assert policy.act(np.ones((2, 1), np.float32), explore=False, memory=memory).shape == (2,)


def test_a_damaged_best_policy_is_found_before_the_run_goes_on(here: Path) -> None:
    result = (here / "result.json").read_text()
    [tensors] = (here / "best_evaluated").glob("tensors-*")
    tensors.write_bytes(tensors.read_bytes()[:10])
    with pytest.raises(CheckpointError, match=r"damaged.*To go on without it, delete .*best"):
        train(**{**EVALUATED, "max_env_steps": 200}, out=here, resume=True)
    assert (here / "result.json").read_text() == result


class Summing(TorchPolicy[TorchPolicyConfig]):
    """Predicts rewards from sums of what it has seen; learns from sequences."""

    state_size, sequence_length, burn_in = 1, 3, 1

    def build(self) -> None:
        self.net = torch.nn.Linear(1, 2)

    def choose(self, obs: Any, explore: bool, state: Any) -> Any:
        return self.net(state + obs).argmax(-1), state + obs

    def loss(self, batch: Any) -> Any:
        found = self.net(batch.obs[:, :-1].cumsum(1)).gather(-1, batch.action[..., None])
        return ((found.squeeze(-1) - batch.reward).square() * batch.mask).sum(1), {}


@pytest.mark.parametrize("policy", [Summing, lambda spec: R2D2(spec, SEQUENCES)])
def test_a_policy_of_ones_own_that_learns_from_sequences_is_trained_from_them(policy: Any) -> None:
    recall = "ding_lite.testing.probes:probe/Recall-v0"
    result = ding_lite.train(policy, recall, max_env_steps=240, quiet=True, target=2.0)
    assert result.numbers["train_iter"] > 0
    bred = ding_lite.evolve(policy, recall, population=2, max_env_steps=480, smoke=True, quiet=True)
    assert bred.numbers["train_iter"] > 0

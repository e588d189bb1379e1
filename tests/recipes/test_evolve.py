"""Evolution in one call: what it leaves, what it counts, and that it goes on exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from ding_lite import middleware as mw
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.evolution import Population, Search, integer, log_uniform
from ding_lite.middleware.report.evolution import draw_lives, families, lines_of
from ding_lite.recipes import EvolveResult, evolve, load_policy
from ding_lite.recipes.choices import Choices
from ding_lite.recipes.evolve import plan_evolution
from ding_lite.recipes.evolve_config import ReplayEvolutionConfig
from ding_lite.recipes.presets.dqn import DQN_EVOLUTION_PRESETS
from ding_lite.recipes.table import RECIPES
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.policies.ppo import PPO
from ding_lite.rl.spec import EnvSpec
from ding_lite.testing import run_step
from tests.evolution.conftest import some_transitions

SEARCH = Search(lr=log_uniform(1e-4, 1e-2), batch_size=integer(8, 32), learn_every=integer(4, 16))
SMALL: dict[str, Any] = {
    "population": 3,
    "hidden": (8,),
    "warmup": 64,
    "turn": 16,
    "eval_every": 240,
    "eval_episodes": 2,
    "log_every": 96,
    "quiet": True,
}


def small(**more: Any) -> EvolveResult:
    return evolve(DQN, "CartPole-v1", SEARCH, **{"max_env_steps": 1_500, **SMALL, **more})


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> EvolveResult:
    """Evolve once, for all tests that only read the results."""
    return small(mutate_none=0.2, out=tmp_path_factory.mktemp("runs") / "1")


def test_a_run_leaves_its_lineage_pictures_and_best_policy(result: EvolveResult) -> None:
    directory = result.directory
    for name in ("fitness.png", "family.png", "hyperparameters.png", "curve.png", "config.json"):
        assert (directory / name).stat().st_size > 0
    lives = [json.loads(line) for line in (directory / "lineage.jsonl").read_text().splitlines()]
    generations = result.numbers["generations"]
    assert generations >= 3
    assert [life["generation"] for life in lives] == [
        number for number in range(generations + 1) for _ in range(3)
    ]
    assert all(life["hyperparameters"].keys() == SEARCH.parameters.keys() for life in lives)

    saved = load_policy(directory)
    assert isinstance(saved, DQN)
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        saved.act(obs, explore=False), result.best.act(obs, explore=False)
    )
    assert saved.config == result.best.config
    assert result.best.fitness is not None
    with pytest.raises(CheckpointError, match=r"population, which has no newest policy\. Load the"):
        load_policy(directory, last=True)


def test_env_steps_of_evaluations_count(result: EvolveResult) -> None:
    text = (result.directory / "metrics.jsonl").read_text()
    rows = [json.loads(row) for row in text.splitlines()]
    last = rows[-1]
    assert last["eval_steps"] > 0
    assert result.numbers["eval_env_steps"] == last["eval_steps"]
    assert result.numbers["env_steps"] == last["env_step"] + last["eval_steps"]
    assert 900 < result.numbers["env_steps"] <= 1_500
    assert result.numbers["exceeded"] is None


def test_episodes_of_evaluations_and_those_that_are_learned_from_may_be_cut() -> None:
    result = small(eval_limit=7, episode_limit=5, max_env_steps=600, out="run")
    assert {life.fitness for life in result.population.lives} == {7.0}
    assert result.numbers["eval_return"] > 7.0  # the verdict's are not
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert {row["episode_length"] for row in rows if "episode_length" in row} == {5.0}
    with pytest.raises(ConfigError, match="`eval_limit` is 0"):
        small(eval_limit=0)


def make_vector(num_envs: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    mode = gymnasium.vector.AutoresetMode.SAME_STEP  # episodes cannot be cut from outside
    return gymnasium.vector.SyncVectorEnv([CartPoleEnv] * num_envs, autoreset_mode=mode)


def test_a_function_that_makes_vector_environments_evolves_and_its_episodes_are_not_cut() -> None:
    few: dict[str, Any] = {**SMALL, "max_env_steps": 600}
    assert evolve(DQN, make_vector, SEARCH, **few).numbers["generations"] > 0
    for _ in range(2):  # begins and resumes
        trial = evolve(DQN, make_vector, SEARCH, smoke=True, out="trial", resume=True, **few)
        assert trial.numbers["eval_episodes"] > 0
    for limit in ("eval_limit", "episode_limit"):
        with pytest.raises(ConfigError) as caught:
            evolve(DQN, make_vector, SEARCH, **{**few, limit: 9})
        told = str(caught.value)
        assert told.startswith("`max_episode_steps` (or `episode_limit`, `eval_limit`) is 9, and ")
        assert told.endswith("Limit them there.")


def test_an_evaluation_takes_at_most_4_times_what_an_agent_learns_from() -> None:
    config = ReplayEvolutionConfig(population=4, eval_every=6_000, eval_episodes=2)
    assert config.evaluation_limit(1_000) is None
    assert config.evaluation_limit(3_000) is None
    assert config.evaluation_limit(27_000) == config.evaluation_limit(None) == 3_000
    few = ReplayEvolutionConfig(population=4, eval_every=100)
    assert (few.evaluation_limit(500), few.evaluation_limit(501)) == (None, 500)
    assert ReplayEvolutionConfig(eval_limit=50).evaluation_limit(None) == 50


def test_policies_that_learn_from_long_rollouts_stay_within_the_env_steps_of_a_trial() -> None:
    result = evolve(
        PPO, "CartPole-v1", unroll=2_048, population=2, hidden=(8,), smoke=True, quiet=True
    )
    assert 960 <= result.numbers["env_steps"] <= 2_000
    assert result.numbers["exceeded"] is None
    assert result.numbers["train_iter"] > 0
    assert result.numbers["generations"] >= 1
    assert sorted(result.best.hyperparameters) == ["batch_size", "lr"]


def test_the_target_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    result = small(target=5.0, max_env_steps=100_000)
    assert result.directory == Path("runs/evolve-dqn/CartPole-v1/1")
    assert result.solved is True
    assert result.numbers["generations"] == 0
    assert result.best.fitness is not None
    assert result.best.fitness >= 5.0
    assert capsys.readouterr().err == ""


def test_a_run_without_an_evaluation_says_that_its_result_is_the_first_agent(capsys) -> None:
    result = small(max_env_steps=200, quiet=False)
    assert result.numbers["generations"] == 0
    assert "a generation has 240 env steps, the run 200." in capsys.readouterr().err


def test_a_run_goes_on_that_has_reached_its_target_without_the_margin() -> None:
    for most in (600, 1_200):
        result = small(target=5.0, target_margin=500.0, max_env_steps=most, out="on", resume=True)
        assert result.numbers["env_steps"] > most - 240


def test_a_run_that_goes_on_is_the_same_as_one_that_never_stopped(result: EvolveResult) -> None:
    """The first part ends early; what it had begun with decides everything that follows."""
    whole = result
    for max_env_steps in (500, 1_500):
        parts = small(mutate_none=0.2, out="parts", max_env_steps=max_env_steps, resume=True)
    assert parts.numbers["generations"] == whole.numbers["generations"] >= 2
    lineages = [one.directory / "lineage.jsonl" for one in (whole, parts)]
    assert lineages[0].read_text() == lineages[1].read_text()
    for one, other in zip(whole.population, parts.population, strict=True):
        assert one.config == other.config
        assert all(torch.equal(one.weights()[n], other.weights()[n]) for n in one.weights())
    assert parts.best.config == whole.best.config
    assert parts.numbers["eval_return"] == whole.numbers["eval_return"]

    with pytest.raises(ConfigError, match="`search` is"):
        evolve(
            DQN, "CartPole-v1", Search(lr=log_uniform(1e-4, 1e-3)), out="parts", resume=True,
            **SMALL,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"populaton": 3}, 'Did you mean "population"?'),
        ({"tournament_size": 9}, "`tournament_size` is 9, and the population has 3 agents"),
        ({"population": 1}, "1 agent, so that no more can take part. Choose tournament_size=1, or"),
        ({"update_ratio": 0.0}, "`update_ratio` is 0.0"),
        ({"capacity": 31, "warmup": 8}, "of the replay 31: a batch would never be full"),
    ],
)
def test_a_wrong_setting_is_reported_before_the_run_begins(given, message) -> None:
    with pytest.raises(ConfigError) as caught:
        evolve("dqn", "CartPole-v1", SEARCH, **{**SMALL, **given}, max_env_steps=300)
    assert message in str(caught.value)
    assert not Path("runs").exists()


def test_a_function_makes_the_policy_of_each_agent() -> None:
    def make(spec: EnvSpec) -> DQN:
        config = DQNConfig(gamma=0.9, dueling=True, lr=1e-3, batch_size=16, n_step=2)
        return DQN(spec, config, optimizer=torch.optim.RMSprop)

    result = evolve(
        make, "CartPole-v1", warmup=64, turn=16, eval_every=240, eval_episodes=1, population=2,
        max_env_steps=560, batch_size=8, search=Search(lr=log_uniform(1e-4, 1e-3)), quiet=True,
        frame_stack=2, out="here",
    )  # fmt: skip
    assert result.numbers["generations"] > 0
    seeds = set()
    for agent in result.population:
        config = agent.policy.config
        assert isinstance(agent.policy, DQN)
        assert isinstance(config, DQNConfig)
        assert (config.gamma, config.dueling, config.n_step, config.batch_size) == (0.9, True, 2, 8)
        assert agent.policy.parts == {"optimizer": torch.optim.RMSprop}
        assert agent.policy.spec.frame_stack == 2
        seeds.add(config.seed)
    assert 0 not in seeds
    loaded = load_policy("here", optimizer=torch.optim.RMSprop)
    assert isinstance(loaded, DQN)
    assert loaded.config.gamma == 0.9
    with pytest.raises(ConfigError, match="`device` was given beside a function that makes"):
        evolve(make, "CartPole-v1", device="cuda", out="other", quiet=True)


def test_a_trained_policy_evolves_further() -> None:
    trained = DQN(make_envs("CartPole-v1", 1).spec, DQNConfig(hidden=(8,)))
    for seed in range(3):
        trained.learn(some_transitions(trained.spec, 16, seed=seed))
    search = Search(lr=log_uniform(1e-4, 1e-3))
    result = evolve(
        lambda spec: trained.clone(), "CartPole-v1", population=2, max_env_steps=40, quiet=True,
        search=search, warmup=1_000, out="further",
    )  # fmt: skip
    for agent in result.population:
        policy: Any = agent.policy
        assert policy.train_iter == 3
        assert torch.equal(policy.weights()["head.weight"], trained.weights()["head.weight"])
    assert len({agent.config.lr for agent in result.population}) == 2


def test_settings_of_an_evolution_apply_to_policies_of_a_function_with_a_seed() -> None:
    result = evolve(
        lambda spec, seed=0: DQN(spec, DQNConfig(seed=seed, hidden=(8,))), "CartPole-v1",
        population=2, max_env_steps=40, quiet=True, search=Search(), warmup=1_000, gamma=0.5,
        out="settings",
    )  # fmt: skip
    configs = [agent.config for agent in result.population]
    assert [(config.gamma, config.hidden) for config in configs] == [(0.5, (8,))] * 2
    assert configs[0].seed != configs[1].seed


class Own:
    """No policy of this package."""


class Bare(DQN):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self.config: Any = None

    n_step: Any = 1
    gamma: Any = 0.9


@pytest.mark.parametrize(
    ("policy", "more", "message"),
    [
        (Own, {}, r"neither a name, .* nor a function of the spec"),
        (Bare, {}, r"`mw\.for_each`"),
        ("dqm", {}, "There is no policy 'dqm'"),
        (DQN, {"device": "cuda:77"}, "cuda:77"),
        (DQN, {"search": {"lr": (1e-4, 1e-2)}}, r"`search` is a dict; .* Search\(lr=log_uniform\("),
    ],
)
def test_what_cannot_evolve_is_refused_with_advice(policy, more, message) -> None:
    with pytest.raises(ConfigError, match=message):
        evolve(policy, "CartPole-v1", **more, quiet=True)


def test_actors_and_critics_evolve_too() -> None:
    result = evolve(
        "sac", "Pendulum-v1", population=2, hidden=(8,), warmup=100, turn=32, eval_every=128,
        eval_episodes=1, max_env_steps=900, mutate_none=0.0, quiet=True,
    )  # fmt: skip
    assert result.numbers["generations"] > 0
    assert sorted(result.best.hyperparameters) == ["actor_lr", "batch_size", "critic_lr"]


def test_policies_that_learn_from_sequences_evolve_and_go_on_exactly() -> None:
    """A memory may grow: the states in the buffer that all share are then padded."""
    given: dict[str, Any] = {"population": 3, "eval_every": 96, "turn": 24, "update_ratio": 0.25}
    given |= {"mutate_none": 0.1, "mutate_architecture": 0.8, "batch_size": 8, "target": 2.0}

    def run(out: str, max_env_steps: int) -> EvolveResult:
        search = Search(lr=log_uniform(1e-3, 1e-2))
        return evolve(
            "r2d2", "ding_lite.testing.probes:probe/Recall-v0", search,
            out=out, max_env_steps=max_env_steps, num_envs=4, resume=True, quiet=True, **given,
        )  # fmt: skip

    whole, _, parts = run("whole", 900), run("parts", 400), run("parts", 900)
    assert whole.numbers["generations"] >= 4
    assert whole.numbers["train_iter"] > 100
    policies: list[Any] = [agent.policy for agent in whole.population]
    assert {policy.config.memory_size for policy in policies} != {16}  # that of the preset
    for one, other in zip(whole.population, parts.population, strict=True):
        assert one.config == other.config
        assert all(torch.equal(one.weights()[n], other.weights()[n]) for n in one.weights())
    assert load_policy("parts").config == parts.best.config


def test_the_champion_is_the_agent_of_the_best_evaluation(tmp_path: Path) -> None:
    with make_envs("CartPole-v1", 1) as envs:
        population = Population.of(DQN, envs.spec, SEARCH, size=3, config={"hidden": (4,)})
    best_agent = mw.keep_best(population, tmp_path / "best")
    twin = mw.keep_best(population, tmp_path / "best")
    for value, place in ((10.0, 1), (50.0, 2), (30.0, 0)):
        for agent in population:
            agent.note_evaluation(value if agent.place == place else 0.0)
        run_step(best_agent, eval_value=value)
    assert best_agent.agent.fitness == 50.0
    assert best_agent.agent.place == 2
    assert best_agent.agent is not population[2]
    assert load_policy(tmp_path / "best").weights().keys() == population[2].weights().keys()

    twin.load_state_dict(best_agent.state_dict())
    assert twin.agent.fitness == 50.0
    run_step(twin, eval_value=40.0)
    assert twin.agent.fitness == 50.0


def test_each_generation_is_reported_as_a_table(result: EvolveResult) -> None:
    population = result.population
    first, heading, *rows = lines_of(population)
    lives = population.lives[-3:]
    assert first.startswith(f"generation {population.generation - 1}: best ")
    assert heading.split() == [
        "agent", "fitness", "lr", "batch_size", "learn_every", "hidden", "becomes",
    ]  # fmt: skip
    assert [row.split()[0] for row in rows] == [str(life.id) for life in lives]
    assert any("stays" in row for row in rows)


def test_one_number_of_env_steps_is_shown_while_it_runs_and_at_its_end(capsys) -> None:
    whole = small(out="shown", quiet=False).numbers
    small(out="shown", quiet=False, resume=True)
    all_steps, evaluated = f"{whole['env_steps']:,}", f"{whole['eval_env_steps']:,}"
    shown = capsys.readouterr().err
    assert f"{all_steps}/1,500 env steps" in shown
    assert f"after {all_steps} env steps ({evaluated} of them in evaluations)" in shown
    assert f"The run in shown had reached its end at {all_steps} env steps" in shown


def test_choices_and_negative_returns_are_drawn_too(result, tmp_path, monkeypatch) -> None:
    monkeypatch.undo()
    losing = [
        replace(
            life,
            fitness=-100.0 - life.place,
            hyperparameters={
                "loss": "mse",
                "lr": 1e-3,
                "max_grad_norm": (None, 1.0)[life.place % 2],
            },
        )
        for life in result.population.lives
    ]
    pictures = draw_lives(losing, tmp_path, title="Losing", target=None)
    assert [picture.name for picture in pictures] == [
        "fitness.png", "family.png", "hyperparameters.png",
    ]  # fmt: skip
    assert all(picture.stat().st_size > 1_000 for picture in pictures)
    assert draw_lives([], tmp_path / "none", title="Nothing") == []


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_policy_has_a_search_of_its_own(name: str) -> None:
    env = "Pendulum-v1" if name in ("ddpg", "td3", "sac") else "CartPole-v1"
    search = plan_evolution(name, env, None, {}, Choices()).search
    assert any(setting.endswith("lr") for setting in search.parameters)


def test_the_search_of_a_preset_leaves_out_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def bounds(**settings: float) -> dict[str, Any]:
        return {**plan_evolution("dqn", "CartPole-v1", None, settings, Choices()).search.parameters}

    assert list(bounds()) == ["lr", "batch_size"]
    assert list(bounds(lr=1e-3, gamma=0.9)) == ["batch_size"]
    Path("mine.toml").write_text("lr = 1e-3\n")
    in_file = plan_evolution("dqn", "CartPole-v1", None, {}, Choices(config="mine.toml"))
    assert list(in_file.search.parameters) == ["batch_size"]
    near = Search(lr=log_uniform(5e-4, 2e-3))
    monkeypatch.setitem(DQN_EVOLUTION_PRESETS, "CartPole-v1", {"lr": 1e-3, "search": near})
    assert bounds() == near.parameters
    assert bounds(lr=1e-4) == {}


def test_a_run_that_searches_nothing_goes_on_so() -> None:
    fixed: dict[str, Any] = {"lr": 1e-3, "batch_size": 16, "population": 2, "hidden": (8,)}
    evolve("dqn", "CartPole-v1", smoke=True, quiet=True, out="runs/fixed", **fixed)
    choices = Choices(out="runs/fixed", resume=True)
    assert plan_evolution("dqn", "CartPole-v1", None, {}, choices).search.parameters == {}


def test_agents_with_the_same_first_ancestor_are_one_family() -> None:
    parents = {3: 1, 1: None, 2: None, 5: 3, 6: 2, 7: 9, 8: 9}
    assert families(parents) == {1: 0, 3: 0, 5: 0, 2: 1, 6: 1, 7: 2, 8: 2}
    assert families({1: 2, 2: 1, 3: 2}) == {1: 0, 2: 0, 3: 0}  # of a damaged file
    assert {*families({n: n - 1 for n in range(200_000, 0, -1)}).values()} == {0}

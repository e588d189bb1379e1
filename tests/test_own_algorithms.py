"""The algorithms in examples/own: their formulas, and the features of `TorchPolicy`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite import Agent, Task, middleware as mw
from ding_lite.errors import ConfigError
from ding_lite.evolution import Mutation, Population, Search, Tournament, choice, log_uniform
from ding_lite.rl import PrioritizedReplay, ReplayBuffer, TorchPolicy, make_envs, mean_return
from examples.own.discrete_sac import DiscreteSAC, DiscreteSACConfig, soft_value
from examples.own.qr_dqn import QRDQN, QRDQNConfig, quantile_huber
from examples.own.rainbow import Rainbow, RainbowConfig, project
from examples.own.recurrent_ppo import RecurrentPPO, RecurrentPPOConfig
from tests.rl.policies.test_dqn import CARTPOLE, batch

ROOT = Path(__file__).resolve().parent.parent
ALGORITHMS: dict[type[TorchPolicy[Any]], Any] = {
    QRDQN: QRDQNConfig(hidden=16, quantiles=5),
    Rainbow: RainbowConfig(hidden=16, atoms=11, v_min=-2.0, v_max=4.0),
    DiscreteSAC: DiscreteSACConfig(hidden=16),
}
RNG = np.random.default_rng(0)


# -- formulas, one number at a time ------------------------------------------------------


def slow_quantile_huber(errors: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Compute equation 10 of arXiv:1710.10044 for each pair."""
    found = np.empty_like(errors)
    for b, i, j in np.ndindex(errors.shape):
        u = errors[b, i, j]
        huber = 0.5 * u * u if abs(u) <= 1.0 else abs(u) - 0.5
        found[b, i, j] = huber * (levels[i] if u >= 0.0 else 1.0 - levels[i])
    return found


def slow_projection(values: np.ndarray, p: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    """Divide each probability between two atoms, as algorithm 1 of arXiv:1707.06887 does."""
    spacing = atoms[1] - atoms[0]
    found = np.zeros((len(values), len(atoms)))
    for b, j in np.ndindex(values.shape):
        place = (min(max(values[b, j], atoms[0]), atoms[-1]) - atoms[0]) / spacing
        lower = min(math.floor(place), len(atoms) - 2)
        found[b, lower] += p[b, j] * (lower + 1 - place)
        found[b, lower + 1] += p[b, j] * (place - lower)
    return found


def test_the_quantile_loss_is_that_of_each_pair() -> None:
    errors, levels = RNG.normal(size=(4, 5, 7)) * 2.0, (np.arange(5) + 0.5) / 5
    found = quantile_huber(torch.from_numpy(errors), torch.from_numpy(levels))
    np.testing.assert_allclose(found, slow_quantile_huber(errors, levels))


def test_probabilities_are_divided_between_the_nearest_atoms() -> None:
    atoms = np.linspace(-2.0, 4.0, 13)
    values = np.concatenate([3.0 * RNG.normal(size=(6, 9)), atoms[None, :9]])
    p = RNG.dirichlet(np.ones(9), size=7)
    found = project(*map(torch.from_numpy, (values, p, atoms))).numpy()
    np.testing.assert_allclose(found, slow_projection(values, p, atoms), atol=1e-12)
    np.testing.assert_allclose(found.sum(1), 1.0)
    np.testing.assert_allclose(found @ atoms, (p * values.clip(-2.0, 4.0)).sum(1))


def test_soft_values_are_the_mean_over_all_actions() -> None:
    q, logits = RNG.normal(size=(2, 5, 3))
    pi = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = soft_value(torch.from_numpy(np.log(pi)), torch.from_numpy(q), torch.tensor(0.3))
    for b in range(5):
        slow = sum(pi[b, a] * (q[b, a] - 0.3 * math.log(pi[b, a])) for a in range(3))
        assert found[b] == pytest.approx(slow)


def goals_of(policy: DiscreteSAC, one: Any) -> list[float]:
    """Compute the targets of SAC's critics, one transition at a time."""
    found, alpha = [], float(policy.log_alpha.detach().exp())
    for b in range(len(one)):
        obs = one.next_obs[b : b + 1]
        with torch.no_grad():
            pi = policy.actor(obs).softmax(-1)[0].tolist()
            pairs = zip(policy.target_one(obs)[0], policy.target_two(obs)[0], strict=True)
            q = [min(float(x), float(y)) for x, y in pairs]
        value = sum(p * (v - alpha * math.log(p)) for p, v in zip(pi, q, strict=True))
        later = 0.0 if one.terminated[b] else policy.gamma ** int(one.num_steps[b]) * value
        found.append(float(one.reward[b]) + later)
    return found


def test_the_critics_of_sac_learn_soft_values() -> None:
    policy = DiscreteSAC(CARTPOLE, DiscreteSACConfig(hidden=16))
    one = batch(0)
    _, metrics = policy.loss(one)
    rows = torch.arange(len(one))
    q = policy.one(one.obs)[rows, one.action]
    expected = q - torch.tensor(goals_of(policy, one))
    torch.testing.assert_close(metrics["td_error"], expected, rtol=1e-4, atol=1e-5)


def test_noise_explores_and_does_not_change_greedy_actions() -> None:
    policy = Rainbow(CARTPOLE, RainbowConfig(noise=3.0))
    obs = RNG.normal(size=(200, 4)).astype(np.float32)
    greedy = policy.act(obs, explore=False)
    np.testing.assert_array_equal(greedy, policy.act(obs, explore=False))
    assert any((policy.act(obs) != greedy).any() for _ in range(10))


# -- what they inherit -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*ALGORITHMS, RecurrentPPO])
def test_a_file_is_short(kind: type) -> None:
    path = Path(*kind.__module__.split(".")).with_suffix(".py")
    assert len((ROOT / path).read_text().splitlines()) <= 150


def trained(kind: type[TorchPolicy[Any]], probe: str, steps: int) -> Any:
    """Train on a probe from random actions until the policy can know its values."""
    envs = make_envs(f"probe/{probe}-v0", 4, seed=0)
    own: dict[Any, dict[str, Any]] = {
        Rainbow: {"v_min": -2.0, "v_max": 2.0, "noise": 0.2},
        DiscreteSAC: {"alpha": 0.01, "entropy": 0.05},
    }
    more = {"lr": 5e-3, "hidden": 32, "tau": 0.1, "n_step": 1, "gamma": 0.5, "batch_size": 32}
    config = type(ALGORITHMS[kind])(**more, **own.get(kind, {}))
    policy = kind(envs.spec, config)
    replay = ReplayBuffer(envs.spec, capacity=1_000)
    with Task() as task:
        task.use(mw.random_warmup(envs, replay, steps=200))
        task.use(mw.collect(policy, envs, steps=4))
        task.use(mw.add_to(replay))
        task.use(mw.train(policy, replay))
        task.run(max_step=steps)
    return policy


def value(policy: Any, seen: float) -> float:
    obs = torch.tensor([[seen]])
    with torch.no_grad():
        if isinstance(policy, QRDQN):
            return float(policy.net(obs).mean(-1).max())
        if isinstance(policy, Rainbow):
            return float(policy.q_values(policy.net(obs, noisy=False)).max())
        return float(torch.minimum(policy.one(obs), policy.two(obs)).max())


@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize(
    ("probe", "answers"), [("LateReward", {0.0: 0.5, 1.0: 1.0}), ("Endless", {0.0: 2.0})]
)
def test_values_are_those_of_the_probe(
    kind: type[TorchPolicy[Any]], probe: str, answers: dict[float, float]
) -> None:
    policy = trained(kind, probe, 200)
    for seen, answer in answers.items():
        assert value(policy, seen) == pytest.approx(answer, abs=0.12)


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_right_action_is_taken_for_each_observation(kind: type[TorchPolicy[Any]]) -> None:
    policy = trained(kind, "RightActionForObs", 100)
    seen = np.array([[-1.0], [1.0]], dtype=np.float32)
    assert policy.act(seen, explore=False).tolist() == [0, 1]


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_a_mutation_of_the_weights_also_changes_the_targets(kind: type[TorchPolicy[Any]]) -> None:
    agent = Agent(kind(CARTPOLE, ALGORITHMS[kind]))
    before = agent.policy.state_dict()
    mutation = Mutation(Search(), none=0, architecture=0, weights=1, hyperparameters=0)
    assert mutation.mutate(agent).startswith("weights")
    after = agent.policy.state_dict()
    moved = {name: after["weights"][name] - t for name, t in before["weights"].items()}
    assert all(tensor.any() for tensor in moved.values())
    leaders = {QRDQN: ["net"], Rainbow: ["net"], DiscreteSAC: ["one", "two"]}[kind]
    for number, leader in enumerate(leaders):
        for name, tensor in after["targets"][str(number)].items():
            by = tensor - before["targets"][str(number)][name]
            torch.testing.assert_close(by, moved[f"{leader}.{name}"], rtol=0, atol=1e-6)


def test_a_setting_that_changes_the_shapes_of_networks_cannot_be_searched() -> None:
    """A mutation of it would end the run when it loads what was learned."""
    with make_envs("CartPole-v1", 1) as envs:
        Population.of(QRDQN, envs.spec, Search(lr=log_uniform(1e-3, 5e-3)), size=2)
        with pytest.raises(ConfigError, match=r"`quantiles` cannot be searched: with .* the netw"):
            Population.of(QRDQN, envs.spec, Search(quantiles=choice(25, 50)), size=2)


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_a_population_of_them_evolves(kind: type[TorchPolicy[Any]]) -> None:
    envs, judge = (make_envs("CartPole-v1", 4, seed=seed) for seed in (0, 1))
    search = Search(lr=log_uniform(1e-3, 5e-3))
    population = Population.of(kind, envs.spec, search, size=3, config=ALGORITHMS[kind])
    replay = PrioritizedReplay(envs.spec, capacity=1_000)
    first = [agent.config.lr for agent in population]

    def turn(agent: Agent) -> list[Any]:
        learn = mw.train(agent, replay, batch_size=16), mw.update_priorities(replay)
        return [mw.collect(agent, envs, steps=16), mw.add_to(replay), *learn]

    with Task() as task:
        task.use(mw.for_each(population, turn))
        task.use(mw.evaluate(population, judge, every=2))
        task.use(mw.evolve(population, Tournament(size=2), Mutation(search), every=2))
        task.run(max_step=4)
    assert population.generation == 2
    assert all(type(agent.policy) is kind for agent in population)
    assert [agent.config.lr for agent in population] != first
    assert all(agent.fault is None for agent in population)


# -- memory ------------------------------------------------------------------------------


def trained_by_rollouts(env_id: str, *, rollouts: int, path: Path | None = None) -> RecurrentPPO:
    """Train up to this number of rollouts; go on after the checkpoint at a path, and save one."""
    envs = make_envs(env_id, 16, seed=0)
    policy = RecurrentPPO(envs.spec, RecurrentPPOConfig(width=16, lr=5e-3, epochs=4))
    with Task() as task:
        task.use(mw.collect(policy, envs, unroll=12))
        task.use(mw.train(policy))
        task.use(mw.stop_at(env_step=16 * 12 * rollouts))
        parts = {"policy": policy, "envs": envs, "task": task}
        if path is not None:
            task.use(mw.checkpoint(parts, path, every=100))
        if path is not None and path.exists():
            mw.resume(parts, path)
        task.run()
    return policy


def test_recurrent_ppo_remembers() -> None:
    """In Recall the last action must match the first observation; without memory returns are 0."""
    policy = trained_by_rollouts("probe/Recall-v0", rollouts=10)
    assert mean_return(policy, make_envs("probe/Recall-v0", 8, seed=1), episodes=80) > 0.9


def test_recurrent_ppo_goes_on_exactly_after_a_checkpoint(tmp_path: Path) -> None:
    whole = trained_by_rollouts("CartPole-v1", rollouts=6)
    trained_by_rollouts("CartPole-v1", rollouts=2, path=tmp_path / "c")
    resumed = trained_by_rollouts("CartPole-v1", rollouts=6, path=tmp_path / "c")
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)

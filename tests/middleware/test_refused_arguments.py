"""Wrong arguments of a middleware are refused when it is made, in a sentence that names them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ding_lite import middleware as mw
from ding_lite.distributed import Processes
from ding_lite.errors import ConfigError
from ding_lite.evolution import Mutation, Population, Search, Tournament, integer
from ding_lite.evolution.agent import make_agent
from ding_lite.rl import (
    A2C,
    DQN,
    DQNConfig,
    EpisodeBuffer,
    PrioritizedReplay,
    ReplayBuffer,
    constant,
    make_envs,
)

m: Any = mw


class Stubborn(DQN):
    """Explores by itself."""

    def act(self, obs: Any, *, explore: bool = True) -> Any:  # type: ignore[override]
        return super().act(obs, explore=explore)


@pytest.fixture(scope="module")
def x(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the middleware are made with."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "file").touch()
    envs, eval_envs = make_envs("CartPole-v1", 4), make_envs("CartPole-v1", 2)
    policy, a2c = DQN(envs.spec, DQNConfig(n_step=1, batch_size=8)), A2C(envs.spec)
    replay = ReplayBuffer(envs.spec, capacity=1_000)
    return SimpleNamespace(
        collect=partial(m.collect, policy, envs),
        unroll=partial(m.collect, a2c, envs),
        train=partial(m.train, policy, replay),
        evaluate=partial(m.evaluate, policy, eval_envs),
        policy=policy,
        stubborn=Stubborn(envs.spec),
        a2c=a2c,
        agents=Population.of(DQN, envs.spec, size=2, config={"hidden": (4,)}),
        envs=envs,
        eval_envs=eval_envs,
        others=make_envs("Acrobot-v1", 4),
        replay=replay,
        small=ReplayBuffer(envs.spec, capacity=4),
        prioritized=PrioritizedReplay(envs.spec, capacity=100),
        episodes=EpisodeBuffer(envs.spec, capacity=100, num_envs=4),
        folder=folder,
        epsilon=constant(0.1),
        processes=Processes(),
        server=SimpleNamespace(gather=print, give=print),
    )


SEARCH, OTHER = Search(alpha=integer(1, 2)), Search(lr=integer(1, 2))
MADE_WRONG: list[tuple[Callable[[Any], object], str]] = [
    (lambda x: x.collect(steps=6), "`steps` is 6, the number of envs 4.* such as 4"),
    (lambda x: x.collect(steps=0), "`steps` is 0; it must be a whole number from 1 on"),
    (
        lambda x: m.collect(x.policy, x.others, steps=4),
        "for CartPole-v1 .* the envs are Acrobot-v1",
    ),
    (lambda x: m.collect(x.envs, x.policy, steps=4), "is an Envs, which has no `act` method"),
    (lambda x: x.collect(steps=4, epsilon=0.1), r"`epsilon` is 0\.1; a schedule was expected"),
    *(
        (
            lambda x, of=of: m.collect(of(x), x.envs, steps=4, epsilon=x.epsilon),
            r"Stubborn\.act takes",
        )
        for of in (lambda x: x.stubborn, lambda x: make_agent(x.stubborn))
    ),
    (lambda x: x.unroll(), "Neither `steps` nor `unroll` was given"),
    (lambda x: x.unroll(steps=4, unroll=4), "`unroll` is 4, and `steps` was given too"),
    (lambda x: x.unroll(unroll=4, epsilon=x.epsilon), "`unroll` is 4, and `epsilon` was given too"),
    (lambda x: x.unroll(unroll=0), "`unroll` is 0"),
    (lambda x: x.collect(unroll=4), "DQN has no `explore` method"),
    (lambda x: m.random_warmup(x.envs, x.replay, steps=1_001), "`steps` is 1,001, the capacity of"),
    (lambda x: x.train(batch_size=1_001), "`batch_size` is 1,001, the capacity .* 1,000"),
    (lambda x: m.train(x.policy, x.small), "`batch_size` is 8, the capacity of the replay 4"),
    (lambda x: x.train(batch_size=0), "`batch_size` is 0"),
    *(
        (lambda x, updates=updates: x.train(updates=updates), rf"`updates` is {updates!r}; it must")
        for updates in (0, -1, math.nan, math.inf, "3")
    ),
    (lambda x: m.train(x.policy, batch_size=32), "no replay to sample that many from"),
    (lambda x: x.train(beta=x.epsilon), "a ReplayBuffer, which has no priorities, but `beta`"),
    (lambda x: x.train(beta=0.4), r"`beta` is 0\.4; a schedule was expected"),
    (lambda x: m.train(x.a2c, x.replay), "A2C learns from the rollouts .* `replay` was given"),
    (lambda x: m.train(x.a2c, batch_size=8), "learns from the rollouts .* `batch_size` was given"),
    (lambda x: m.train(make_agent(x.a2c, learn_every=2)), "`learn_every` is searched, and"),
    (lambda x: m.train(x.a2c, updates=2), "`updates` is 2, but how many updates A2C makes"),
    (lambda x: m.update_priorities(x.replay), "which has no priorities, but priorities are to be"),
    (lambda x: m.train(DQN, x.replay), "`policy` is the class DQN; one made of it was expected"),
    (lambda x: m.collect(DQN, x.envs, steps=4), "`policy` is the class DQN"),
    (lambda x: m.for_each(x.policy, lambda agent: []), "a DQN, which has no `evolve` method"),
    (lambda x: m.add_to(x.envs), "`replay` is an Envs, which has no `add` method"),
    (lambda x: m.add_to(x.replay, priority=print), r"`priority` was given\. Give a PrioritizedRep"),
    (lambda x: m.add_to(x.prioritized, priority=0.5), "`priority` is a float"),
    (
        lambda x: m.wait_for(x.replay, size=1_001),
        "`size` is 1,001, the capacity of the replay 1,000",
    ),
    (lambda x: m.wait_for(x.episodes, size=100), "`size` is 100, the capacity of the replay 100"),
    (lambda x: m.wait_for(x.replay, size=0), "`size` is 0"),
    *(
        (lambda x, options=options: x.evaluate(**options), fault)
        for options, fault in (
            ({"every": 0}, "it must be a whole number from"),
            ({"every": 5, "episodes": 0}, "it must be at least"),
            ({"every": 5, "confirm": -1}, "it must be at least"),
            ({"every": 5, "max_env_steps": 9}, "`max_env_steps` is not for this evaluation"),
            ({"every": 5, "share": 0}, "`share` is 0; it must be above 0"),
            *(
                ({"every": 5, name: goal}, f"`{name}` is {goal!r}")
                for name in ("stop_at", "confirm_at")
                for goal in (math.nan, "475")
            ),
        )
    ),
    (lambda x: x.evaluate(x.processes, every=1), "`processes` is not for this evaluation"),
    (
        lambda x: m.evaluate(x.agents, x.envs, every=1, share=0.1),
        "`share` is not for this evaluation",
    ),
    (
        lambda x: m.evaluate(x.agents, x.envs, x.processes, every=1, confirm_envs=x.envs),
        "`confirm_envs` is not for this evaluation",
    ),
    (lambda x: m.evaluate(x.envs, x.policy, every=5), "is a DQN, which has no `random_actions`"),
    (lambda x: m.evaluate(x.envs, x.agents, every=5), "`envs` is a Population, which has no"),
    (lambda x: m.evaluate(x.policy, x.others, every=5), "Make the policy from the spec of these"),
    (lambda x: m.stop_at(), "nothing to stop at"),
    (lambda x: m.stop_at(env_step=0), "`env_step` is 0"),
    (lambda x: m.stop_at(eval_value=math.nan), "`eval_value` is nan"),
    (lambda x: m.stop_at(eval_value="475"), "`eval_value` is '475'"),
    (lambda x: m.evolve(x.agents, Mutation(), Tournament(), every=1), "has no `select` method"),
    (lambda x: m.evolve(x.agents, Tournament(), Mutation(SEARCH), every=1), 'Unknown key "alpha"'),
    (lambda x: m.evolve([], Tournament(), Mutation(), every=1), "has no `evolve` method"),
    (
        lambda x: m.evolve(x.agents, Tournament(), Mutation(OTHER), every=1),
        "Give both the same sea",
    ),
    (lambda x: m.take_members(x.agents, x.agents), "`server` is a Population"),
    (lambda x: m.gather_members(x.server, every=0), "`every`"),
    (lambda x: m.return_members(x.agents, x.server, every=0), "`every`"),
    (lambda x: m.confirm_best(x.server, x.envs, every=1, stop_at=1, episodes=0), "`episodes` is 0"),
    (lambda x: m.keep_best("best", x.folder), "`policy` is a str"),
    (lambda x: m.checkpoint(x.policy, x.folder / "file", every=1), "file is a file"),
    (
        lambda x: m.checkpoint({"envs": {}}, x.folder, every=1),
        "`envs` is a dict, .*`load_state_dict`",
    ),
    (lambda x: m.rate_limit(env_steps_per_update=0), "env_steps_per_update"),
    (lambda x: m.rate_limit(env_steps_per_update=1, ahead=-1), "ahead"),
    (lambda x: m.publish_weights(x.policy, every=0), "every"),
    (lambda x: m.publish_weights(3), "no `weights` method"),
    (lambda x: m.fetch_weights(x.policy, max_staleness=-1), "max_staleness"),
    (lambda x: m.fetch_weights(x.policy, timeout=-1.0), "timeout"),
    (lambda x: m.receive("work", at_least=4, at_most=2), "`at_most` is 2, `at_least` is 4: a step"),
    (lambda x: m.receive("trajectories", at_least=0), "at_least"),
    (lambda x: m.receive(["trajectories"]), "named after a ctx key"),
    (lambda x: m.send("trajectories", to="learner", in_flight=0), "in_flight"),
    (lambda x: m.send("trajectories", to="learner", timeout=-1.0), "timeout"),
    (lambda x: m.replay_trajectories(0), "`num` is 0"),
    (lambda x: m.jsonl(x.folder, every=10), "is a directory"),
    (lambda x: m.tensorboard(x.folder / "file"), "is a file"),
    (lambda x: m.report(3, every=1), "a function was exp.*, a run, or the Path of a directory"),
    (lambda x: m.curve(x.folder / "curve.gif"), r"Choose one of: \.png, \.svg, \.pdf"),
    (lambda x: m.curve(x.folder / "curve.png", redraw=0.0), r"`redraw` is 0\.0"),
]


@pytest.mark.parametrize(("make", "fault"), MADE_WRONG, ids=[fault for _, fault in MADE_WRONG])
def test_a_wrong_argument_is_refused(x: Any, make: Callable[[Any], object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        make(x)

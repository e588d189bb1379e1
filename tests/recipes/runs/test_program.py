"""Programs: exit codes, roles of nodes, and a verdict on what node 0 has learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from ding_lite.errors import CheckpointError, ConfigError, SaveError
from ding_lite.recipes import Options, Run, launch_nodes, run_program
from ding_lite.rl import DQN, DQNConfig, make_envs
from ding_lite.runtime.messaging.router import current_router


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt, 130), (ConfigError, 2), (CheckpointError, 2), (SaveError, 1)],
)
def test_ctrl_c_and_what_a_user_can_mend_have_an_exit_code(error, code, capsys) -> None:
    def main() -> None:
        raise error("The disk is full.")

    with pytest.raises(SystemExit) as ended:
        run_program(main)
    assert ended.value.code == code
    said = "" if error is KeyboardInterrupt else "error: The disk is full.\n"
    assert capsys.readouterr().err == said


def test_any_other_error_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_program(lambda: 1 / 0)


EXPECTED: list[frozenset[str]] = []


def main(options: Options, config: DQNConfig, run: Run) -> dict[str, Tensor]:
    """Return the weights of a policy of another seed, so that the launcher's own are not these."""
    EXPECTED.append(current_router().labels)
    with make_envs(options.env, 1) as envs:
        policy = DQN(envs.spec, DQNConfig(hidden=config.hidden, seed=config.seed + 1))
    (run.directory / "weights").write_text(str(digest(policy)))
    return policy.weights()


def digest(policy: DQN) -> float:
    return sum(float(weight.double().sum()) for weight in policy.weights().values())


class Judged(DQN):
    """Tells with which weights it was judged."""

    def load_weights(self, weights: Any) -> None:
        super().load_weights(weights)
        Path("judged").write_text(str(digest(self)))


def launch(nodes: int, *roles: str) -> None:
    options = Options(
        env="CartPole-v1",
        seed=0,
        max_env_steps=100,
        target=475.0,
        smoke=False,
        out=None,
        nodes=nodes,
    )
    config = DQNConfig(hidden=(4,))
    launch_nodes("it", main, options, policy=Judged, config=config, roles=roles)


def test_one_node_has_all_roles_and_its_weights_are_judged(capsys) -> None:
    EXPECTED.clear()
    launch(1, "learner", "learner", "collector")
    [labels] = EXPECTED
    assert {"learner", "learner.0", "collector", "collector.0"} <= labels
    result = json.loads(capsys.readouterr().out)
    assert (result["example"], result["nodes"], result["solved"]) == ("it", 1, False)
    assert Path("judged").read_text() == Path("runs/it/1/weights").read_text()


@pytest.mark.parametrize("nodes", [2, 3])
def test_each_role_needs_a_node(nodes: int) -> None:
    with pytest.raises(ConfigError, match=f"`nodes` is {nodes}, .* Take 4 or more, or 1, which"):
        launch(nodes, "learner", "learner", "server", "collector")
    assert not Path("runs").exists()

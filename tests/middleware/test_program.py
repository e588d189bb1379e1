"""The program that the project shows first runs as printed, and does what it says."""

from __future__ import annotations

import pytest

from ding_lite.rl.checkpoint.save_load import load_checkpoint

PROGRAM = '''
"""DQN on CartPole in one process."""

from ding_lite import Task, middleware as mw
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, linear, make_envs
from ding_lite.runtime import StepTimer


def main() -> None:
    envs = make_envs("CartPole-v1", num_envs=8, seed=0)
    eval_envs = make_envs("CartPole-v1", num_envs=5, seed=1)
    policy = DQN(envs.spec, DQNConfig(lr=1e-3, hidden=(128, 128), double=True))
    replay = ReplayBuffer(envs.spec, capacity=50_000)
    epsilon = linear(1.0, 0.05, steps=10_000)

    with Task() as task:
        task.use_step_wrapper(StepTimer(print_per_step=500))
        task.use(mw.evaluate(policy, eval_envs, every=250, stop_at=475.0))
        task.use(mw.collect(policy, envs, steps=8, epsilon=epsilon))
        task.use(mw.add_to(replay))
        task.use(mw.train(policy, replay, batch_size=128, updates=2))
        task.use(mw.checkpoint(policy, "runs/cartpole", every=1_000))
        task.use(mw.log(every=100))
        task.run(max_step=20_000)


if __name__ == "__main__":
    main()
'''


def run(program: str) -> None:
    exec(compile(program, "p1_dqn.py", "exec"), {"__name__": "__main__"})


def test_the_first_program_runs_as_printed_but_for_its_length(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(PROGRAM.replace("max_step=20_000", "max_step=520"))

    said = capsys.readouterr().err
    rows = [line.split() for line in said.splitlines() if line[:6].strip().isdecimal()]
    assert [row[0] for row in rows] == ["100", "200", "300", "400", "500", "520"]
    assert [row[1] for row in rows[-2:]] == ["4,000", "4,160"]
    assert "step timer, 500 steps" in said
    for middleware in ("evaluate", "collect", "add_to", "train", "checkpoint", "log"):
        assert f"\n  {middleware} " in said

    saved = load_checkpoint(tmp_path / "runs" / "cartpole")
    assert saved.meta["total_step"] == 519
    assert saved.meta["env_step"] == 4_160
    assert saved.meta["train_iter"] == saved.state["train_iter"] > 900


def test_it_gives_the_same_weights_each_time(tmp_path, monkeypatch) -> None:
    files = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        run(PROGRAM.replace("max_step=20_000", "max_step=300"))
        (tensors,) = (tmp_path / name / "runs" / "cartpole").glob("*.safetensors")
        files.append(tensors.read_bytes())
    assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.deadline(600)
def test_it_solves_cartpole(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    run(PROGRAM)
    assert load_checkpoint(tmp_path / "runs" / "cartpole").meta["total_step"] < 19_999

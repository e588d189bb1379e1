"""Environments in processes of their own: the same episodes, and no end without an error."""

import multiprocessing
import os
import random
import signal
import subprocess
import threading

import gymnasium
import numpy as np
import pytest
import torch

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite.errors import ConfigError, EnvError
from ding_lite.rl import make_envs
from ding_lite.rl.envs import workers as env_workers
from ding_lite.rl.envs.workers import WorkerSource
from ding_lite.runtime.task import Task
from tests.procs.programs import run, wait_until_gone

SLOW = pytest.mark.slow


def pids_of(envs):
    assert isinstance(envs._source, WorkerSource)
    return envs._source.pids


def play(envs, steps):
    seen = []
    for _ in range(steps):
        step = envs.step(envs.random_actions())
        seen += [step.obs, step.action, step.reward, step.next_obs, step.terminated, step.truncated]
    return seen, envs.take_finished(), envs.obs


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("Pendulum-v1", {}),
        ("probe/Room-v0", {}),
        ("probe/Picture-v0", {"frame_stack": 2}),
        ("probe/Wanders-v0", {"wrappers": [gymnasium.wrappers.FlattenObservation]}),
    ],
)
def test_the_episodes_are_those_of_one_process(env_id, settings):
    with (
        make_envs(env_id, 5, seed=2, mode="sync", **settings) as here,
        make_envs(env_id, 5, seed=2, mode="async", **settings) as there,
    ):
        assert len(pids_of(there)) >= 2
        np.testing.assert_equal(play(there, 250), play(here, 250))
        np.testing.assert_equal(there.reset(), here.reset())
        np.testing.assert_equal(play(there, 20), play(here, 20))


class DrawsGlobally(gymnasium.Env):
    """Draws observations from the global generators, as it should not."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action):
        return self._draw(), 0.0, False, False, {}

    def _draw(self):
        return np.array([random.random(), np.random.random(), float(torch.rand(()))])


def test_environments_that_draw_from_global_generators_differ_and_repeat():
    def draw(seed):
        with make_envs(DrawsGlobally, 4, seed=seed, mode="async") as envs:
            assert len(pids_of(envs)) >= 2
            return envs.step(np.zeros(4, np.int64)).next_obs

    one, again, other = draw(0), draw(0), draw(1)
    assert len(np.unique(one)) == one.size
    np.testing.assert_array_equal(one, again)
    assert (one != other).all()


def test_a_state_saved_in_one_mode_continues_in_the_other():
    with (
        make_envs("probe/Wanders-v0", 5, seed=2, mode="sync") as here,
        make_envs("probe/Wanders-v0", 5, seed=3, mode="async") as there,
    ):
        play(here, 40)
        there.load_state_dict(here.state_dict())
        np.testing.assert_equal(play(there, 40), play(here, 40))
        here.load_state_dict(there.state_dict())
        np.testing.assert_equal(play(there, 40), play(here, 40))


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_an_environment_may_start_processes_and_end_them_also_by_a_signal():
    def with_others(env):
        with multiprocessing.get_context("fork").Pool(1) as pool:
            [found] = pool.map(abs, [-7])
        with subprocess.Popen(["sleep", "1000"]) as simulator:
            simulator.terminate()
        ended_by = -simulator.returncode
        return gymnasium.wrappers.TransformReward(env, lambda _: float(100 * ended_by + found))

    envs = make_envs("probe/Counter-v0", 2, mode="async", wrappers=[with_others])
    reward = envs.step(np.zeros(2, dtype=np.int64)).reward
    assert reward.tolist() == [100.0 * signal.SIGTERM + 7.0] * 2
    pids = pids_of(envs)
    envs.close()
    wait_until_gone(*pids)
    envs.close()


def test_a_wrapper_that_cannot_be_sent_is_refused():
    lock = threading.Lock()

    def locked(env):
        assert lock is not None
        return env

    with pytest.raises(ConfigError, match=r"cannot be sent .*lock.*mode=\"sync"):
        make_envs("probe/Counter-v0", 2, mode="async", wrappers=[locked])


def test_an_error_of_an_environment_is_raised_once_and_ends_all_processes(capfd):
    envs = make_envs("probe/Weak-v0", 4, mode="async")
    envs.step(np.zeros(4, dtype=np.int64))
    pids = pids_of(envs)
    with pytest.raises(EnvError, match=r"Environment 2 .* ArithmeticError .*the sum") as caught:
        envs.step(np.array([0, 0, 1, 0]))
    assert "in play\n" in caught.value.__notes__[0]
    assert capfd.readouterr().err == ""
    wait_until_gone(*pids)
    with pytest.raises(EnvError, match="are closed"):
        envs.step(np.zeros(4, dtype=np.int64))
    envs.close()


def test_an_environment_that_cannot_be_made_is_reported():
    with pytest.raises(EnvError, match=r"LookupError: made nowhere else"):
        make_envs("probe/Counter-v0", 2, mode="async", wrappers=[_only_made_here(os.getpid())])


def _only_made_here(pid):
    def wrap(env):
        if os.getpid() != pid:
            raise LookupError("made nowhere else")
        return env

    return wrap


@pytest.mark.parametrize(
    ("how", "reported"), [("kill", "was killed by SIGKILL"), ("exit", "has ended with exit code 3")]
)
def test_a_process_that_dies_at_work_is_missed_at_once(how, reported):
    envs = make_envs("probe/Weak-v0", 4, mode="async", env_args={"how": how})
    envs.step(np.zeros(4, dtype=np.int64))
    pids = pids_of(envs)
    with pytest.raises(EnvError, match=rf"environments 2 to 3 of probe/Weak-v0 {reported}"):
        envs.step(np.array([0, 0, 0, 1]))
    wait_until_gone(*pids)


def test_a_process_that_died_between_steps_is_missed_at_the_next_step():
    with make_envs("probe/Counter-v0", 4, mode="async") as envs:
        envs.step(np.zeros(4, dtype=np.int64))
        first, *others = pids_of(envs)
        os.kill(first, signal.SIGKILL)
        wait_until_gone(first)
        with pytest.raises(EnvError, match="was killed by SIGKILL"):
            envs.step(np.zeros(4, dtype=np.int64))
        wait_until_gone(*others)


def test_a_process_that_hangs_beside_an_error_of_the_step_is_ended(monkeypatch):
    monkeypatch.setattr(env_workers, "HANGING_S", 0.2)
    envs = make_envs("probe/Weak-v0", 4, mode="async", env_args={"how": "hang"})
    pids = pids_of(envs)
    envs.reset()

    def bad(ctx):
        raise ZeroDivisionError("beside environments that hang")

    with Task(async_mode=True) as task:
        task.use(lambda ctx: envs.step(np.array([0, 1, 0, 0])) and None).use(bad)
        with pytest.raises(ZeroDivisionError):
            task.run(max_step=1)
    wait_until_gone(*pids)


PROGRAM = """
from ding_lite.rl import make_envs
import tests.rl.probes

def main():
    envs = make_envs("probe/Counter-v0", 4, mode="async")
    envs.step(envs.random_actions())
    say("pids", *envs._source.pids)
    ENDING

GUARD
    main()
"""


def program(ending, *, guard='if __name__ == "__main__":'):
    return PROGRAM.replace("ENDING", ending).replace("GUARD", guard)


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("pass", 0),
        pytest.param("raise SystemExit(5)", 5, marks=SLOW),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        pytest.param("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, marks=SLOW),
    ],
)
def test_no_process_outlives_the_program(ending, code, fork_learner):
    with fork_learner(source=program(ending)) as running:
        pids = [int(word) for word in running.line("pids")[1:]]
        assert running.end()[0] == code
        wait_until_gone(*pids)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_processes_ends_the_program_and_not_its_environments(fork_learner, signum):
    ending = """
    asked = []
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda signum, _: asked.append(signum))
    say("playing")
    while not asked:
        envs.step(envs.random_actions())
    envs.step(envs.random_actions())
    envs.close()
    say("closed")
    """
    with fork_learner(source=program(ending)) as running:
        pids = [int(word) for word in running.line("pids")[1:]]
        running.line("playing")
        for pid in (*pids, running.pid):
            os.kill(pid, signum)
        code, output = running.end()
        wait_until_gone(*pids)
    assert code == 0, output
    assert "closed" in output
    assert "Traceback" not in output


def test_a_program_without_a_main_guard_is_refused_with_a_remedy(fork_learner):
    with fork_learner(source=program("pass", guard="if True:")) as running:
        output = running.refusal()
    assert "ConfigError: Environments of" in output
    assert 'if __name__ == "__main__":' in output
    assert output.count("Traceback") == 1
    assert 'mode="sync"), which starts no processes' in output


def test_a_program_from_standard_input_has_environments_in_processes(tmp_path):
    typed = """
from ding_lite.rl import make_envs
with make_envs("CartPole-v1", 2, seed=0, mode="async") as envs:
    print(envs.step([0, 1]).reward, __file__)
"""
    assert run(tmp_path, "", "-", stdin=typed) == (0, "[1. 1.] <stdin>\n")

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ding_lite.errors import CheckpointError, ConfigError, ShapeError
from ding_lite.rl import (
    EpisodeBuffer,
    NStep,
    Sequences,
    Step,
    Transitions,
    load_checkpoint,
    make_envs,
    save_checkpoint,
)
from ding_lite.rl.batch import to_numpy

SPEC = make_envs("CartPole-v1", 1).spec


class Episodes:
    """Environments with the episode and its number of steps as observations."""

    def __init__(self, num_envs, seed=0, ends=0.25):
        self.rng, self.num_envs, self.ends = np.random.default_rng(seed), num_envs, ends
        self.episode = np.arange(num_envs)
        self.age = np.zeros(num_envs, dtype=np.int64)
        self.finished: list[tuple[int, int]] = []

    def obs(self):
        return np.stack([self.episode, self.age, self.episode, self.age], axis=1).astype(np.float32)

    def step(self):
        obs, action = self.obs(), (self.episode + self.age) % 2
        reward = (self.episode + self.age / 64).astype(np.float32)
        self.age += 1
        next_obs = self.obs()
        terminated, truncated = self.rng.random((2, self.num_envs)) < self.ends / 2
        for env in np.flatnonzero(terminated | truncated):
            self.finished.append((int(self.episode[env]), int(self.age[env])))
            self.episode[env] = len(self.finished) + self.num_envs - 1
            self.age[env] = 0
        return Step(obs, action, reward, next_obs, terminated, truncated)


def newest(finished, capacity):
    kept: list[tuple[int, int]] = []
    for episode, length in finished:
        kept.append((episode, min(length, capacity - 1)))
        while sum(steps + 1 for _, steps in kept) > capacity:
            kept.pop(0)
    return kept


def with_state(step):
    """Return states of the observations of a step, and an own field with a name of `Sequences`."""
    state = np.concatenate((step.obs[:, :2], step.obs[:, :1] * 100 + step.obs[:, 1:2]), axis=1)
    return {"state": state, "mask": -step.obs[:, 1]}


def keeping(num_envs, capacity, **settings):
    how = {"state_size": 3, "fields": {"mask": ((), np.float32)}, **settings}
    return EpisodeBuffer(SPEC, capacity=capacity, num_envs=num_envs, **how)


def play(episodes, envs, steps):
    for _ in range(steps):
        step = envs.step()
        episodes.add(step, **with_state(step))


@given(
    *(st.integers(1, 4), st.sampled_from([2, 5, 20, 100]), st.integers(0, 60), st.integers(1, 9)),
    *(st.integers(0, 5), st.sampled_from([0.25, 0.05]), st.integers(0, 2**32)),
)
def test_sequences_are_of_one_episode_and_in_order(
    num_envs, capacity, steps, length, burn_in, ends, seed
):
    """A stored state belongs to the first step of the burn-in."""
    episodes, envs = keeping(num_envs, capacity), Episodes(num_envs, seed, ends)
    play(episodes, envs, steps)
    lengths, kept = dict(envs.finished), dict(newest(envs.finished, capacity))
    assert episodes.num_episodes == len(kept)
    assert len(episodes) == sum(kept.values())
    if not kept:
        return

    batch = episodes.sample(12, length=length, burn_in=burn_in)
    assert (len(batch), batch.burn_in) == (12, burn_in)
    assert batch.obs.shape == (12, burn_in + length + 1, 4)
    obs, state = to_numpy(batch.obs), to_numpy(batch.state)
    ended = to_numpy(batch.terminated) | to_numpy(batch.truncated)
    for row in range(12):
        episode, age = obs[row, burn_in, :2].astype(int)  # of the first step to learn from
        oldest = lengths[episode] - kept[episode]
        assert oldest <= age < lengths[episode]
        first = max(oldest, age - burn_in)
        assert state[row].tolist() == [episode, first, episode * 100 + first]
        for time in range(burn_in + length + 1):
            now = age - burn_in + time
            seen = min(max(now, oldest), lengths[episode])
            assert obs[row, time].tolist() == [episode, seen, episode, seen]
            if time == burn_in + length:
                continue
            exists = oldest <= now < lengths[episode]
            assert batch.mask[row, time] == exists
            assert batch.action[row, time] == ((episode + now) % 2 if exists else 0)
            reward = episode + now / 64 if exists else 0.0
            assert batch.reward[row, time] == np.float32(reward)
            assert batch.extra["mask"][row, time] == (-now if exists else 0)
            assert ended[row, time] == (exists and now + 1 == lengths[episode])


def test_each_env_step_is_equally_likely_to_be_the_first():
    episodes, envs = EpisodeBuffer(SPEC, capacity=60, num_envs=2), Episodes(2)
    while episodes.num_episodes < 8:
        episodes.add(envs.step())
    drawn = [to_numpy(episodes.sample(100, length=3).obs)[:, 0, :2] for _ in range(300)]
    _, counts = np.unique(np.concatenate(drawn), axis=0, return_counts=True)
    assert len(counts) == len(episodes)
    usual = 30_000 / len(counts)
    assert counts == pytest.approx(np.full(len(counts), usual), abs=6 * np.sqrt(usual))


def test_the_last_step_has_the_flag_of_the_episode_end():
    episodes = EpisodeBuffer(SPEC, capacity=60, num_envs=1)
    obs, action, reward = np.zeros((1, 4), np.float32), np.zeros(1, int), np.ones(1, np.float32)
    for ended in ([False, False], [True, False], [False, True]):
        episodes.add(Step(obs, action, reward, obs, *np.array(ended)[:, None]))
    batch = episodes.sample(40, length=1)
    ends = set(zip(batch.terminated[:, 0].tolist(), batch.truncated[:, 0].tolist(), strict=True))
    assert ends == {(False, False), (True, False), (False, True)}


def test_a_loop_may_reuse_the_array_of_its_observations():
    episodes, n_step = EpisodeBuffer(SPEC, capacity=20, num_envs=1), NStep(3, 0.9, num_envs=1)
    obs, next_obs = np.zeros((1, 4), np.float32), np.ones((1, 4), np.float32)
    for ended in (False, True):
        flags = np.array([ended]), np.array([False])
        step = Step(obs, np.zeros(1, np.int64), np.zeros(1, np.float32), next_obs, *flags)
        episodes.add(step)
        if not ended:
            n_step(step)
        obs[:], next_obs[:] = next_obs, 2.0
    assert len(episodes) == 2
    rest: Any = n_step.flush()
    assert rest.next_obs.tolist() == [[1.0] * 4]


def test_reset_drops_the_episodes_under_way_which_cannot_be_sampled():
    episodes, envs = EpisodeBuffer(SPEC, capacity=60, num_envs=1), Episodes(1, ends=0.0)
    for _ in range(3):
        episodes.add(envs.step())
    with pytest.raises(ConfigError, match="No episode has ended yet"):
        episodes.sample(4, length=2)
    with pytest.raises(ConfigError, match=r"`batch_size` is 0.*`length` is 0"):
        episodes.sample(0, length=0)
    episodes.reset()
    envs.ends = 2.0
    episodes.add(envs.step())
    assert len(episodes) == 1
    episodes.clear()
    assert (len(episodes), episodes.num_episodes) == (0, 0)


@pytest.mark.parametrize("order", ["010", "0110", "00110", "012"])
def test_steps_of_several_collectors_are_refused(order):
    """Their episodes would be mixed up."""
    episodes = EpisodeBuffer(SPEC, capacity=100, num_envs=2)
    collectors = [Episodes(2, ends=0.0) for _ in range(3)]
    for number, collector in enumerate(collectors):
        collector.age += 7 * number
    *first, last = [collectors[int(number)].step() for number in order]
    for step in first:
        episodes.add(step)
    with pytest.raises(ConfigError, match="episodes of 2 of 2 environments do not go on"):
        episodes.add(last)


def test_environments_that_were_made_anew_begin_new_episodes(caplog):
    """A restarted collector makes its environments anew."""
    episodes = EpisodeBuffer(SPEC, capacity=100, num_envs=2)
    for restart in range(3):
        envs = Episodes(2, ends=0.0)
        envs.age += 7 * restart
        for _ in range(3):
            episodes.add(envs.step())
    envs.ends = 2.0
    episodes.add(envs.step())
    assert (len(episodes), episodes.num_episodes) == (2 * 4, 2)
    assert caplog.text.count("dropped the unfinished episodes of 2 of 2 environments") == 2


OF_TWO = with_state(Episodes(2).step())


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"state": None}, ConfigError, r"came without a `state`, and .* made with a `state_s"),
        ({"state": OF_TWO["state"][:1]}, ShapeError, r"`state` has shape \(1, 3\); .* have \(2, 3"),
        ({"state": OF_TWO["state"][:, 0]}, ShapeError, r"`state` has shape \(2,\); .* have \(2, 3"),
        ({"mask": OF_TWO["mask"][:1]}, ShapeError, r"`mask` has shape \(1,\)"),
        ({"mask": None}, ConfigError, r"own fields \['mask'\] are missing"),
    ],
)
def test_states_that_do_not_fit_are_refused(change, error, told):
    own = {name: array for name, array in (OF_TWO | change).items() if array is not None}
    with pytest.raises(error, match=told):
        keeping(2, 60).add(Episodes(2).step(), **own)


def test_settings_and_steps_of_other_environments_are_refused():
    for settings, told in (
        ({"capacity": 1}, "`capacity` is 1"),
        ({"capacity": 10**14}, "GB of memory"),
        ({"state_size": 0}, "`state_size` is 0"),
    ):
        how: dict[str, Any] = {"capacity": 60, "num_envs": 3, **settings}
        with pytest.raises(ConfigError, match=told):
            EpisodeBuffer(SPEC, **how)
    episodes, step = EpisodeBuffer(SPEC, capacity=60, num_envs=3), Episodes(2).step()
    with pytest.raises(ShapeError, match=r"`step.obs` has shape \(2, 4\); 3 environments of Cart"):
        episodes.add(step)
    with pytest.raises(ConfigError, match=r"came with a `state`, and .* made without a `state_s"):
        episodes.add(Episodes(3).step(), state=OF_TWO["state"])


def test_the_state_of_another_buffer_is_refused():
    episodes, envs = EpisodeBuffer(SPEC, capacity=30, num_envs=3), Episodes(3)
    for _ in range(20):
        episodes.add(envs.step())
    for capacity, num_envs, state, told in (
        (30, 2, episodes.state_dict(), "no state of an EpisodeBuffer of 2 environments"),
        (50, 3, episodes.state_dict(), r"The saved `obs` has shape \(30, 4\)"),
        (30, 3, keeping(3, 30).state_dict(), r"The saved buffer keeps .* 'mask', .*expected"),
    ):
        with pytest.raises(CheckpointError, match=told):
            EpisodeBuffer(SPEC, capacity=capacity, num_envs=num_envs).load_state_dict(state)


def test_a_buffer_copies_no_episodes_of_its_own_to_load_others(monkeypatch):
    episodes, twin = (EpisodeBuffer(SPEC, capacity=30, num_envs=1) for _ in range(2))
    monkeypatch.setattr(twin, "state_dict", lambda: pytest.fail("it copied its episodes"))
    twin.load_state_dict(episodes.state_dict())


def test_without_states_a_sequence_has_none():
    episodes, envs = EpisodeBuffer(SPEC, capacity=60, num_envs=1), Episodes(1, ends=2.0)
    episodes.add(envs.step())
    batch = episodes.sample(2, length=3, burn_in=1)
    assert batch.state is None
    assert not batch.extra
    assert batch.mask.tolist() == [[False, True, False, False]] * 2
    with pytest.raises(ConfigError, match="`burn_in` is -1"):
        episodes.sample(2, length=3, burn_in=-1)


def assert_same(left, right):
    for name in (*Sequences.__match_args__, "state"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    np.testing.assert_array_equal(left.extra["mask"], right.extra["mask"])


@pytest.mark.parametrize(
    ("steps", "capacity", "ends"),
    [(0, 30, 0.25), (3, 30, 0.25), (40, 30, 0.25), (50, 20, 0.0), (50, 200, 0.0)],
)
def test_a_resumed_buffer_goes_on_bit_for_bit(tmp_path, steps, capacity, ends):
    first, second = keeping(3, capacity), keeping(3, capacity, seed=1)
    envs = Episodes(3, ends=ends)
    play(first, envs, steps)
    envs.ends = 0.25
    save_checkpoint(tmp_path, first.state_dict())
    second.load_state_dict(load_checkpoint(tmp_path).state)
    for _ in range(40):
        step = envs.step()
        for episodes in (first, second):
            episodes.add(step, **with_state(step))
        assert first.num_episodes == second.num_episodes
        if first.num_episodes:
            assert_same(*(episodes.sample(5, length=4, burn_in=2) for episodes in (first, second)))


def test_unfinished_episodes_have_the_room_that_the_longest_one_needs():
    episodes, envs = keeping(2, 1_000), Episodes(2)
    rooms = []
    for ends in (1.0, 0.0):
        envs.ends = ends
        play(episodes, envs, 100)
        rooms.append(episodes._open["obs"].shape[1])
    assert rooms == [16, 128]


@pytest.mark.parametrize("num_steps", [1, 3])
def test_transitions_of_one_step_are_steps(num_steps):
    one, other, envs = keeping(2, 60), keeping(2, 60), Episodes(2)
    for _ in range(12):
        steps = [envs.step() for _ in range(num_steps)]
        for step in steps:
            one.add(step, **with_state(step))
        join = NStep(1, 0.9, num_envs=2)
        parts = [join(step).with_extra(state=with_state(step)["state"]) for step in steps]
        joined = Transitions(
            *(np.concatenate([getattr(p, n) for p in parts]) for n in Transitions.__match_args__)
        ).with_extra(state=np.concatenate([part.extra["state"] for part in parts]))
        other.add(joined, mask=-joined.obs[:, 1])
    assert_same(*(episodes.sample(20, length=4, burn_in=2) for episodes in (one, other)))
    with pytest.raises(ShapeError, match=r"1 transitions came.*multiple of the 2 environments"):
        other.add(Transitions(*(getattr(joined, n)[:1] for n in Transitions.__match_args__)))
    long = replace(parts[0], num_steps=np.array([1, 2]))
    with pytest.raises(ShapeError, match=r"of up to 2 env steps each; .*`n_step=1`"):
        other.add(long)


def test_episodes_that_did_not_go_on_after_a_resume_are_dropped():
    first, second, envs = keeping(2, 60), keeping(2, 60), Episodes(2, ends=0.0)
    play(first, envs, 3)
    second.load_state_dict(first.state_dict())
    envs.episode[1], envs.age[1] = 7, 0  # this one has begun a new episode instead
    envs.ends = 2.0
    play(second, envs, 1)
    assert second.num_episodes == 2
    assert len(second) == 4 + 1


def test_states_that_become_longer_have_zeros_behind_the_former_ones():
    episodes, source, ended = keeping(2, 60), Episodes(2), 0
    for size in (3, 3, 5, 2) * 8:
        step = source.step()
        own = with_state(step)
        state = np.pad(own["state"], ((0, 0), (0, 2)), constant_values=7.0)[:, :size]
        episodes.add(step, state=state, mask=own["mask"])
        ended += int((step.terminated | step.truncated).sum())
    assert ended
    assert episodes.state_size == 5
    assert episodes.memory_bytes == keeping(2, 60).memory_bytes + 60 * 2 * 4
    batch = episodes.sample(64, length=1)
    state, obs = to_numpy(batch.state), to_numpy(batch.obs)[:, 0]
    np.testing.assert_array_equal(state[:, :2], obs[:, :2])
    sizes = (state != 0.0)[:, 2:].sum(1)
    assert set(np.unique(state[:, 3:])) == {0.0, 7.0}
    assert sizes.max() == 3

"""Catch: its images and rewards, and that it can be played perfectly."""

import gymnasium
import numpy as np

from ding_lite.rl import make_envs
from ding_lite.rl.envs.catch import CATCH_ID, Catch


def ball_of(picture):
    row, column = np.argwhere(picture[:, :, 0] == 255)[0]
    return int(row), int(column)


def paddle_of(picture):
    return int(np.mean(np.flatnonzero(picture[-1, :, 0] == 160)))


def perfect(before, now):
    """Move to where the ball will land, by its drift between two frames."""
    (row, column), size = ball_of(now), len(now)
    last_row, last_column = ball_of(before)
    drift = column - last_column if row == last_row + 1 else 0
    for _ in range(size - 1 - row):
        column += drift
        if not 0 <= column < size:
            drift = -drift
            column += 2 * drift
    return int(np.sign(column - paddle_of(now))) + 1


def play(choose, *, seed, **settings):
    game = Catch(**{"size": 16, **settings})
    now, _ = game.reset(seed=seed)
    before, rewards, ended = now, [], False
    while not ended:
        action = choose(before, now)
        before = now
        now, reward, ended, truncated, _ = game.step(action)
        rewards.append(reward)
        assert not truncated
    return rewards


def test_two_stacked_frames_suffice_to_catch_every_ball_and_one_does_not():
    def naive(before, now):
        return perfect(now, now)

    for player, least, most in ((perfect, 10.0, 10.0), (naive, -5.0, 8.0)):
        returns = [sum(play(player, seed=seed)) for seed in range(20)]
        assert least <= np.mean(returns) <= most


def test_each_ball_takes_as_many_steps_as_the_court_has_rows():
    rewards = play(lambda before, now: 1, seed=0, size=12, balls=3)
    assert len(rewards) == 3 * 11
    assert np.flatnonzero(rewards).tolist() == [10, 21, 32]
    assert set(rewards) == {-1.0, 0.0, 1.0} or set(rewards) == {-1.0, 0.0}


def test_a_picture_shows_the_ball_and_the_paddle():
    game = Catch(size=16)
    picture, _ = game.reset(seed=3)
    for action in [0] * 20 + [2] * 40:
        assert picture in game.observation_space
        row, column = ball_of(picture)
        dim = picture[:, :, 0] == 160
        assert dim[:-1].sum() == 0
        assert dim[-1].sum() == 3
        assert 0 <= column < 16
        picture, *_ = game.step(action)
        assert ball_of(picture)[0] == (row + 1) % 15
    assert paddle_of(picture) == 14


def test_rendering_is_in_colours_and_enlarged():
    game = gymnasium.make(CATCH_ID, size=16, render_mode="rgb_array")
    game.reset(seed=0)
    drawn = game.render()
    assert isinstance(drawn, np.ndarray)
    assert drawn.shape == (256, 256, 3)
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) == 3
    assert Catch().render() is None


def test_it_is_registered_and_can_be_stacked():
    with make_envs(CATCH_ID, 2, frame_stack=2) as envs:
        assert envs.obs.shape == (2, 2, 10, 10)
        assert envs.obs.dtype == np.uint8
        step = envs.step(envs.random_actions())
    assert (step.next_obs[:, 0] == step.obs[:, 1]).all()

import numpy as np
import pytest
import torch

from ding_lite.rl.formulas.sequence_targets import rescaled, sequence_targets, unscaled


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n_step", [1, 3, 20])
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_targets_are_sums_within_the_sequence(seed, n_step, gamma):
    rng = np.random.default_rng(seed)
    reward, value = rng.normal(size=(4, 7)), rng.normal(size=(4, 8))
    length = rng.integers(1, 8, size=4)
    mask = np.arange(7) < length[:, None]
    terminated = (np.arange(7) == length[:, None] - 1) & (rng.random((4, 1)) < 0.5)
    found = sequence_targets(
        *map(torch.from_numpy, (reward * mask, terminated, mask, value)), gamma=gamma, n_step=n_step
    )
    assert found.isfinite().all()  # of steps that do not exist, too: a mask multiplies them by 0
    for row in range(4):
        for time in range(length[row]):
            end = min(time + n_step, length[row])
            goal = sum(gamma ** (k - time) * reward[row, k] for k in range(time, end))
            if not terminated[row, end - 1]:
                goal += gamma ** (end - time) * value[row, end]
            assert float(found[row, time]) == pytest.approx(goal, abs=1e-6)


def test_rescaling_is_undone_and_grows_like_a_square_root():
    value = torch.tensor([-1e4, -3.0, -1e-3, 0.0, 0.5, 80.0, 1e5], dtype=torch.float64)
    torch.testing.assert_close(unscaled(rescaled(value)), value, rtol=1e-6, atol=1e-9)
    assert float(rescaled(torch.tensor(99.0))) == pytest.approx(9.0 + 0.099)

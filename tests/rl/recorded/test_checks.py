import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import EnvSpec
from ding_lite.rl.recorded.checks import check_outputs, sample_obs

SPEC = EnvSpec(env_id="x", obs_space=Box(-1, 1, (4,)), action_space=Discrete(3))
SCREEN = EnvSpec(
    env_id="x", obs_space=Box(0, 255, (10, 10, 3), dtype=np.uint8), action_space=Discrete(3)
)


class Several(nn.Linear):
    def forward(self, obs):
        values = super().forward(obs)
        return values[:, :2], values[:, 2]


def run(module, *shapes, spec=SPEC):
    return check_outputs(module, [sample_obs(spec)], shapes, spec=spec)


def test_outputs_of_the_expected_shapes_pass():
    assert run(nn.Linear(4, 3), (3,)).shape == (2, 3)
    run(Several(4, 3), (2,), ())


def test_a_check_changes_nothing():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())
    state = torch.get_rng_state()
    run(module, (3,))
    assert module.training
    assert module[1].num_batches_tracked == 0
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("module", "shapes", "message"),
    [
        (nn.Linear(4, 2), [(3,)], r"float32 \(2, 2\) for 2 observations of x; float32 \(2, 3\)"),
        (nn.Linear(4, 3), [(3,), ()], r"float32 \(2, 3\) and float32 \(2,\) was expected"),
        (Several(4, 3), [(2,), (1,)], r"float32 \(2, 2\), float32 \(2,\)"),
    ],
)
def test_outputs_of_other_shapes_are_refused(module, shapes, message):
    with pytest.raises(ShapeError, match=message):
        run(module, *shapes)


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"what x gives, float32 \(2, 4\).*\(2x4 and 5x3\)"):
        run(nn.Linear(5, 3), (3,))
    with pytest.raises(ConfigError, match=r"uint8 \(2, 3, 10, 10\).*`obs / 255`"):
        run(nn.Sequential(nn.Conv2d(3, 1, 3), nn.Flatten()), (3,), spec=SCREEN)

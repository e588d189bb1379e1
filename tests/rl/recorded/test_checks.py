import threading
from functools import partial

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


class Alone(nn.Linear):
    def forward(self, obs):
        return (super().forward(obs),)


def run(module, *shapes, spec=SPEC):
    return check_outputs(module, [sample_obs(spec)], shapes, spec=spec)


def test_outputs_of_the_expected_shapes_pass():
    assert run(nn.Linear(4, 3), (3,))[0].shape == (2, 3)
    run(Several(4, 3), (2,), ())


class Autocast(nn.Linear):
    def forward(self, obs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(obs)


class Swapped(nn.Linear):
    def forward(self, obs):
        return super().forward(obs).T


class Squeezed(Several):
    def forward(self, obs):
        return [each.squeeze() for each in super().forward(obs)]


class Auxiliary(nn.Linear):
    """Returns more while it learns."""

    def forward(self, obs):
        values = super().forward(obs)
        return (values, obs) if self.training else values


@pytest.mark.parametrize(
    ("module", "shapes", "message"),
    [
        (nn.Linear(4, 2), [(3,)], r"float32 \(2, 2\) for 2 observations of x; float32 \(2, 3\)"),
        (nn.Linear(4, 3), [(3,), ()], r"float32 \(2, 3\) and float32 \(2,\) was expected"),
        (Several(4, 3), [(2,), (1,)], r"float32 \(2, 2\), float32 \(2,\)"),
        (Alone(4, 3), [(3,)], r"returned \(float32 \(2, 3\),\) for"),
        (Swapped(4, 2), [(2,)], r"float32 \(2, 1\) for 1 observation of x; float32 \(1, 2\)"),
        (Squeezed(4, 3), [(2,), ()], r"float32 \(2,\), float32 \(\) for 1 observation"),
        (Auxiliary(4, 3), [(3,)], r"in training mode; float32 \(2, 3\), as without"),
        (Autocast(4, 3), [(3,)], r"returned bfloat16 \(2, 3\) .* with `\.float\(\)`"),
    ],
)
def test_outputs_of_other_shapes_are_refused(module, shapes, message):
    with pytest.raises(ShapeError, match=message):
        run(module, *shapes)


class Recurrent(nn.GRUCell):
    def forward(self, obs, state):  # type: ignore[override]
        return super().forward(obs, state)


@pytest.mark.parametrize(
    ("module", "spec", "message"),
    [
        (nn.Linear(5, 3), SPEC, r"what x gives, float32 \(2, 4\).*\(2x4 and 5x3\)"),
        (nn.Conv2d(3, 1, 3), SCREEN, r"uint8 \(2, 3, 10, 10\).*`obs / 255`"),
        (Recurrent(4, 3), SPEC, r"argument: 'state'\. For memory, .*`state_size`"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(module, spec, message):
    with pytest.raises(ConfigError, match=message):
        run(module, (3,), spec=spec)


def test_a_check_changes_nothing():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())
    state = torch.get_rng_state()
    run(module, (3,))
    assert module.training
    assert module[1].num_batches_tracked == 0
    assert torch.equal(torch.get_rng_state(), state)


class Changing(nn.Linear):
    def forward(self, obs):
        return super().forward(obs.mul_(2.0))


class Ungraded(nn.Linear):
    @torch.no_grad()
    def forward(self, obs):
        return super().forward(obs)


class Locked(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.lock = threading.Lock()


class Hidden(nn.Linear):
    """Holds a layer where PyTorch does not find it."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.layers = [nn.Linear(4, 4)]

    def forward(self, obs):
        return super().forward(self.layers[0](obs))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Changing(4, 3), r"`network` \(Changing\) changes its inputs in place.*replay"),
        (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)), "changes its inputs in place"),
        (Ungraded(4, 3), r"Ungraded\) cannot be learned.*`torch.no_grad\(\)`"),
        (nn.Linear(4, 3).requires_grad_(False), r"all its parameters are frozen"),
        (Hidden(4, 3), r"\(Hidden\) depends on a parameter of shape \(4,( 4)?\).*nn.ModuleList"),
        (Locked(4, 3), r"The module Locked cannot be copied.*lock.*locks and open files"),
        (
            nn.utils.spectral_norm(nn.Linear(4, 3)),
            r"The module Linear cannot be copied.*torch\.nn\.utils\.parametrizations",
        ),
    ],
)
def test_a_module_that_cannot_be_learned_or_copied_is_refused(module, message):
    with pytest.raises(ConfigError, match=message):
        run(module, (3,))


def test_a_module_with_frozen_layers_or_parametrizations_passes():
    frozen = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3))
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
    for module in (frozen, normed):
        run(module, (3,))


def test_each_output_but_states_needs_a_gradient():
    class Detached(Several):
        def forward(self, obs):
            values, value = super().forward(obs)
            return values, value.detach()

    run_with = partial(check_outputs, Detached(4, 3), [sample_obs(SPEC)], [(2,), ()], spec=SPEC)
    run_with(num_states=1)
    with pytest.raises(ConfigError, match="outputs have no gradient"):
        run_with()

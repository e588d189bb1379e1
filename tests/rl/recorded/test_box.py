"""Actors and critics of users, checked when they are made and run."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import EnvSpec
from ding_lite.rl.recorded.box import (
    RecordedActor,
    RecordedCritics,
    check_actions,
    check_range,
    made_actor,
    made_critics,
)
from ding_lite.rl.weights.flat_module import FlatModule
from tests.rl.probes import f32

CPU = torch.device("cpu")
ARM = EnvSpec(
    env_id="arm",
    obs_space=Box(-np.inf, np.inf, (3,), dtype=np.float32),
    action_space=Box(f32([-2.0, 0.0]), f32([3.0, 10.0])),
)


class Values(nn.Module):
    """Values of the given shape behind the batch's axis."""

    def __init__(self, outputs=1, form=None):
        super().__init__()
        self.layer, self.form = nn.Linear(5, outputs), form or (lambda q: q)

    def forward(self, obs, action):
        return self.form(self.layer(torch.cat((obs, action), dim=1)))


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.log_std = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, obs):
        return self.mean(obs), self.log_std(obs)


def normed():
    critic = Values()
    weight_norm(critic.layer)
    return critic


def test_critics_of_a_function_differ_and_follow_the_seed():
    one, again = critics_of(lambda spec: Values()), critics_of(lambda spec: Values())
    for mine, theirs in zip(one, again, strict=True):
        assert torch.equal(mine.layer.weight, theirs.layer.weight)
    assert (one[0].layer.weight != one[1].layer.weight).all()


def critics_of(make, count=2):
    return made_critics(make, ARM, seed=0, num_critics=count, device=CPU)


def actor_of(make, num_outputs=1):
    return made_actor(make, ARM, seed=0, num_outputs=num_outputs, device=CPU)


FORMS = {
    "[B, 1]": lambda: Values(),
    "[B]": lambda: Values(form=lambda q: q.squeeze(1)),
    "[B, 2]": lambda: Values(2),
    "two [B]": lambda: Values(2, lambda q: q.unbind(1)),
    "two [B, 1]": lambda: Values(2, lambda q: q.split(1, dim=1)),
}


@pytest.mark.parametrize("form", FORMS)
def test_values_of_each_form_are_those_of_two_critics(form):
    module = FORMS[form]()
    critics = critics_of(module)
    assert len(critics) == (1 if "2" in form or "two" in form else 2)
    obs, action = torch.randn(7, 3), torch.randn(7, 2)
    q_EB = critics(obs, action)
    x = torch.cat((obs, action), dim=1)
    expected = torch.cat([critic.layer(x) for critic in critics], dim=1).T
    torch.testing.assert_close(q_EB, expected)
    assert (q_EB[0] != q_EB[1]).all()
    torch.testing.assert_close(critics(obs, action, 1), expected[:1])


@pytest.mark.parametrize("make", [lambda given: given, lambda given: lambda spec: given])
def test_critics_of_a_list_may_be_of_several_kinds(make):
    given = nn.ModuleList([Values(), Weighted()])
    critics = critics_of(make(given))
    assert [*critics] == [*given]
    obs, action = torch.randn(7, 3), torch.randn(7, 2)
    expected = torch.stack([critic(obs, action).reshape(7) for critic in given])
    torch.testing.assert_close(critics(obs, action), expected)


class Encoded(Values):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, obs, action):
        return super().forward(self.encoder(obs), action)


def test_the_layers_of_a_copied_critic_are_initialised_anew_unless_they_are_frozen():
    first, second = critics_of(Encoded())
    assert torch.equal(first.encoder.weight, second.encoder.weight)
    assert (first.layer.weight != second.layer.weight).any()


class Weighted(nn.Module):
    """A critic that does not know how to begin anew."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 2))

    def forward(self, obs, action):
        return (obs @ self.weight * action).sum(1)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (Values(3), ShapeError, r"float32 \(2, 3\) .* \(2,\) or \(2, 1\).*\(2, 2\), those of 2"),
        (nn.Linear(3, 1), ConfigError, r"float32 \(2, 3\), float32 \(2, 2\): TypeError"),
        (normed(), ConfigError, r"'layer.parametrizations.weight.original.' .* drawn anew"),
        (Weighted(), ConfigError, r"equal weights, .* function of the spec"),
        (nn.ModuleList([Values()]), ConfigError, "a ModuleList of length 1; a length of 2"),
        (nn.ModuleList(2 * [Values()]), ConfigError, "equal weights"),
        (nn.ModuleList([Values(), Values(2)]), ShapeError, r"float32 \(2, 2\)"),
        (lambda spec: Values().half(), ConfigError, "`critic` has the type torch.float16"),
        (3, ConfigError, "`critic` is an int; an nn.Module"),
        ((Values(), Values()), ConfigError, "`critic` is a tuple; .* are an `nn.ModuleList`"),
    ],
)
def test_critics_that_do_not_fit_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        critics_of(make)


def test_a_single_critic_gives_a_single_value():
    assert len(critics_of(Weighted(), 1)) == 1
    with pytest.raises(ShapeError, match=r"\(2, 2\) .* float32 \(2,\) or \(2, 1\), a value for"):
        critics_of(Values(2), 1)


def test_both_forms_of_a_gaussian_are_accepted():
    module = Gaussian()
    body = RecordedActor(FlatModule(actor_of(module, 2)))
    obs = torch.randn(4, 3)
    expected = torch.cat((module.mean(obs), module.log_std(obs)), dim=1)
    torch.testing.assert_close(body.forward(obs)[0], expected)
    np.testing.assert_allclose(body.infer(obs.numpy()), expected.detach().numpy())
    assert isinstance(actor_of(nn.Linear(3, 4), 2), nn.Linear)


@pytest.mark.parametrize(
    ("module", "num_outputs", "message"),
    [
        (nn.Linear(3, 3), 1, r"float32 \(2, 3\) .* float32 \(2, 2\) was expected"),
        (Gaussian(), 1, r"float32 \(2, 2\), float32 \(2, 2\) for 2 .* float32 \(2, 2\) was"),
        (nn.Linear(3, 2), 2, r"\(2, 2\) .* \(2, 4\), the means .* a tuple of both, float32 \(2, 2"),
    ],
)
def test_actors_that_do_not_fit_are_refused(module, num_outputs, message):
    with pytest.raises(ShapeError, match=message):
        actor_of(module, num_outputs)


def test_actions_beyond_the_range_are_found_where_usual_observations_do_not_reach():
    layer = nn.Linear(3, 2)
    nn.init.constant_(layer.weight, 1e-3)
    with torch.no_grad(), pytest.raises(ConfigError, match=r"-1 to 1 .*\[3.0, 10.0\].*torch.tanh"):
        check_range(layer, ARM, device=CPU)
    with torch.no_grad():
        check_range(nn.Sequential(layer, nn.Tanh()), ARM, device=CPU)
    check_actions(torch.zeros(0, 2), ARM)


class Embeds(nn.Embedding):
    def forward(self, obs):
        return torch.tanh(super().forward(obs.long()).sum(1))


def test_whole_numbers_of_observations_may_be_indices_of_an_embedding():
    spec = replace(ARM, obs_space=Box(0, 5, (3,), dtype=np.int64))
    for each in (spec, replace(spec, frame_stack=2)):
        with torch.no_grad():
            check_range(Embeds(6, 2), each, device=CPU)
    with torch.no_grad(), pytest.raises(ConfigError, match=r"-1 to 1"):
        check_range(lambda obs: 9.0 * Embeds(6, 2)(obs), spec, device=CPU)


class Blind(Values):
    def forward(self, obs, action):
        return self.layer.weight.sum() * obs[:, 0]


def test_a_critic_that_does_not_look_at_the_action_is_refused():
    critics = RecordedCritics(FlatModule(critics_of(lambda spec: Blind())), first=1)
    _, saved = critics.forward_action(torch.randn(4, 3), torch.randn(1, 4, 2))
    with pytest.raises(ConfigError, match="do not depend on the action"):
        critics.backward_action(saved, torch.ones(1, 1, 4))

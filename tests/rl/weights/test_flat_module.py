import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import make_envs
from ding_lite.rl.weights.flat_module import FlatModule, copied, made_module

SPEC = make_envs("CartPole-v1", 1).spec


def two_layers():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"calls": 3}


@pytest.mark.parametrize("name", ["2", "0.weight"])
def test_a_layer_or_a_parameter_that_was_replaced_is_refused(name):
    flat = FlatModule(two_layers())
    part, _, key = f"root.{name}".rpartition(".")
    owner = flat.module.get_submodule(part.removeprefix("root").removeprefix("."))
    setattr(owner, key, nn.Linear(8, 2) if name == "2" else nn.Parameter(torch.zeros(8, 4)))
    for use in (flat.snapshot, flat.zero_grad):
        with pytest.raises(ConfigError, match=f"'{key}' in the Sequential .* was replaced"):
            use()


def test_copies_have_the_hooks_of_parameters():
    def add_one(weight):
        weight.grad.add_(1.0)

    module = nn.Linear(2, 1)
    module.weight.register_hook(lambda grad: 3.0 * grad)
    module.weight.register_post_accumulate_grad_hook(add_one)
    module.bias.requires_grad_(False)
    each: Any
    for each in (module, copied(copied(module))):
        each(torch.ones(1, 2)).sum().backward()
        assert each.weight.grad.tolist() == [[4.0, 4.0]]


def test_buffers_that_were_expanded_are_loaded():
    module = nn.Linear(2, 2)
    module.register_buffer("scale", torch.ones(1).expand(2))
    flat = FlatModule(module)
    flat.load({**flat.snapshot(), "scale": torch.tensor([1.0, 2.0])})
    assert flat.snapshot()["scale"].tolist() == [1.0, 2.0]


def test_what_does_not_fit_is_not_loaded_at_all():
    flat = FlatModule(two_layers())
    before = flat.snapshot()
    wrong = {name: tensor + 1 for name, tensor in before.items()}
    wrong["1.running_mean"] = torch.zeros(3)
    with pytest.raises(ShapeError, match=r"running_mean.*\(3,\).*\(8,\)"):
        flat.load(wrong)
    with pytest.raises(ShapeError, match=r"'2\.bias' is missing"):
        flat.load({name: tensor for name, tensor in before.items() if name != "2.bias"})
    assert all(torch.equal(tensor, before[name]) for name, tensor in flat.snapshot().items())


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Flatten(), "without parameters.*nn.ModuleList"),
        (nn.Linear(4, 2).half(), "float16; torch.float32 was expected.*autocast"),
        (nn.Linear(4, 2).double(), "float64; torch.float32"),
        (nn.LazyLinear(2), "'weight' of `network` has no shape yet"),
        (Extra(4, 2), r"Extra, in `network`, has a `get_extra_state`.*register_buffer"),
    ],
)
def test_a_module_that_cannot_be_flattened_is_refused(module, message):
    with pytest.raises(ConfigError, match=message):
        FlatModule(module)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (3, "is an int; an nn.Module was expected"),
        (lambda spec: np.zeros(3), "returned a ndarray"),
        (nn.Linear, r"`network=Linear` was called with the spec.*lambda spec: Linear"),
        (lambda: nn.Linear(4, 2), "(?s)was called with the spec.*lambda spec: MyNetwork"),
        (partial(nn.Bilinear, 4, 2), "(?s)was called with the spec.*lambda spec: MyNetwork"),
    ],
)
def test_what_makes_no_module_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        made_module(make, SPEC, seed=0)


def test_a_module_that_cannot_be_copied_is_refused():
    module = nn.Linear(2, 2)
    module.kept = module(torch.ones(1, 2))
    with pytest.raises(ConfigError, match=r"cannot be copied.*parametrizations.*detach\(\)"):
        FlatModule(module).twin()
    with warnings.catch_warnings(action="ignore"):
        script = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"is TorchScript.*without `torch\.jit`"):
        FlatModule(script).twin()


class Sets(nn.Module):
    """Sets its buffer anew in training."""

    mean: torch.Tensor

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * self.layer(x).mean(0)
        return self.layer(x - self.mean)


def test_buffers_that_a_forward_sets_anew_are_published_loaded_and_followed():
    flat, other = FlatModule(Sets()), FlatModule(Sets())
    twin = flat.twin()
    flat.train(True)
    flat.module(torch.ones(3, 2))
    mean = flat.snapshot()["mean"]
    assert torch.equal(mean, flat.module.get_buffer("mean"))
    twin.copy_buffers(flat)
    other.train(True)
    other.module(torch.ones(3, 2))
    other.load(flat.snapshot())
    for one in (twin, other):
        assert torch.equal(one.module.get_buffer("mean"), mean)


@pytest.mark.parametrize("dropped", ["0.weight", "0.bias", "2.weight", "2.bias", "."])
def test_gradients_that_a_user_drops_are_bound_again(dropped):
    flat = FlatModule(two_layers())
    for name, parameter in flat.module.named_parameters():
        if dropped in name:
            parameter.grad = None
    flat.zero_grad()
    flat.module(torch.randn(5, 4)).square().sum().backward()
    assert all(flat.grads[name].any() for name in flat.grads.shapes)


def test_a_layer_that_a_user_unfreezes_is_learned():
    module = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    module[1].requires_grad_(False)
    flat = FlatModule(module)
    for is_learned in (False, True, False):
        module[1].requires_grad_(is_learned)
        flat.zero_grad()
        module(torch.randn(5, 4)).square().sum().backward()
        assert bool(flat.grads["1.weight"].any()) == is_learned
        assert flat.grads["0.weight"].any()


@pytest.mark.parametrize(
    "move",
    [
        lambda module: module.half().float(),
        lambda module: setattr(module[2].bias, "data", torch.zeros(2)),
        lambda module: setattr(module[2].weight, "data", module[2].weight.clone()),
    ],
)
def test_parameters_that_a_user_moves_out_of_the_flat_weights_are_an_error(move):
    flat = FlatModule(two_layers())
    weights = flat.snapshot()
    move(flat.module)
    for use in (flat.snapshot, lambda: flat.load(weights), flat.zero_grad):
        with pytest.raises(ConfigError, match=r"of the Sequential of a policy were moved.*half"):
            use()


def test_a_part_that_a_user_has_switched_is_switched_back():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    flat = FlatModule(module)
    flat.train(False)
    module.train()
    module.training = False
    flat.train(False)
    assert not module[1].training


def test_a_module_with_its_own_way_of_switching_is_switched_that_way():
    class Frozen(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    frozen = Frozen(nn.Linear(2, 2), nn.BatchNorm1d(2))
    FlatModule(nn.Sequential(frozen)).train(True)
    assert frozen.training
    assert not frozen[1].training

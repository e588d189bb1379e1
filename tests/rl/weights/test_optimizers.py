import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.rl import load_checkpoint, save_checkpoint
from ding_lite.rl.weights.flat_module import FlatModule
from ding_lite.rl.weights.optimizers import TorchOptimizer, make_optimizer

MAKERS = [
    torch.optim.RMSprop,
    torch.optim.AdamW,
    lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    lambda params: torch.optim.Adam(params, amsgrad=True, betas=(0.8, 0.99)),
    lambda params: Lookahead(params),
    lambda params: Halving(params),
    lambda params: Counting(params),
]


class Lookahead(torch.optim.SGD):
    """Keeps tensors in lists, and a count beside the states of the parameters."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.count += 1
        for parameter in self.param_groups[0]["params"]:
            history = self.state[parameter].setdefault("history", [parameter.clone()])
            history[0].lerp_(parameter, 0.5)
            parameter.lerp_(history[0], 1.0 / self.count)

    def state_dict(self):
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]
        super().load_state_dict({name: state[name] for name in ("state", "param_groups")})


class Halving(torch.optim.SGD):
    """Saves a scheduler in its state."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self, 0.5)

    def step(self, closure=None):
        super().step(closure)
        self.scheduler.step()

    def state_dict(self):
        return {**super().state_dict(), "scheduler": self.scheduler.state_dict()}

    def load_state_dict(self, state):
        self.scheduler.load_state_dict(state["scheduler"])
        super().load_state_dict({name: state[name] for name in ("state", "param_groups")})


class Counting(torch.optim.SGD):
    """Counts its steps in the parameter groups, which have no such settings before the first."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)

    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            group["sizes"] = [*group.get("sizes", ()), torch.tensor(0.1 / group["step"])]
            group["lr"] = float(group["sizes"][-1])
        super().step(closure)


def make(maker, flat, *, lr=1e-2):
    return TorchOptimizer(maker, [*flat.module.parameters()], flat.grads.flat, lr=lr)


def scheduled(params, lr):
    optimizer = torch.optim.SGD(params, lr=lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return optimizer


def gradients(count, size):
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.normal(size=size).astype(np.float32)) for _ in range(count)]


@pytest.mark.parametrize("maker", MAKERS)
def test_it_steps_as_pytorch_does_and_goes_on_after_a_checkpoint(maker, tmp_path):
    module = nn.Linear(3, 2)
    plain, flat = copy.deepcopy(module), FlatModule(module)
    takes_lr = not hasattr(maker, "__code__")
    theirs = maker(plain.parameters(), lr=1e-2) if takes_lr else maker(plain.parameters())
    ours = make(maker, flat)
    for number, grad_P in enumerate(gradients(8, 8)):
        if number == 4:
            state = ours.state_dict()
            save_checkpoint(tmp_path / "c", {"optimizer": state})
            other = make(maker, FlatModule(copy.deepcopy(module)))
            other.load_state_dict(state)
            other.step(grad_P)  # a copy shares no memory
            ours = make(maker, flat)
            ours.load_state_dict(load_checkpoint(tmp_path / "c").state["optimizer"])
        ours.step(grad_P)
        plain.weight.grad, plain.bias.grad = grad_P[:6].view(2, 3), grad_P[6:]
        theirs.step()
    assert torch.equal(plain.weight, module.weight)
    assert torch.equal(plain.bias, module.bias)


def test_the_step_size_of_the_config_goes_to_optimizers_that_take_it():
    flat = FlatModule(nn.Linear(3, 2))
    taking = make(torch.optim.SGD, flat, lr=0.5)
    assert taking.lr == 0.5
    taking.lr = 0.25
    assert taking.lr == 0.25
    own = make(lambda params: torch.optim.SGD(params, lr=0.1), flat, lr=0.5)
    own.lr = 0.25
    assert own.lr == 0.1
    bound = make(partial(torch.optim.RMSprop, lr=1e-5), flat, lr=0.5)
    bound.lr = 0.25
    assert bound.lr == 1e-5
    assert make(partial(torch.optim.SGD, momentum=0.9), flat, lr=0.5).lr == 0.5


def test_parameters_frozen_later_are_left_alone_and_unfrozen_ones_are_refused():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    flat = FlatModule(module)
    optimizer = make(lambda params: torch.optim.SGD(params, lr=0.1, weight_decay=0.5), flat)
    module[1].weight.requires_grad_(False)
    before = flat.weights.flat.clone()
    optimizer.step(torch.ones(12))
    assert torch.equal(flat.weights.flat[:10], before[:10])
    assert not torch.equal(flat.weights.flat, before)
    module[0].requires_grad_(True)
    with pytest.raises(ConfigError, match="the SGD of the policy does not have its parameters"):
        optimizer.step(torch.ones(12))


SGD: Any = torch.optim.SGD


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (list, "`optimizer` returned a list"),
        (lambda: None, "was called with the parameters, and raised: .*Write `lambda params"),
        (partial(SGD, momentun=0.9), "raised: .*unexpected keyword argument 'momentun'"),
        (partial(SGD, lr=-1.0), "raised: Invalid learning rate: -1.0"),
        (torch.optim.LBFGS, "`optimizer` is LBFGS, which computes the loss"),
        ("adam", r"a function of the parameters.*was expected"),
        (torch.optim.SGD([torch.zeros(1)], lr=1.0), r"a function of the parameters.*was expected"),
        (
            lambda params: torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1),
            "an optimiser of other parameters",
        ),
        (lambda params, lr: scheduled(params, lr), "the policy sets the learning rate of each"),
        (lambda params: scheduled(params, 0.1), "a resumed run or a copy of the policy"),
    ],
)
def test_what_is_no_optimizer_of_the_parameters_is_refused(maker, message):
    flat = FlatModule(nn.Linear(3, 2))
    parameters = [*flat.module.parameters()]
    with pytest.raises(ConfigError, match=message):
        make_optimizer(maker, flat.weights.flat, flat.grads.flat, lambda: parameters, lr=0.1)


def test_the_state_of_another_optimizer_is_refused():
    flat = FlatModule(nn.Linear(3, 2))
    state = make(torch.optim.RMSprop, flat).state_dict()
    with pytest.raises(CheckpointError, match="no state of an AdamW"):
        make(torch.optim.AdamW, flat).load_state_dict(state)


def test_the_state_from_before_the_first_step_is_loaded_after_it():
    flat = FlatModule(nn.Linear(3, 2))
    optimizer = make(Counting, flat)
    first = optimizer.state_dict()
    optimizer.step(torch.ones(8))
    optimizer.load_state_dict(first)
    assert "step" not in optimizer.state_dict()["param_groups"][0]


def test_an_optimizer_of_some_of_the_parameters_leaves_others_alone():
    flat = FlatModule(nn.Linear(3, 2))
    before = flat.weights["weight"].clone()
    make(lambda params: torch.optim.SGD(params[1:], lr=0.1), flat).step(torch.ones(8))
    assert torch.equal(flat.weights["weight"], before)


def test_a_state_without_that_of_pytorch_is_refused_when_the_optimizer_is_made():
    class Nested(torch.optim.SGD):
        def state_dict(self):
            return {"optimizer": super().state_dict()}

    with pytest.raises(ConfigError, match=r"returned \['optimizer'\]; 'state' and 'param_groups'"):
        make(lambda params: Nested(params, lr=0.1), FlatModule(nn.Linear(3, 2)))


def test_groups_keep_the_ratio_of_their_step_sizes():
    def grouped(params, lr):
        return torch.optim.SGD([{"params": params[:1], "lr": lr / 10}, {"params": params[1:]}], lr)

    flat = FlatModule(nn.Linear(3, 2))
    before = flat.weights.flat.clone()
    optimizer = make(grouped, flat, lr=0.5)
    optimizer.lr = 1.0
    optimizer.step(torch.ones(8))
    assert optimizer.lr == 1.0
    torch.testing.assert_close(before - flat.weights.flat, torch.tensor([0.1] * 6 + [1.0] * 2))


def test_a_step_size_that_falls_needs_an_optimizer_that_takes_it():
    flat = FlatModule(nn.Linear(3, 2))
    make_own = partial(TorchOptimizer, parameters=[*flat.module.parameters()], lr=0.5, lr_end=0.1)
    make_own(torch.optim.SGD, grad_P=flat.grads.flat)
    with pytest.raises(ConfigError, match=r"`lr_end` is 0\.1, and `optimizer` takes no `lr`"):
        make_own(partial(torch.optim.SGD, lr=0.3), grad_P=flat.grads.flat)


def test_it_steps_also_after_a_user_has_dropped_gradients():
    flat = FlatModule(nn.Linear(3, 2))
    before = flat.weights.flat.clone()
    optimizer = make(torch.optim.SGD, flat)
    flat.module.zero_grad()
    optimizer.step(torch.ones(8))
    assert not torch.equal(flat.weights.flat, before)

import copy

import numpy as np
import pytest
import torch
from torch import nn

from ding_lite.errors import ShapeError
from ding_lite.rl.weights.flat import FlatAdam, FlatWeights
from ding_lite.rl.weights.flat_module import FlatModule

SHAPES = {"torso.0.weight": (3, 2), "torso.0.bias": (3,), "head.weight": (1, 3)}


def test_a_snapshot_does_not_change_with_the_weights():
    weights = FlatWeights(SHAPES)
    snapshot = weights.snapshot()
    weights.flat.fill_(1.0)
    assert all(not tensor.any() for tensor in snapshot.values())
    assert len({tensor.untyped_storage().data_ptr() for tensor in snapshot.values()}) == 1


def test_a_part_is_the_same_memory_under_shorter_names():
    weights = FlatWeights(SHAPES)
    part = weights.part("torso.")
    assert part.shapes == {"0.weight": (3, 2), "0.bias": (3,)}
    part.flat.fill_(1.0)
    part["0.bias"].fill_(2.0)
    assert weights.flat.tolist() == [1.0] * 6 + [2.0] * 3 + [0.0] * 3
    head = weights.part("head.")
    head.load({"weight": np.full((1, 3), 7.0)})
    assert weights.flat.tolist()[9:] == [7.0] * 3
    assert head.part("wei")["ght"].tolist() == [[7.0] * 3]
    snapshot = head.snapshot()
    weights.flat.zero_()
    assert snapshot["weight"].tolist() == [[7.0] * 3]


@pytest.mark.parametrize("prefix", ["tail.", "a"])
def test_tensors_that_are_not_adjacent_are_not_a_part(prefix):
    with pytest.raises(ShapeError, match="do not lie side by side, or there are none"):
        FlatWeights({"a.bias": (1,), "b.bias": (1,), "a.weight": (1,)}).part(prefix)


def read_only(tensor):
    array = tensor.numpy().copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("as_sent", [torch.clone, torch.Tensor.numpy, read_only])
def test_a_snapshot_can_be_loaded_as_tensors_or_arrays(as_sent):
    source, target = FlatWeights(SHAPES), FlatWeights(SHAPES)
    source.flat.copy_(torch.arange(12.0))
    snapshot = source.snapshot()
    target.load({name: as_sent(tensor) for name, tensor in snapshot.items()})
    assert target.flat.tolist() == source.flat.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"torso.0.bais": torch.zeros(3)}, "'torso.0.bais'.*Did you mean \"torso.0.bias\""),
        ({"head.weight": None}, "'head.weight' is missing"),
        ({"head.weight": torch.zeros(2, 3)}, r"'head.weight' .*\(2, 3\).*\(1, 3\)"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(change, message):
    weights = FlatWeights(SHAPES)
    others = {name: torch.ones(shape) for name, shape in SHAPES.items()} | change
    with pytest.raises(ShapeError, match=message):
        weights.load({name: tensor for name, tensor in others.items() if tensor is not None})
    assert not weights.flat.any()


def test_parts_that_learn_late_or_seldom_step_as_with_torch():
    """The three layers learn in each update, in every third one, and from the 20th one on."""
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2))
    module[2].requires_grad_(False)
    theirs = copy.deepcopy(module).requires_grad_(True)
    flat = FlatModule(module)
    adam = FlatAdam(flat.weights.flat, lr=1e-2, views=flat.parameters)
    reference_adam = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    rng = np.random.default_rng(0)
    for update in range(40):
        if update == 20:
            module[2].requires_grad_(True)
        if update == 31:  # also in a copy, of which the parameters have learned equally often
            state = adam.state_dict()
            adam = FlatAdam(flat.weights.flat, lr=1e-2, views=flat.parameters)
            adam.load_state_dict(state)
        learns = [each for each in (True, update % 3 == 0, update >= 20) for _ in range(2)]
        grad_P = torch.from_numpy(rng.normal(size=len(flat.weights.flat)).astype(np.float32))
        parts = grad_P.split([parameter.numel() for parameter in theirs.parameters()])
        for parameter, part, is_used in zip(theirs.parameters(), parts, learns, strict=True):
            parameter.grad = part.view_as(parameter) if is_used else None
        adam.step(grad_P, used=[True, True, *2 * [update % 3 == 0], True, True])
        reference_adam.step()
        for one, other in zip(module.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert adam.state_dict()["num_updates"].tolist() == [40.0, 40.0, 14.0, 14.0, 20.0, 20.0]
    module.requires_grad_(False)
    before = flat.weights.flat.clone()
    adam.step(torch.ones_like(before))
    assert torch.equal(flat.weights.flat, before)


def test_the_state_of_other_weights_is_refused():
    state = FlatAdam(torch.zeros(5), lr=0.1).state_dict()
    with pytest.raises(ShapeError, match=r"\(5,\) for 'mean'; \(6,\)"):
        FlatAdam(torch.zeros(6), lr=0.1).load_state_dict(state)

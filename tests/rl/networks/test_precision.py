"""The precision of matrix products and of convolutions."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from ding_lite.rl.networks.activations import through
from ding_lite.rl.networks.conv import Conv
from ding_lite.rl.networks.modules import make_convolutions
from ding_lite.rl.networks.precision import Precision, computing_in, convolved


def convolutions(seed: int = 0) -> nn.ModuleList:
    torch.manual_seed(seed)
    return nn.ModuleList([nn.Conv2d(3, 8, 4, 2), nn.Conv2d(8, 16, 3, 1, padding=1)])


def images(count: int, seed: int = 0) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 3, 12, 10), dtype=torch.uint8, generator=drawn)


def features(layers: nn.ModuleList, obs: Tensor) -> Tensor:
    return convolved(partial(through, layers, function=Tensor.relu_), obs)


def plain(layers: nn.ModuleList, obs: Tensor) -> Tensor:
    x = obs.float() / 255.0 if obs.dtype == torch.uint8 else obs
    for layer in layers:
        x = layer(x).relu()
    return x.flatten(1)


def gradients(layers: nn.ModuleList, found: Tensor) -> list[Tensor]:
    return [*torch.autograd.grad(found.square().mean(), [*layers.parameters()])]


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("is_bytes", [True, False])
def test_features_and_gradients_are_those_of_plain_convolutions(count: int, is_bytes: bool) -> None:
    layers, obs = convolutions(), images(count)
    obs = obs if is_bytes else obs / 255.0
    found, expected = features(layers, obs), plain(layers, obs)
    torch.testing.assert_close(found, expected)
    assert found.is_contiguous()
    if count:
        torch.testing.assert_close(gradients(layers, found), gradients(layers, expected))


def test_bfloat16_is_near_float32_and_returns_float32() -> None:
    layers, obs = convolutions(), images(7)
    expected = plain(layers, obs)
    with computing_in("bfloat16"):
        found = features(layers, obs)
        found_gradients = gradients(layers, found)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    for near, exact in zip(found_gradients, gradients(layers, expected), strict=True):
        assert near.dtype == torch.float32
        assert (near - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_members_of_a_population_are_computed_as_one(precision: Precision | None) -> None:
    members, obs = [convolutions(seed) for seed in range(3)], images(7)
    stacked = {
        name: torch.stack([dict(member.named_parameters())[name] for member in members])
        for name, _ in members[0].named_parameters()
    }

    as_one = nn.Sequential(members[0][0], nn.ReLU(), members[0][1], nn.ReLU())

    def of_member(weights: dict[str, Tensor]) -> Tensor:
        named = {f"{2 * int(name[0])}{name[1:]}": each for name, each in weights.items()}
        return convolved(lambda x: torch.func.functional_call(as_one, named, (x,)), obs)

    with computing_in(precision):
        found = torch.func.vmap(of_member)(stacked)
    expected = torch.stack([plain(member, obs) for member in members])
    tolerance = 0.02 if precision == "bfloat16" else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_the_precision_of_the_process_is_restored() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(KeyError), computing_in("bfloat16"):
            raise KeyError(torch.get_float32_matmul_precision())
        assert torch.get_float32_matmul_precision() == "high"
        with computing_in("float32"):
            assert torch.get_float32_matmul_precision() == "highest"
        with computing_in(None):
            assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_finer_switches_of_a_program_are_kept() -> None:
    products = getattr(torch.backends.mkldnn, "matmul", None)
    if products is None:  # an older PyTorch has none
        return
    before = products.fp32_precision
    products.fp32_precision = "bf16"
    try:
        for precision in ("float32", None):
            with computing_in(precision):
                pass
        assert products.fp32_precision == "bf16"
    finally:
        products.fp32_precision = before


@pytest.mark.parametrize(("channels", "stride"), [(1, 2), (1, 4), (3, 2), (4, 3)])
def test_strided_convolutions_of_single_pixels_learn_as_their_formula_says(
    channels: int, stride: int
) -> None:
    """Plain ones end the process: oneDNN writes outside of its memory."""
    torch.manual_seed(0)
    [layer] = make_convolutions(channels, [Conv(23, 1, stride)])
    layers = nn.ModuleList([layer])
    obs = torch.rand(16, channels, 12, 10)
    seen = obs[:, :, ::stride, ::stride]
    weight, bias = layer.parameters()
    sums = torch.einsum("bihw,oi->bohw", seen, weight[:, :, 0, 0])
    expected = (sums + bias[:, None, None]).relu().flatten(1)
    wanted = gradients(layers, expected)
    for _ in range(50):
        found = features(layers, obs)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradients(layers, found), wanted)

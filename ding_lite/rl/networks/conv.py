"""Convolutional torsos for images.

Gradients come from autograd: in a convolution the arithmetic takes far longer than recording it.
The recorded tensors share their memory with the flat weights and the flat gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor
from torch.nn import functional as F

from ding_lite.errors import ConfigError
from ding_lite.rl.networks.flat import FlatWeights

TorsoName: TypeAlias = Literal["auto", "mlp", "nature", "small"]


@dataclass(frozen=True)
class Conv:
    """One convolution and a ReLU."""

    channels: int
    """The number of output channels."""
    kernel: int
    """The side of the kernel, in pixels."""
    stride: int
    """The stride, in pixels."""
    padding: int = 0
    """The zero padding; without any, borders count less."""


CONVS: dict[str, tuple[Conv, ...]] = {
    "nature": (Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3, 1)),
    "small": (Conv(16, 3, 1, padding=1), Conv(32, 3, 2, padding=1)),
}
"""`nature` is that of Mnih et al. 2015 (doi:10.1038/nature14236), for about 84 x 84 pixels;
`small` sees single pixels up to the border, for images of up to about 30 x 30."""


class ConvTorso:
    """Convolutions with ReLUs; the last output is flattened.

    Args:
        weights: Holds the tensors of `shapes`.
        grads: Takes their gradients.
        convs: The layers.
    """

    def __init__(self, weights: FlatWeights, grads: FlatWeights, *, convs: Sequence[Conv]) -> None:
        """Take the tensors `conv.<layer>.weight` and `conv.<layer>.bias`."""
        self._layers = [
            (
                recorded(weights, grads, f"conv.{layer}.weight"),
                recorded(weights, grads, f"conv.{layer}.bias"),
                conv,
            )
            for layer, conv in enumerate(convs)
        ]

    @staticmethod
    def shapes(in_channels: int, convs: Sequence[Conv]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of such a torso."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, conv in enumerate(convs):
            shapes[f"conv.{layer}.weight"] = (
                conv.channels,
                in_channels,
                conv.kernel,
                conv.kernel,
            )
            shapes[f"conv.{layer}.bias"] = (conv.channels,)
            in_channels = conv.channels
        return shapes

    def forward(self, images: Tensor) -> Tensor:
        """Compute the features of images, [B, channels, height, width] floats."""
        for weight, bias, conv in self._layers:
            images = F.conv2d(images, weight, bias, conv.stride, conv.padding).relu_()
        return images.flatten(1)


def recorded(weights: FlatWeights, grads: FlatWeights, name: str) -> Tensor:
    """Make a leaf tensor of autograd in the memory of the flat weights and gradients."""
    tensor = weights[name].detach().requires_grad_()
    tensor.grad = grads[name]
    return tensor


def torso_for(name: TorsoName, obs_shape: Sequence[int], *, env_id: str) -> tuple[Conv, ...]:
    """Choose the convolutions for observations; none for an MLP.

    Raises:
        ConfigError: If there are no images, or they are too small.
    """
    is_image = len(obs_shape) == 3
    if name == "auto":
        fitting = [one for one in CONVS if is_image and num_features(obs_shape, CONVS[one])]
        return CONVS[fitting[0]] if fitting else ()
    if name == "mlp":
        return ()
    if not is_image or not num_features(obs_shape, CONVS[name]):
        raise ConfigError(
            f"`torso` is {name!r}, but the observations of {env_id} have the shape "
            f"{tuple(obs_shape)}, which is {'too small' if is_image else 'no image'}. "
            f'Use "auto", which takes what fits.'
        )
    return CONVS[name]


def num_features(obs_shape: Sequence[int], convs: Sequence[Conv]) -> int:
    """Return how many numbers convolutions make of an image; 0 where it is too small.

    Example:
        >>> num_features((4, 84, 84), CONVS["nature"])
        3136
    """
    channels, *sides = obs_shape
    for conv in convs:
        sides = [
            max(0, (side + 2 * conv.padding - conv.kernel) // conv.stride + 1) for side in sides
        ]
        channels = conv.channels
    return channels * sides[0] * sides[1]

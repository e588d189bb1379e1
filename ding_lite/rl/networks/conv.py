"""The convolutions for images: the built-in kinds, and the choice of a kind that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ding_lite.errors import ConfigError
from ding_lite.settings.rules import check_all, whole

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
    """The zero padding, in pixels; without it, pixels at the borders count less."""

    def __post_init__(self) -> None:
        check_all(
            whole(1, channels=self.channels, kernel=self.kernel, stride=self.stride),
            whole(0, padding=self.padding),
        )


def convolutions(**named: object) -> list[str]:
    """Return a fault for each value that is no sequence of convolutions."""
    return [
        f"`{name}` is {value!r}; a tuple was expected, such as (Conv(channels=16, kernel=3, "
        f"stride=1),)"
        for name, value in named.items()
        if not (isinstance(value, tuple | list) and all(isinstance(v, Conv) for v in value))
    ]


CONVS: dict[str, tuple[Conv, ...]] = {
    "nature": (Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3, 1)),
    "small": (Conv(16, 3, 1, padding=1), Conv(32, 3, 2, padding=1)),
}
"""`nature` has the convolutions of Mnih et al. 2015 (doi:10.1038/nature14236), for about 84 x 84
pixels; `small` resolves single pixels up to the border, for images of up to about 30 x 30."""


AnyTorso: TypeAlias = TorsoName | tuple[Conv, ...]
"""The kind of convolutions of each image, or the convolutions themselves."""


def torso_for(torso: AnyTorso, obs_shape: Sequence[int], *, env_id: str) -> tuple[Conv, ...]:
    """Choose the convolutions for observations; an MLP has none."""
    is_image = len(obs_shape) == 3
    if torso == "auto":
        fitting = [convs for convs in CONVS.values() if is_image and num_features(obs_shape, convs)]
        return fitting[0] if fitting else ()
    convs = CONVS.get(torso, ()) if isinstance(torso, str) else tuple(torso)
    if convs and not (is_image and num_features(obs_shape, convs)):
        given, advice = f"`torso` is {torso!r}", 'Use "auto", which takes what fits'
        if not isinstance(torso, str):
            given = "`convs` are given"
            advice = "Leave `convs` out, or give smaller kernels and strides"
        raise ConfigError(
            f"{given}, but the observations of {env_id} have the shape {tuple(obs_shape)}, which "
            f"is {'too small' if is_image else 'no image'}. {advice}."
        )
    return convs


def num_features(obs_shape: Sequence[int], convs: Sequence[Conv]) -> int:
    """Return the number of features that convolutions compute; 0 if the image is too small."""
    channels, *sides = obs_shape
    for conv in convs:
        sides = [
            max(0, (side + 2 * conv.padding - conv.kernel) // conv.stride + 1) for side in sides
        ]
        channels = conv.channels
    return channels * sides[0] * sides[1]

"""Parts that the models share: norms by name, and a convolution with its norm."""

from typing import Literal

from torch import nn

from uneven.errors import ModelError

Norm = Literal["group", "batch", "none"]


def norm(kind: Norm, channels: int, groups: int = 1) -> nn.Module:
    """A norm over ``channels``.

    ``group``: group norm; a width can only be reached in steps of ``groups`` channels, hence 1 by default.
    ``batch``: batch norm. ``none``: no norm.
    """
    if kind == "group":
        if groups < 1 or channels % groups:
            raise ModelError(f"model.groups = {groups}: must divide every layer's channels, here {channels}")
        return nn.GroupNorm(groups, channels)
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "none":
        return nn.Identity()
    raise ModelError(f"model.norm = {kind!r}: must be 'group', 'batch' or 'none'")


class ConvNorm(nn.Sequential):
    """A convolution followed by its norm; the convolution has a bias only where no norm follows."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        *,
        norm_kind: Norm = "group",
        groups: int = 1,
        depthwise: bool = False,
    ) -> None:
        convolution = nn.Conv2d(
            *(inputs, outputs, kernel, stride, kernel // 2),
            groups=inputs if depthwise else 1,
            bias=norm_kind == "none",
        )
        super().__init__(convolution, norm(norm_kind, outputs, groups))

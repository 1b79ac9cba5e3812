"""ShuffleNet V2 (Ma et al. 2018, arXiv 1807.11164), with a stem of stride 1 for small images."""

import torch
from torch import Tensor, nn

from uneven.data import Info
from uneven.models.blocks import ConvNorm, Norm


def shuffle(x: Tensor) -> Tensor:
    """Interleave the two halves of the channels of ``(batch, channels, height, width)``."""
    batch, channels, height, width = x.shape
    halves = x.view(batch, 2, channels // 2, height, width)
    return halves.transpose(1, 2).reshape(batch, channels, height, width)


class Unit(nn.Module):
    """One unit: half of the channels (or, at stride 2, all of them) through 1x1, depthwise 3x3 and 1x1."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm, groups: int) -> None:
        super().__init__()
        half = outputs // 2

        def conv(i: int, kernel: int, stride: int = 1, depthwise: bool = False) -> ConvNorm:
            o = i if depthwise else half
            return ConvNorm(i, o, kernel, stride, norm_kind=norm, groups=groups, depthwise=depthwise)

        self.stride = stride
        main_inputs = inputs if stride == 2 else half
        self.main = nn.Sequential(
            conv(main_inputs, 1), nn.ReLU(), conv(half, 3, stride, depthwise=True), conv(half, 1), nn.ReLU()
        )
        if stride == 2:
            self.side = nn.Sequential(conv(inputs, 3, 2, depthwise=True), conv(inputs, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 2:
            return shuffle(torch.cat([self.side(x), self.main(x)], dim=1))
        kept, worked = x.chunk(2, dim=1)
        return shuffle(torch.cat([kept, self.main(worked)], dim=1))


def shufflenet_v2_x0_5(info: Info, norm: Norm = "group", groups: int = 1) -> nn.Module:
    """Stages of 4, 8 and 4 units at 48, 96 and 192 channels, then 1,024: 352 thousand parameters for ten classes.

    The shuffles tie the halves of a stream together: most of a stream's channels cannot be dropped, those
    inside the branches can.
    """
    layers: list[nn.Module] = [ConvNorm(info.input_shape[0], 24, norm_kind=norm, groups=groups), nn.ReLU()]
    inputs = 24
    for outputs, units in ((48, 4), (96, 8), (192, 4)):
        layers += [Unit(inputs, outputs, 2, norm, groups)]
        layers += [Unit(outputs, outputs, 1, norm, groups) for _ in range(units - 1)]
        inputs = outputs
    layers += [ConvNorm(inputs, 1024, 1, norm_kind=norm, groups=groups), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, info.num_classes))

"""Residual networks for small images (He et al. 2016, arXiv 1512.03385)."""

import torch
from torch import Tensor, nn

from uneven.data import Info
from uneven.models.blocks import ConvNorm, Norm


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a skip; a 1x1 convolution on the skip where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm, groups: int) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, outputs, 3, stride, norm_kind=norm, groups=groups)
        self.second = ConvNorm(outputs, outputs, 3, 1, norm_kind=norm, groups=groups)
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else ConvNorm(inputs, outputs, 1, stride, norm_kind=norm, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.skip(x))


def _resnet(info: Info, widths: list[int], blocks: int, norm: Norm, groups: int) -> nn.Module:
    layers: list[nn.Module] = [
        ConvNorm(info.input_shape[0], widths[0], norm_kind=norm, groups=groups),
        nn.ReLU(),
    ]
    inputs = widths[0]
    for stage, outputs in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(BasicBlock(inputs, outputs, stride, norm, groups))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, info.num_classes))


def resnet18(info: Info, norm: Norm = "group", groups: int = 1) -> nn.Module:
    """ResNet-18 with a 3x3 stem and no pooling before the stages: 11.17 M parameters for ten classes."""
    return _resnet(info, [64, 128, 256, 512], 2, norm, groups)


def resnet_tiny(info: Info, norm: Norm = "group", groups: int = 1) -> nn.Module:
    """Three stages of two blocks at 16, 32 and 64 channels: about 175 thousand parameters."""
    return _resnet(info, [16, 32, 64], 2, norm, groups)

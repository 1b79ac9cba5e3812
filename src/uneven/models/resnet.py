"""Residual networks for small images (He et al. 2016, arXiv 1512.03385)."""

from itertools import chain

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


class EarlyExits(nn.Module):
    """Stages with a head after each: the logits of every head, ``(batch, exits, classes)``."""

    def __init__(self, stages: list[nn.Module], heads: list[nn.Module]) -> None:
        super().__init__()
        self.stages, self.heads = nn.ModuleList(stages), nn.ModuleList(heads)

    def forward(self, x: Tensor) -> Tensor:
        logits = []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x)
            logits.append(head(x))
        return torch.stack(logits, dim=1)


def _resnet(info: Info, widths: list[int], blocks: int, norm: Norm, groups: int, exits: bool) -> nn.Module:
    stem = ConvNorm(info.input_shape[0], widths[0], norm_kind=norm, groups=groups)
    stages: list[list[nn.Module]] = []
    inputs = widths[0]
    for outputs in widths:
        stages.append([] if stages else [stem, nn.ReLU()])
        for block in range(blocks):
            stride = 2 if len(stages) > 1 and block == 0 else 1
            stages[-1].append(BasicBlock(inputs, outputs, stride, norm, groups))
            inputs = outputs
    if exits:
        heads = [nn.Sequential(*_head(info, outputs)) for outputs in widths]
        return EarlyExits([nn.Sequential(*stage) for stage in stages], list(heads))
    return nn.Sequential(*chain(*stages), *_head(info, inputs))


def _head(info: Info, inputs: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, info.num_classes)]


def resnet18(info: Info, norm: Norm = "group", groups: int = 1, exits: bool = False) -> nn.Module:
    """ResNet-18 with a 3x3 stem and no pooling before the stages: 11.17 M parameters for ten classes.

    ``exits``: a head of pooling and a linear layer after each of the four stages, for ScaleFL.
    """
    return _resnet(info, [64, 128, 256, 512], 2, norm, groups, exits)


def resnet_tiny(info: Info, norm: Norm = "group", groups: int = 1, exits: bool = False) -> nn.Module:
    """Three stages of two blocks at 16, 32 and 64 channels: about 175 thousand parameters.

    ``exits``: a head of pooling and a linear layer after each stage, for ScaleFL.
    """
    return _resnet(info, [16, 32, 64], 2, norm, groups, exits)

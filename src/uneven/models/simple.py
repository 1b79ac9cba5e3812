"""A multilayer perceptron and a small convolutional network."""

import math
from itertools import pairwise

from torch import nn

from uneven.data import Info
from uneven.errors import ModelError
from uneven.models.blocks import ConvNorm, Norm


def mlp(info: Info, hidden: list[int] | None = None) -> nn.Module:
    """Linear layers with ReLU between them, on the flattened input; 200 and 100 hidden units by default."""
    sizes = [math.prod(info.input_shape), *([200, 100] if hidden is None else hidden)]
    if min(sizes) < 1:
        raise ModelError(f"model.hidden = {hidden}: must be positive numbers of units")
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], info.num_classes))


def cnn(
    info: Info, channels: list[int] | None = None, average: bool = False, norm: Norm = "group", groups: int = 1
) -> nn.Module:
    """Convolutions, the first 5x5 and the others 3x3, each with norm, ReLU and 2x2 pooling; one linear layer.

    With 32 and 64 channels, the default: 51 thousand parameters on grey images of 28x28, 62 thousand on colour
    images of 32x32, ten classes. The linear layer reads positions, so that few channels still say much; with
    ``average`` it reads each channel's mean, as a residual network's does.
    """
    sizes = [32, 64] if channels is None else channels
    if not sizes or min(sizes) < 1:
        raise ModelError(f"model.channels = {channels}: must be positive numbers of channels")
    inputs, height, width = info.input_shape
    side = 2 ** len(sizes)
    pixels = 1 if average else (height // side) * (width // side)
    if min(height, width) < side:
        raise ModelError(
            f"model.name = 'cnn': images of {height}x{width} are too small, {side}x{side} is the least"
        )
    layers: list[nn.Module] = []
    for before, after in pairwise([inputs, *sizes]):
        kernel = 3 if layers else 5
        layers += [ConvNorm(before, after, kernel, norm_kind=norm, groups=groups), nn.ReLU(), nn.MaxPool2d(2)]
    pool = [nn.AdaptiveAvgPool2d(1)] if average else []
    return nn.Sequential(*layers, *pool, nn.Flatten(), nn.Linear(sizes[-1] * pixels, info.num_classes))

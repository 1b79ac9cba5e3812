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


def cnn(info: Info, norm: Norm = "group", groups: int = 1) -> nn.Module:
    """A 5x5 convolution of 32 channels and a 3x3 of 64, each with norm, ReLU and pooling; one linear layer.

    51 thousand parameters on grey images of 28x28, 62 thousand on colour images of 32x32, ten classes. The
    linear layer reads positions, not a global average, so that few channels still say much.
    """
    channels, height, width = info.input_shape
    pixels = (height // 4) * (width // 4)
    if pixels == 0:
        raise ModelError(f"model.name = 'cnn': images of {height}x{width} are too small, 4x4 is the least")
    return nn.Sequential(
        *(ConvNorm(channels, 32, 5, norm_kind=norm, groups=groups), nn.ReLU(), nn.MaxPool2d(2)),
        *(ConvNorm(32, 64, 3, norm_kind=norm, groups=groups), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * pixels, info.num_classes)),
    )

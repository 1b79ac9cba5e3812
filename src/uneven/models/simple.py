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
    """Three 3x3 convolutions of 32, 64 and 64 channels, each with norm, ReLU and pooling; one linear layer.

    About 62 thousand parameters on grey images of 28x28 and ten classes. The linear layer reads positions, not
    a global average, so that few channels still say much.
    """
    channels = [info.input_shape[0], 32, 64, 64]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(channels):
        layers += [ConvNorm(inputs, outputs, norm_kind=norm, groups=groups), nn.ReLU(), nn.MaxPool2d(2)]
    pixels = math.prod(size // 8 for size in info.input_shape[1:])
    if pixels == 0:
        raise ModelError(f"model.name = 'cnn': images of {info.input_shape[1:]} are too small, 8x8 is the least")
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * pixels, info.num_classes))

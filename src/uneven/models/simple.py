"""A multilayer perceptron and a small convolutional network."""

import math

from torch import nn

from uneven.data import Info
from uneven.models.blocks import ConvNorm, Norm


def mlp(info: Info, hidden: list[int] | None = None) -> nn.Module:
    """Linear layers with ReLU between them, on the flattened input; 200 and 100 hidden units by default."""
    sizes = [math.prod(info.input_shape), *([200, 100] if hidden is None else hidden)]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], info.num_classes))


def cnn(info: Info, norm: Norm = "group", groups: int = 1) -> nn.Module:
    """Three 3x3 convolutions of 32, 64 and 64 channels, each with norm, ReLU and pooling; one linear layer.

    57,000 parameters on grey images of ten classes.
    """
    channels = [info.input_shape[0], 32, 64, 64]
    layers: list[nn.Module] = []
    for inputs, outputs in zip(channels, channels[1:], strict=False):
        layers += [ConvNorm(inputs, outputs, norm_kind=norm, groups=groups), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], info.num_classes)
    )

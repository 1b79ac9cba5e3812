"""A small model of which every number can be worked out by hand."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from tests.submodels.helpers import randomised
from uneven.submodels import Supernet


@cache
def three() -> Supernet:
    """Tensors of 10 x 20, 4 x 10 and 2 x 4 with 2 biases, 250 parameters in all.

    sum(shape) / prod(shape) is 30 / 200, 14 / 40 and 6 / 8, so a layer's share under ERK is as its sum(shape): 30,
    14, 6.
    """
    first, second = nn.Linear(20, 10, bias=False), nn.Linear(10, 4, bias=False)
    return Supernet(
        randomised(nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(4, 2))), torch.zeros(20)
    )

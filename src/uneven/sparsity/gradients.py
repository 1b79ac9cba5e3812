"""The gradient of all places of a network, links or not."""

from __future__ import annotations

import torch

from uneven.data import Examples
from uneven.submodels import Network, State
from uneven.training import Loss
from uneven.training.losses import targets


@torch.enable_grad()
def mean_gradient(network: Network, data: Examples, batch: int, loss: Loss) -> State:
    """The gradient of the mean loss over all targets, at the network's present weights, by parameter.

    The network runs as in evaluation (no dropout, running statistics as they are) and is left as it was; also a
    masked network's gradient is whole: where a link would be, not where it is.
    """
    network.eval()
    weights = network.weights()
    total, every = {name: torch.zeros_like(weight) for name, weight in weights.items()}, max(targets(data.y), 1)
    for index in torch.arange(len(data)).split(batch):  # type: ignore[no-untyped-call]
        x, y = data.batch(index)
        found = torch.autograd.grad(loss(network(x), y), list(weights.values()), allow_unused=True)
        for name, gradient in zip(weights, found, strict=True):
            if gradient is not None:
                total[name].add_(gradient, alpha=targets(y) / every)
    return total

"""AFL: the mixture of clients that the model is worst at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from uneven.weightings.base import Weighting


class AFL(Weighting):
    """a_n = lambda_n, which climb along the losses.

    Paper: Mohri, Sivek, Suresh 2019, Agnostic Federated Learning (arXiv 1902.00146): the minimum over x of the
    maximum over lambda on the simplex of sum_n lambda_n F_n(x), by steps of both in turn (Algorithm 1).

    Rule: lambda_n = 1/N at first; after each round lambda <- Proj(lambda + eta_lambda F), F_n as it was at the
    start of the round, Proj the nearest point of the simplex.

    Deviations: x is moved by local training, as in every method here, not by one stochastic gradient. Where not
    all clients take part in a round, those that do share out anew what they have together: their lambda +
    eta_lambda F is projected to the vectors of that sum, since the others' F is not known. All lambda_n of a
    cohort may be 0, and then its round changes neither the model nor lambda: let all clients take part, as the
    paper does.

    Attributes:
        state: ``lambda``, (N,) float64, of the clients in order.
    """

    asks_loss = True

    def __init__(self, lr: float, clients: Sequence[int]) -> None:
        super().__init__()
        self._lr, self._place = lr, {client: i for i, client in enumerate(clients)}
        self.state = {"lambda": torch.full((len(clients),), 1 / len(clients), dtype=torch.float64)}

    def weight(self, client: int, examples: int, loss: float | None) -> float:
        return float(self.state["lambda"][self._place[client]])

    def learn(self, losses: Mapping[int, float]) -> None:
        took_part = sorted(losses)
        where = torch.tensor([self._place[client] for client in took_part])
        steps = self._lr * torch.tensor([losses[client] for client in took_part], dtype=torch.float64)
        before = self.state["lambda"]
        share = before[where]
        self.state = {"lambda": before.index_copy(0, where, to_simplex(share + steps, float(share.sum())))}


def to_simplex(values: Tensor, total: float) -> Tensor:
    """The nearest vector without negative entries that sums to ``total`` (Duchi et al. 2008, figure 1).

    ``values``: (n,) float64.

    >>> to_simplex(torch.tensor([0.875, 0.5, -1.0], dtype=torch.float64), 1.0).tolist()
    [0.6875, 0.3125, 0.0]
    """
    largest = values.sort(descending=True).values
    excess = (largest.cumsum(0) - total) / torch.arange(1, len(values) + 1)
    kept = int((largest > excess).sum())
    return (values - excess[max(kept, 1) - 1]).clamp(min=0)

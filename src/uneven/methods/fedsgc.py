"""FedSGC: clients exchange links as the directions of their own and of the global change tell them to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from uneven.methods.base import Assignment, ClientCard, Context, Exchange, Update
from uneven.methods.feddst import FedDST, FedDSTClient, Layer
from uneven.sparsity import strongest
from uneven.sparsity.coding import subset_bytes
from uneven.submodels import State, Submodel


class FedSGCClient(FedDSTClient):
    """Prefers to drop links that go against the global direction, and to grow those that go with it."""

    def dropped(self, layer: Layer, count: int, draws: torch.Generator) -> Tensor:
        conflicts = _sign(layer.weight - layer.start) * layer.direction < 0
        return _halves(-layer.weight.abs(), layer.held, conflicts, count, draws)

    def grown(self, layer: Layer, count: int, draws: torch.Generator) -> Tensor:
        agrees = _sign(-layer.gradient) * layer.direction > 0
        return _halves(layer.gradient.abs(), layer.free, agrees, count, draws)


def _sign(x: Tensor) -> Tensor:
    """-1, 0 or 1, int8."""
    return x.sign().to(torch.int8)


def _halves(scores: Tensor, among: Tensor, first: Tensor, count: int, draws: torch.Generator) -> Tensor:
    """The ``count`` highest scores among some places, half of them (rounded up) where ``first`` is true and half
    where it is not, as far as there are so many."""
    first, rest = among & first, among & ~first
    own = min(int(first.sum()), max(count - count // 2, count - int(rest.sum())))
    return strongest(scores, first, own, draws) | strongest(scores, rest, count - own, draws)


class FedSGC(FedDST):
    """Clients exchange links by size and gradient, half of them among those that the global direction speaks for.

    Paper: 2024, Gradient-Congruity Guided Federated Sparse Training (arXiv 2405.01189). This is a reconstruction
    from its description.

    Rule: as FedDST, but of the swap_l links that a client drops in a layer half are the smallest |w| among those
    in conflict, sign(w - w_start) against sign(x_t - x_{t-1}), and half the smallest among the rest; of those that
    it grows half are the largest |g| among the places that agree, sign(-g) with sign(x_t - x_{t-1}), and half the
    largest among the rest. Where there are not so many the other half is larger. The server takes the union of
    what clients hold and keeps the K_l of the largest |x|.

    Deviations: x_t - x_{t-1} is the change by averaging, not by pruning, and of a place that did not change in the
    last round it is the last change that it had: places without a link change only in rounds in which a client
    grew one there. In the first rounds there is no direction, and nothing conflicts or agrees. All else as FedDST.
    """

    Client = FedSGCClient

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        self.direction: State = {name: torch.zeros(m.shape, dtype=torch.int8) for name, m in self.mask.items()}

    def assignment(self, t: int, client: ClientCard, submodel: Submodel) -> Assignment:
        """Counts what tells the directions, at the entropy (an estimate): where there is one, and its sign."""
        assignment = super().assignment(t, client, submodel)
        if assignment.exchange is None:
            return assignment
        signs = [(d.numel(), int(d.count_nonzero())) for d in self.direction.values()]
        told = math.ceil(math.fsum(subset_bytes(n, k) + k / 8 for n, k in signs))
        return replace(assignment, index_bytes=(assignment.index_bytes or 0) + told)

    def exchange(self, t: int, submodel: Submodel) -> Exchange | None:
        exchange = super().exchange(t, submodel)
        return None if exchange is None else replace(exchange, directions=self.direction)

    def merge(self, t: int, results: Iterable[tuple[Assignment, Update]]) -> None:
        self._before = self.state
        super().merge(t, results)

    def adjust(self, t: int) -> None:
        now = {name: _sign(self.state[name] - self._before[name]) for name in self.direction}
        self.direction = {n: torch.where(now[n] == 0, old, now[n]) for n, old in self.direction.items()}
        super().adjust(t)

    def saved(self) -> State:
        return super().saved() | {f"direction/{name}": tensor for name, tensor in self.direction.items()}

    def restore(self, tensors: State) -> None:
        super().restore(tensors)
        self.direction = {name: tensors[f"direction/{name}"] for name in self.direction}

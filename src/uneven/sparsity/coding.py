"""What a set of places costs on the wire, at its entropy: an estimate until it is coded for real."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def subset_bytes(n: int, k: int) -> float:
    """log2 of the number of ways to choose k of n places, in bytes.

    >>> subset_bytes(256, 1), subset_bytes(10, 10)
    (1.0, 0.0)
    """
    nats = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return round(nats / math.log(2) / 8, 9) + 0.0


def changes_bytes(n: int, active: int, gone: int, come: int) -> float:
    """A layer's change: which of the ``active`` links of n places go, and which of the free places come."""
    return subset_bytes(active, gone) + subset_bytes(n - active, come)


def difference_bytes(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> float:
    """What tells the holder of a topology, a mask by tensor, of another: which links go and which come."""
    pairs = [(mask, new[name]) for name, mask in old.items()]
    return math.fsum(
        changes_bytes(a.numel(), int(a.sum()), int((a & ~b).sum()), int((b & ~a).sum())) for a, b in pairs
    )


class News:
    """The bytes that tell clients of a topology's changes, each of those that it has not been told of."""

    def __init__(self, clients: int) -> None:
        self._all = torch.zeros((), dtype=torch.float64)
        self._told = torch.zeros(clients, dtype=torch.float64)

    def add(self, size: float) -> None:
        """A change that takes so many bytes to tell."""
        self._all = self._all + size

    def untold(self, client: int) -> float:
        """What a client, by its place, is told now; all that there is."""
        size = float(self._all - self._told[client])
        self._told = self._told.index_fill(0, torch.tensor([client]), float(self._all))
        return size

    def saved(self) -> dict[str, Tensor]:
        return {"news": self._all, "told": self._told}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._all, self._told = tensors["news"], tensors["told"]


def reference_bytes(parameters: int, density: float) -> float:
    """What one client receives and sends in a round by the count of FedRTS (2025, arXiv 2501.19122): both ways the
    active values at 4 bytes, and a mask at one bit for each parameter.

    >>> reference_bytes(1000, 0.2)
    1850.0
    """
    return 2 * (4 * density * parameters + parameters / 8)

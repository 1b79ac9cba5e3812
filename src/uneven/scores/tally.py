"""Sums over examples, of their gradients and of the squares of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from uneven.submodels import State


@dataclass(frozen=True)
class Gradients:
    """What the gradients of single examples tell, by parameter name, in the parameters' shapes.

    ``mean``: g_j = (1/|D|) sum of d l / d x_j. ``square``: F_j = (1/|D|) sum of (d l / d x_j)^2; where l is the
    cross-entropy with the true label this is the diagonal empirical Fisher information. ``examples``: |D|.
    """

    mean: State
    square: State
    examples: int


class Tally:
    """The sums so far. One gradient of each example and parameter is to be added, however the examples come."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.mean = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.square = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    @torch.no_grad()
    def add(self, name: str, each: Tensor) -> None:
        """Add gradients of a parameter, ``(examples, *shape)``."""
        if len(each) == 1:  # one pass over memory for each sum
            self.mean[name].add_(each[0])
            self.square[name].addcmul_(each[0], each[0])
        else:
            self.mean[name].add_(each.sum(0))
            self.square[name].add_(each.square().sum(0))

    @torch.no_grad()
    def add_products(self, name: str, left: Tensor, right: Tensor) -> None:
        """Add gradients that are outer products, of ``left`` (examples, rows) and ``right`` (examples, columns).

        (l r^T)^2 = l^2 (r^2)^T, entry by entry: no example's own matrix is ever made.
        """
        self.mean[name].addmm_(left.mT, right)
        self.square[name].addmm_(left.square().mT, right.square())

    @torch.no_grad()
    def add_rows(self, name: str, rows: Tensor, each: Tensor) -> None:
        """Add gradients that are zero outside some rows: ``each`` (n, columns) belong to ``rows`` (n,).

        A row may come for many examples, but only once for each.
        """
        self.mean[name].index_add_(0, rows, each)
        self.square[name].index_add_(0, rows, each.square())

    def result(self, examples: int) -> Gradients:
        """The means over so many examples; nothing can be added afterwards."""
        for total in (*self.mean.values(), *self.square.values()):
            total.div_(examples)
        return Gradients(self.mean, self.square, examples)

"""What the server believes of links: is a link worth having?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from uneven.submodels import State

Shapes = Mapping[str, torch.Size]


class Posterior:
    """Beta(alpha_i, beta_i) for every place of every prunable tensor, both 1 at the start."""

    def __init__(self, shapes: Shapes, strength: float, forget: float = 1.0, sampled: bool = True) -> None:
        """``strength``: lambda, what one observation weighs. ``forget``: what is left of the old evidence,
        alpha - 1 and beta - 1, at each update. ``sampled``: whether scores are draws, or means."""
        self.tables = {kind: {n: torch.ones(shape) for n, shape in shapes.items()} for kind in ("alpha", "beta")}
        self._strength, self._forget, self._sampled = strength, forget, sampled

    def update(self, name: str, x: Tensor, seen: Tensor) -> None:
        """alpha += lambda X and beta += lambda (1 - X) where ``seen``; X in [0, 1], of the tensor's shape."""
        for kind, evidence in (("alpha", x), ("beta", 1 - x)):
            old = self.tables[kind][name]
            new = 1 + self._forget * (old - 1) + self._strength * evidence
            self.tables[kind][name] = torch.where(seen, new, old)

    def expected(self, name: str) -> Tensor:
        """alpha / (alpha + beta)."""
        alpha, beta = (self.tables[kind][name] for kind in ("alpha", "beta"))
        return alpha / (alpha + beta)

    def score(self, name: str, seed: int) -> Tensor:
        """One draw of Beta(alpha, beta) for every place (numpy's, which takes a seed of its own), or the mean."""
        if not self._sampled:
            return self.expected(name)
        alpha, beta = (self.tables[kind][name] for kind in ("alpha", "beta"))
        return torch.from_numpy(np.random.default_rng(seed).beta(alpha.numpy(), beta.numpy()))


class Average:
    """m_i <- mu m_i + (1 - mu) X_i, 1/2 at the start: what a posterior is compared with."""

    def __init__(self, shapes: Shapes, momentum: float) -> None:
        self.tables = {"average": {name: torch.full(shape, 0.5) for name, shape in shapes.items()}}
        self._momentum = momentum

    def update(self, name: str, x: Tensor, seen: Tensor) -> None:
        """A step towards X where ``seen``."""
        old = self.tables["average"][name]
        self.tables["average"][name] = torch.where(seen, self._momentum * old + (1 - self._momentum) * x, old)

    def expected(self, name: str) -> Tensor:
        """m."""
        return self.tables["average"][name]

    def score(self, name: str, seed: int) -> Tensor:
        """m, whatever the seed."""
        return self.expected(name)


def saved(belief: Posterior | Average) -> State:
    """Every tensor, for the checkpoint."""
    return {f"belief/{kind}/{n}": t for kind, table in belief.tables.items() for n, t in table.items()}


def restore(belief: Posterior | Average, tensors: State) -> None:
    """Take up what `saved` returned."""
    for kind, table in belief.tables.items():
        belief.tables[kind] = {name: tensors[f"belief/{kind}/{name}"] for name in table}

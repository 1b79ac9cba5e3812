"""The ratios that a model can be cut to, and what they cost as a share of the full model's cost."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Literal, Protocol

from uneven.submodels import Supernet
from uneven.submodels.cost import Unit, cost, widths
from uneven.training import TrainingOptions

Cost = Literal["width", "width2"] | Unit
NEAR = 1e-9
"""Ratios and costs nearer than this are the same."""


class Scale(Protocol):
    """Ratios in (0, 1], in steps; costs grow with them, and the full model costs 1."""

    @property
    def unit(self) -> Literal["width", "params"]:
        """What a ratio is a share of."""

    def steps(self, ratio: float) -> list[float]:
        """The steps next to a ratio, ascending: the one below and the one above; one alone where the ratio is a
        step, or below the first."""

    def cost(self, ratio: float) -> float:
        """What a ratio costs: at a step exactly, between two by linear interpolation."""


class Channels:
    """Widths r; a step is a width at which some group gains a channel. As `Cost`, ``width`` is r and ``width2`` is
    r^2, about the share of parameters; the others are counted. A group of fewer channels than others keeps the
    ceiling of its share, up to one channel more than r of it.
    """

    unit: Literal["width"] = "width"

    def __init__(self, supernet: Supernet, of: Cost, training: TrainingOptions) -> None:
        self._supernet, self._of, self._training = supernet, of, training
        self._widths = widths(supernet)
        self._counted: dict[float, int] = {}

    def steps(self, ratio: float) -> list[float]:
        k = bisect_left(self._widths, ratio - NEAR)
        alone = k == 0 or self._widths[k] <= ratio + NEAR
        return self._widths[k : k + 1] if alone else self._widths[k - 1 : k + 1]

    def cost(self, ratio: float) -> float:
        if self._of == "width":
            return ratio
        if self._of == "width2":
            return ratio**2
        steps = self.steps(ratio)
        low, high = self._share(steps[0]), self._share(steps[-1])
        part = (ratio - steps[0]) / (steps[-1] - steps[0]) if len(steps) > 1 else 0.0
        return low + part * (high - low)

    def _share(self, width: float) -> float:
        for w in (width, 1.0):
            if w not in self._counted:
                assert self._of != "width"
                assert self._of != "width2"
                self._counted[w] = cost(self._supernet.prefix(w), self._of, self._training)
        return self._counted[width] / self._counted[1.0]


class Parameters:
    """Shares of the model's d parameters; a step is one parameter."""

    unit: Literal["params"] = "params"

    def __init__(self, size: int) -> None:
        self._size = size

    def steps(self, ratio: float) -> list[float]:
        k = ratio * self._size
        near = NEAR * max(1.0, k)
        counts = sorted({max(1, math.floor(k + near)), max(1, math.ceil(k - near))})
        return [count / self._size for count in counts]

    def cost(self, ratio: float) -> float:
        return ratio

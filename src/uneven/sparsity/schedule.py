"""When the topology is adjusted, and by how many links."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Decay = Literal["cosine", "constant"]


@dataclass(frozen=True)
class Schedule:
    """Adjustments after every ``every`` rounds (Delta T) up to round ``end`` (T_end), of a share ``change``, a."""

    every: int
    end: int
    change: float = 0.4
    decay: Decay = "cosine"

    def due(self, t: int) -> bool:
        """Whether the topology is adjusted after round t."""
        return t % self.every == 0 and t <= self.end

    def swap(self, t: int, active: int, size: int) -> int:
        """How many of a layer's K = ``active`` links, of ``size`` places, are exchanged after round t.

        swap_l = min(int(share K), size - K), with share = (a / 2)(1 + cos(pi t / T_end)) or a; 0 after T_end.

        >>> Schedule(10, 100).swap(50, 100, 1000), Schedule(10, 100, decay="constant").swap(50, 100, 130)
        (20, 30)
        """
        if t > self.end:
            return 0
        share = self.change
        if self.decay == "cosine":
            share *= (1 + math.cos(math.pi * t / self.end)) / 2
        return min(int(round(share * active, 9)), size - active)

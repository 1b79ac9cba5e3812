"""What the policies share that go by rank: from the least number to the largest, widths grow evenly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from uneven.allocation.base import Columns, View
from uneven.allocation.budget import Budgeted, Targets

TIED = 1e-12
"""Numbers nearer than this share a rank: sums in another order differ by less."""


class Ranked(Budgeted):
    """t_n = r_min + (r_max - r_min) h_n, with h_n = (rank - 1) / (K - 1) by the client's number."""

    def numbers(self, view: View) -> tuple[Sequence[float], Columns]:
        """What clients are ranked by, the largest widest, and what a run reports of them. Must be defined."""
        raise TypeError(f"{type(self).__name__} must define numbers(view)")

    def arranged(self, h: Sequence[float], view: View) -> Sequence[float]:
        """The places h_n in [0, 1] of all clients, which a policy may change."""
        return h

    def targets(self, view: View) -> Targets:
        numbers, columns = self.numbers(view)
        low, high = self.options.r_min, self.options.r_max
        h = self.arranged(places(numbers), view)
        return Targets([low + (high - low) * own for own in h], columns)


def places(numbers: Sequence[float]) -> list[float]:
    """(rank - 1) / (K - 1) for each number, ties at their average rank; 0 for one number alone.

    >>> places([0.3, 0.3, 0.1])
    [0.75, 0.75, 0.0]
    """
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    starts = [0, *(k for k, (a, b) in enumerate(pairwise(order), 1) if numbers[b] - numbers[a] > TIED)]
    h = [0.0] * len(numbers)
    for start, end in pairwise([*starts, len(order)]):
        for n in order[start:end]:
            h[n] = (start + end - 1) / 2 / max(1, len(numbers) - 1)
    return h

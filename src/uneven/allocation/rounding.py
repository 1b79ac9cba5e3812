"""Choosing one option for each client under a limit: whole channels, or widths of most use."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

STATES = 2**14
"""Most partial choices that are kept: exact up to that many, beyond it as good as a grid of that fineness."""
NOISE = 1e-14
"""Sums nearer than this are the same but for rounding."""

Option = tuple[float, float]  # cost and value
Floats = NDArray[np.float64]


def choose(options: Sequence[Sequence[Option]], limit: float, most: int = STATES) -> list[int] | None:
    """For each client the option taken, such that values sum to the most and costs to at most ``limit``.

    The multiple-choice knapsack problem, by dynamic programming over partial choices that no other beats in both
    sums. Where more than ``most`` of them are left, one of each of that many equal ranges of costs is kept. Which
    of equally good choices is taken depends on the options alone, not on the clients' order, except among clients
    that have the same. None where even the cheapest options cost more.

    >>> choose([[(0.1, 0.1), (0.2, 0.2)], [(0.1, 0.1), (0.25, 0.25)]], 0.36)
    [0, 1]
    """
    order = sorted(range(len(options)), key=lambda n: list(options[n]))
    least = [min(cost for cost, _ in options[n]) for n in order]
    rest = [*accumulate(reversed(least), initial=0.0)][-2::-1]  # of the clients after each
    costs, values, steps = np.zeros(1), np.zeros(1), []
    for n, needed in zip(order, rest, strict=True):
        own = np.array(options[n], dtype=np.float64)
        costs = (costs[:, None] + own[:, 0]).ravel()
        values = (values[:, None] + own[:, 1]).ravel()
        kept = _unbeaten(costs, values, limit - needed, most)
        if not len(kept):
            return None
        costs, values = costs[kept], values[kept]
        steps.append((kept // len(own), kept % len(own)))
    taken, state = [0] * len(order), len(costs) - 1
    for n, (parents, choices) in zip(reversed(order), reversed(steps), strict=True):
        taken[n], state = int(choices[state]), int(parents[state])
    return taken


def _unbeaten(costs: Floats, values: Floats, limit: float, most: int) -> NDArray[np.int64]:
    """Positions within the limit that are worth more than every cheaper one, by cost; at most ``most``."""
    order = np.lexsort((-values, costs))
    order = order[costs[order] <= limit + NOISE]
    best = np.maximum.accumulate(np.concatenate([[-np.inf], values[order]]))[:-1]
    order = np.asarray(order[values[order] > best + NOISE])
    if len(order) <= most:
        return order
    spread = costs[order] - costs[order[0]]
    ranges = np.floor(spread / spread[-1] * (most - 1))
    last: NDArray[np.int64] = order[np.append(np.diff(ranges) > 0, True)]  # the dearest of each
    return last

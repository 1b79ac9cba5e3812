"""What a set of places costs on the wire, at its entropy: an estimate until it is coded for real."""

from __future__ import annotations

import math


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


def reference_bytes(parameters: int, density: float) -> float:
    """What one client receives and sends in a round by the count of FedRTS (2025, arXiv 2501.19122): both ways the
    active values at 4 bytes, and a mask at one bit for each parameter.

    >>> reference_bytes(1000, 0.2)
    1850.0
    """
    return 2 * (4 * density * parameters + parameters / 8)

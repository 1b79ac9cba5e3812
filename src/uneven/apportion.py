"""Whole numbers in proportion to shares."""

from collections.abc import Sequence
from fractions import Fraction


def apportion(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to shares that sum to ``total``, by largest remainder (ties: the first).

    >>> apportion([1, 1, 1], 10)
    [4, 3, 3]
    """
    whole = sum(map(Fraction, shares))
    exact = [Fraction(share) / whole * total for share in shares]  # equal remainders are equal
    sizes = [int(x) for x in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (sizes[i] - exact[i], i))
    for i in by_remainder[: total - sum(sizes)]:
        sizes[i] += 1
    return sizes

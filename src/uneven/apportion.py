"""Whole numbers in proportion to shares."""

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

import torch

T = TypeVar("T")


def apportion(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to shares that sum to ``total``, by largest remainder (ties: the first).

    >>> apportion([1, 1, 1], 10)
    [4, 3, 3]
    """
    if not total:
        return [0] * len(shares)  # also where the shares are 0
    whole = sum(map(Fraction, shares))
    exact = [Fraction(share) / whole * total for share in shares]  # equal remainders are equal
    sizes = [int(x) for x in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (sizes[i] - exact[i], i))
    for i in by_remainder[: total - sum(sizes)]:
        sizes[i] += 1
    return sizes


def dealt(things: Sequence[T], shares: Sequence[float], count: int, draws: torch.Generator) -> list[T]:
    """One of the things for each of so many, each thing as often as its share says, in a random order."""
    sizes = apportion(shares, count)
    cards = [thing for thing, size in zip(things, sizes, strict=True) for _ in range(size)]
    return [cards[i] for i in torch.randperm(count, generator=draws).tolist()]

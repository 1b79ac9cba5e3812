"""What a set of places costs, against counting."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uneven.sparsity.coding import changes_bytes, subset_bytes


@given(st.integers(0, 2000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_a_subset_costs_its_entropy(n_k: tuple[int, int]) -> None:
    n, k = n_k
    assert subset_bytes(n, k) == pytest.approx(math.log2(math.comb(n, k)) / 8, rel=1e-9, abs=1e-8)


@pytest.mark.parametrize("n", [10**5, 10**7])
def test_of_a_large_layer(n: int) -> None:
    """Stirling: n H(k / n) bits, less log2(2 pi n p (1 - p)) / 2."""
    p = 0.2
    entropy = -p * math.log2(p) - (1 - p) * math.log2(1 - p)
    assert subset_bytes(n, n // 5) * 8 == pytest.approx(
        n * entropy - math.log2(2 * math.pi * n * p * (1 - p)) / 2, abs=1e-4
    )


def test_a_change_is_what_goes_and_what_comes() -> None:
    """2 of 5 links, 3 of 15 free places."""
    bits = math.log2(math.comb(5, 2)) + math.log2(math.comb(15, 3))
    assert changes_bytes(20, 5, 2, 3) == pytest.approx(bits / 8)
    assert changes_bytes(20, 5, 0, 0) == 0

"""When the topology is adjusted, and by how many links."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uneven.sparsity import Schedule


def test_adjustments_are_due_every_so_many_rounds_up_to_the_end() -> None:
    assert [t for t in range(1, 30) if Schedule(4, 13).due(t)] == [4, 8, 12]
    assert [t for t in range(1, 30) if Schedule(4, 12).due(t)] == [4, 8, 12]
    assert [t for t in range(1, 30) if Schedule(4, 11).due(t)] == [4, 8]


@pytest.mark.parametrize(
    ("t", "swap"),
    [
        (2, 18),  # .2 (1 + cos 36 deg) 50 = .2 * 1.80902 * 50 = 18.09
        (4, 13),  # .2 * 1.30902 * 50 = 13.09
        (5, 10),
        (8, 1),  # .2 * .19098 * 50 = 1.91
        (10, 0),
        (11, 0),
        (20, 0),  # where the cosine is back at 1
    ],
)
def test_cosine(t: int, swap: int) -> None:
    assert Schedule(1, 10).swap(t, 50, 1000) == swap


def test_constant() -> None:
    assert [Schedule(1, 10, 0.3, "constant").swap(t, 50, 1000) for t in (1, 10, 11)] == [15, 15, 0]


def test_no_more_than_there_are_free_places() -> None:
    assert [Schedule(1, 10, 0.4, "constant").swap(1, 50, size) for size in (71, 69, 50)] == [20, 19, 0]


def test_a_whole_number_of_links_stays_whole() -> None:
    """.29 * 100 is 28.999999999999996."""
    assert Schedule(1, 10, 0.29, "constant").swap(1, 100, 1000) == 29


@given(st.integers(1, 200), st.integers(1, 100), st.floats(0.01, 1), st.integers(1, 5000), st.integers(0, 5000))
def test_by_formula(t: int, end: int, change: float, active: int, free: int) -> None:
    exact = change / 2 * (1 + math.cos(math.pi * t / end)) * active
    swap = Schedule(1, end, change).swap(t, active, active + free)
    assert 0 <= swap <= min(active, free)
    if t > end:
        assert swap == 0
    elif exact < free:
        assert swap == pytest.approx(exact - 0.5, abs=0.5 + 1e-6)
    else:
        assert swap >= free - 1e-6

"""One option for each client under a limit, against trying all."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.allocation.rounding import choose

thousandths = st.integers(0, 1000).map(lambda n: n / 1000)  # sums that are apart by more than rounding
option = st.tuples(thousandths, thousandths)
problems = st.lists(st.lists(option, min_size=1, max_size=4), min_size=1, max_size=5)


def total(options: Any, taken: Any) -> tuple[float, float]:
    chosen = [own[k] for own, k in zip(options, taken, strict=True)]
    return sum(cost for cost, _ in chosen), sum(value for _, value in chosen)


@settings(max_examples=150)
@given(problems, st.integers(0, 3000).map(lambda n: n / 1000 + 0.0005))
def test_the_best_of_all_choices(options: Any, limit: float) -> None:
    every = [total(options, taken) for taken in itertools.product(*(range(len(own)) for own in options))]
    within = [value for cost, value in every if cost <= limit]
    taken = choose(options, limit)
    if taken is None:
        assert not within
        return
    cost, value = total(options, taken)
    assert cost <= limit + 1e-12
    assert value == pytest.approx(max(within), abs=1e-12)


def test_the_cheaper_of_equals() -> None:
    assert choose([[(0.5, 1.0), (0.2, 1.0), (0.1, 0.9)]], 1.0) == [1]


@settings(max_examples=50)
@given(st.lists(st.floats(0.01, 1), min_size=8, max_size=14), st.floats(0.3, 0.7), st.permutations(range(14)))
def test_few_states_are_as_good_as_their_grid(steps: list[float], share: float, order: list[int]) -> None:
    """Sums of steps up or not at all; with 64 states each client costs at most a 63rd of the range."""
    options, limit = [[(0.0, 0.0), (step, step)] for step in steps], share * sum(steps)
    exact, rough = (choose(options, limit, most) for most in (2**14, 64))
    best, found = total(options, exact)[1], total(options, rough)[1]
    assert found <= best + 1e-12 <= limit + 1e-9
    assert found >= best - len(steps) * sum(steps) / 63
    order = [n for n in order if n < len(steps)]
    moved = choose([options[n] for n in order], limit, 64)
    assert moved is not None
    assert sorted(zip((steps[n] for n in order), moved, strict=True)) == sorted(
        zip(steps, rough or [], strict=True)
    )


def test_nothing_fits() -> None:
    assert choose([[(0.6, 1.0)], [(0.6, 1.0), (0.5, 0.0)]], 1.0) is None
    assert choose([[(0.6, 1.0)], [(0.6, 1.0), (0.4, 0.0)]], 1.0) == [0, 1]

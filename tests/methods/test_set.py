"""The weakest links go, random ones come."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.methods.sparse import made, places
from uneven.errors import MethodError
from uneven.methods.set import SET

VALUES = torch.tensor([[6.0, -5.0, 0.5, 3.0, -0.25], [1.0, 0.0, 0.0, 0.0, 0.0]])


def adjusted(seed: int, t: int = 2) -> SET:
    """A third of 6 links, 2, are exchanged after rounds 2 and 4; of the smallest |x|: places 4 and 2."""
    method: SET = made("set", seed=seed, end=4)
    method.state = {"weight": VALUES}
    method.adjust(t)
    return method


def test_the_smallest_go_and_as_many_come_at_0() -> None:
    method = adjusted(0)
    assert places(method) > {0, 1, 3, 5}
    assert len(places(method)) == 6
    assert not places(method) & {2, 4}
    assert method.state["weight"].tolist() == [[6, -5, 0, 3, 0], [1, 0, 0, 0, 0]]


def test_growth_is_uniform() -> None:
    """2 of 4 free places in each of 200 runs: each 100 times, give or take 7."""
    come = [place for seed in range(200) for place in places(adjusted(seed)) - {0, 1, 3, 5}]
    assert sorted(set(come)) == [6, 7, 8, 9]
    assert all(70 < come.count(place) < 130 for place in range(6, 10))


def test_growth_is_drawn_anew_in_each_round() -> None:
    assert places(adjusted(0)) == places(adjusted(0))
    assert any(places(adjusted(seed, 2)) != places(adjusted(seed, 4)) for seed in range(5))


def test_only_where_it_is_due() -> None:
    for t in (1, 3, 5, 6):
        assert places(adjusted(0, t)) == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"every": 100, "end": 1000}, r"end = 1000: .*'constant' .* after round 10, before .*, after round 100"),
        ({"every": 100, "end": 1000, "decay": "cosine"}, r"end = 1000: .* after round 10, before .* round 100;"),
        ({"change": 0.1}, r"method.change = 0.1: of 6 links, the most that a layer has, it exchanges none"),
    ],
)
def test_what_would_never_exchange_a_link(options: dict[str, Any], says: str) -> None:
    """No round is due among the ten that there are, or .1 of 6 links is none."""
    with pytest.raises(MethodError, match=says):
        made("set", **options)
    assert made("set", change=1 / 6).swaps(2) == {"weight": 1}
    dense = made("set", density=1.0, every=100, end=None)  # nothing to exchange: its own options are taken back
    assert made("set", density=1.0, every=100, end=dense.options.end).options == dense.options
    assert made("set", every=10, end=1000).swaps(10) == {"weight": 2}

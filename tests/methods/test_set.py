"""The weakest links go, random ones come."""

from __future__ import annotations

import torch
from torch import nn

from uneven.methods import ClientCard, Context
from uneven.methods.set import SET
from uneven.submodels import Supernet

NET = Supernet(nn.Linear(5, 2, bias=False), torch.zeros(5))
LINKS = torch.tensor([[True, True, True, True, True], [True, False, False, False, False]])
VALUES = torch.tensor([[6.0, -5.0, 0.5, 3.0, -0.25], [1.0, 0.0, 0.0, 0.0, 0.0]])


def adjusted(seed: int, t: int = 2) -> SET:
    """A third of 6 links, 2, are exchanged after rounds 2 and 4; of the smallest |x|: places 4 and 2."""
    cards = [ClientCard(0, 1, torch.ones(2), 1.0, 1.0, 10)]
    options = SET.Options(density=0.6, every=2, end=4, change=1 / 3, decay="constant")
    method = SET(Context(NET, cards, 9, seed), options)
    method.change_to({"weight": LINKS})
    method.state = {"weight": VALUES}
    method.adjust(t)
    return method


def places(method: SET) -> set[int]:
    return set(method.mask["weight"].flatten().nonzero().flatten().tolist())


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

"""Which links of a layer go and come."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from uneven.sparsity import drop_and_grow, strongest

SEEDS = st.integers(0, 2**32)


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_strongest_among_some() -> None:
    """The 9 is not among them."""
    scores = torch.tensor([[3.0, 9.0, 1.0], [2.0, -5.0, 4.0]])
    among = torch.tensor([[True, False, True], [True, True, True]])
    assert strongest(scores, among, 3, drawn(0)).tolist() == [[True, False, False], [True, False, True]]


@st.composite
def layers(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Few different scores, so that many are equal; some places; how many of them."""
    n = draw(st.integers(1, 30))
    scores = torch.tensor(draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n))).float()
    among = torch.tensor(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    return scores, among, draw(st.integers(0, int(among.sum())))


@given(layers(), SEEDS)
def test_exactly_k_and_none_stronger_is_left(layer: tuple[Tensor, Tensor, int], seed: int) -> None:
    scores, among, k = layer
    chosen = strongest(scores, among, k, drawn(seed))
    assert int(chosen.sum()) == k
    assert not (chosen & ~among).any()
    left = among & ~chosen
    if chosen.any() and left.any():
        assert scores[chosen].min() >= scores[left].max()


def test_more_than_there_are() -> None:
    with pytest.raises(ValueError, match=r"k = 3: must be in 0\.\.2"):
        strongest(torch.zeros(3), torch.tensor([True, False, True]), 3, drawn(0))


def test_ties_go_by_the_draw_and_not_by_position() -> None:
    """Two of ten equal scores, 2000 times: each place 400 times, with a standard deviation of 18."""
    draws, everywhere = drawn(0), torch.ones(10, dtype=torch.bool)
    counts = sum(strongest(torch.zeros(10), everywhere, 2, draws).int() for _ in range(2000))
    assert isinstance(counts, Tensor)
    assert int(counts.sum()) == 4000
    assert 325 < int(counts.min()) <= int(counts.max()) < 475


def test_equal_weights_are_dropped_and_free_places_grown_by_the_draw() -> None:
    """3 of 6 links of weight 1 go, 3 of 6 free places come: each place 1000 times in 2000, give or take 22."""
    draws, mask = drawn(0), torch.tensor([True] * 6 + [False] * 6)
    counts = torch.zeros(12)
    for _ in range(2000):
        counts += drop_and_grow(mask, 3, torch.ones(12), torch.ones(12), draws)
    assert counts.sum() == 12000
    assert 900 < counts.min() <= counts.max() < 1100


def test_drop_and_grow_by_hand() -> None:
    """Of links 1, 7, 3 the first goes, though no place would be a better one to grow; of the others .6 comes."""
    mask = torch.tensor([True, True, True, False, False])
    keep, grow = torch.tensor([1.0, 7.0, 3.0, 9.0, 9.0]), torch.tensor([0.9, 0.1, 0.2, 0.5, 0.6])
    assert drop_and_grow(mask, 1, keep, grow, drawn(0)).tolist() == [False, True, True, False, True]
    assert mask.tolist() == [True, True, True, False, False]


@given(layers(), SEEDS, st.data())
def test_so_many_go_and_as_many_come(layer: tuple[Tensor, Tensor, int], seed: int, data: st.DataObject) -> None:
    scores, mask, _ = layer
    swap = data.draw(st.integers(0, min(int(mask.sum()), int((~mask).sum()))))
    new = drop_and_grow(mask, swap, scores, -scores, drawn(seed))
    gone, come, stay = mask & ~new, new & ~mask, mask & new
    assert int(gone.sum()) == int(come.sum()) == swap
    if swap:
        if stay.any():
            assert scores[gone].max() <= scores[stay].min()
        if (~mask & ~new).any():
            assert (-scores[come]).min() >= (-scores[~mask & ~new]).max()

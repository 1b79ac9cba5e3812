"""Exact top-k against a sort of everything."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from uneven.submodels.topk import top_k

SHAPES = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4)


def by_sorting(scores: list[Tensor], k: int, ties: list[Tensor]) -> list[Tensor]:
    """Every entry in the order of score, then |tie|, then position; the first k of them."""
    flat = [float(x) for score in scores for x in score.flatten()]
    sizes = [abs(float(x)) for tie in ties for x in tie.flatten()]
    order = sorted(range(len(flat)), key=lambda i: (-flat[i], -sizes[i], i))
    chosen = torch.zeros(len(flat), dtype=torch.bool)
    chosen[order[:k]] = True
    pieces = chosen.split([score.numel() for score in scores])
    return [piece.view(score.shape) for piece, score in zip(pieces, scores, strict=True)]


@settings(max_examples=150)
@given(shapes=SHAPES, levels=st.integers(1, 5), share=st.floats(0, 1), seed=st.integers(0, 10**6))
def test_top_k_is_what_a_sort_gives(shapes: list[tuple[int, ...]], levels: int, share: float, seed: int) -> None:
    """Few levels of scores and of ties, of both signs, so that both orders decide, and then the position."""
    draws = torch.Generator().manual_seed(seed)

    def some() -> list[Tensor]:
        return [torch.randint(-levels, levels + 1, shape, generator=draws) / 2 for shape in shapes]

    scores, ties = some(), some()
    k = round(share * sum(score.numel() for score in scores))
    found, expected = top_k(scores, k, ties), by_sorting(scores, k, ties)
    assert [mask.dtype for mask in found] == [torch.bool] * len(shapes)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert sum(int(mask.sum()) for mask in found) == k


def test_distinct_scores_of_many_entries() -> None:
    scores = [torch.randn(300, 70), torch.randn(70)]
    for k in (0, 1, 1000, 21069, 21070):
        found, expected = top_k(scores, k, scores), by_sorting(scores, k, scores)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_infinite_scores_have_a_place() -> None:
    scores = [torch.tensor([-torch.inf, 1.0, torch.inf, torch.inf])]
    ties = [torch.tensor([0.0, 0.0, 1.0, -2.0])]
    for k, expected in enumerate([[], [3], [2, 3], [1, 2, 3], [0, 1, 2, 3]]):
        assert top_k(scores, k, ties)[0].nonzero().flatten().tolist() == expected


def test_axes_in_another_order_count_in_their_own() -> None:
    """Transposed views: entries stand where they are read, not where they are stored."""
    view = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).T
    assert top_k([view], 2, [torch.zeros(2, 3)])[0].tolist() == [[False, False, True]] * 2
    assert top_k([torch.zeros(2, 3)], 2, [view])[0].tolist() == [[False, False, True]] * 2


@pytest.mark.parametrize("k", [-1, 4])
def test_k_out_of_range(k: int) -> None:
    with pytest.raises(ValueError, match=rf"k = {k}: must be in 0\.\.3"):
        top_k([torch.zeros(3)], k, [torch.zeros(3)])

"""Channels by importance: sums worked out by hand, and budgets against every choice."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.submodels.helpers import randomised
from uneven.errors import MethodError
from uneven.submodels import Supernet
from uneven.submodels.ranking import best_channels, best_channels_overall, channel_scores


@cache
def two_layers() -> Supernet:
    """Linear(2, 3), ReLU, Linear(3, 2), ReLU, Linear(2, 3): a group of 3 channels and one of 2."""
    layers = (nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 3))
    return Supernet(randomised(nn.Sequential(*layers)), torch.zeros(2))


def scores(**changes: list[object]) -> dict[str, Tensor]:
    """Zero for every parameter of `two_layers` but those given (dots as underscores)."""
    zero = {name: torch.zeros_like(two_layers().initial[name]) for name in two_layers().parameters}
    return zero | {name.replace("_", "."): torch.tensor(value) for name, value in changes.items()}


HAND = {
    "0_weight": [[1.0, 2.0], [0.0, 0.0], [0.0, 4.0]],
    "0_bias": [0.5, 0.0, 0.0],
    "2_weight": [[0.0, 1.0, 0.0], [0.0, 8.0, 0.25]],
    "4_weight": [[3.0, 0.0], [0.0, 0.5], [0.0, 0.5]],
}


def test_a_channel_sums_over_all_tensors_of_its_group() -> None:
    """Rows of a layer, its bias, and the columns of the next: 1 + 2 + .5, 1 + 8, 4 + .25; 1 + 3, 8.25 + 1."""
    first, second = channel_scores(two_layers(), scores(**HAND))
    assert first.tolist() == [3.5, 9.0, 4.25]
    assert second.tolist() == [4.0, 9.25]


def test_parameters_not_named_count_for_nothing() -> None:
    first, second = channel_scores(two_layers(), {"0.bias": torch.tensor([1.0, 2.0, 3.0])})
    assert (first.tolist(), second.tolist()) == ([1.0, 2.0, 3.0], [0.0, 0.0])


def test_best_channels_keeps_the_same_share_of_every_group() -> None:
    """Width 1/2 of 3 and 2 channels: 2 and 1. Width 2/3: 2 and 2."""
    half = best_channels(two_layers(), scores(**HAND), 0.5)
    assert [half.keep[i].tolist() for i in (0, 1)] == [[1, 2], [1]]
    assert [best_channels(two_layers(), scores(**HAND), 2 / 3).keep[i].tolist() for i in (0, 1)] == [
        [1, 2],
        [0, 1],
    ]


def test_equal_scores_go_by_the_lower_channel() -> None:
    assert [best_channels(two_layers(), scores(), 0.5).keep[i].tolist() for i in (0, 1)] == [[0, 1], [0]]
    assert best_channels_overall(two_layers(), scores(), 15).keep[0].tolist() == [0, 1]


def test_overall_goes_by_worth_for_a_parameter() -> None:
    """A channel of the first group is in 2 + 1 + 2 entries, one of the second in 3 + 1 + 3: worths .7, 1.8, .85
    and .57, 1.32. In order: first 1, second 1, first 2, first 0, second 0.

    Sizes of (first, second) channels kept, 3a + (a + 1) b + 3b + 3: (1, 1) 11, (2, 1) 15, (3, 1) 19, (3, 2) 26.
    """
    kept = {
        size: [best_channels_overall(two_layers(), scores(**HAND), size).keep[i].tolist() for i in (0, 1)]
        for size in (11, 14, 15, 18, 19, 25, 26)
    }
    assert kept[11] == kept[14] == [[1], [1]]
    assert kept[15] == kept[18] == [[1, 2], [1]]
    assert kept[19] == kept[25] == [[0, 1, 2], [1]]
    assert kept[26] == [[0, 1, 2], [0, 1]]


def test_every_group_has_its_best_channel() -> None:
    """The second group is worth less than all of the first, of which there is room for two at 15."""
    own = {"0_weight": [[1.0, 2.0], [5.0, 0.0], [0.0, 4.0]], "4_weight": [[0.25, 0.5]] * 3}
    part = best_channels_overall(two_layers(), scores(**own), 15)
    assert [part.keep[i].tolist() for i in (0, 1)] == [[1, 2], [1]]


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), size=st.integers(11, 26))
def test_overall_fits_its_budget_and_no_next_channel_would(seed: int, size: int) -> None:
    net, draws = two_layers(), torch.Generator().manual_seed(seed)
    given_scores = {name: torch.rand(net.initial[name].shape, generator=draws) for name in net.parameters}
    part = best_channels_overall(net, given_scores, size)
    worth = [total / n for total, n in zip(channel_scores(net, given_scores), (5, 7), strict=True)]
    assert part.size <= size
    left = [(float(worth[i][c]), i, c) for i, c in _channels(net) if c not in part.keep[i].tolist()]
    kept = [(float(worth[i][c]), i, c) for i, c in _channels(net) if c in part.keep[i].tolist()]
    if left:
        best_left = max(left)
        # All that is kept is worth more, but for the one that every group has.
        assert all(own > best_left[0] or len(part.keep[i]) == 1 for own, i, _ in kept)
        more = {i: part.keep[i] for i in (0, 1)}
        more[best_left[1]] = torch.tensor([*more[best_left[1]].tolist(), best_left[2]])
        assert net.submodel(more).size > size


def _channels(net: Supernet) -> list[tuple[int, int]]:
    return [(group.index, channel) for group in net.groups for channel in range(group.size)]


def test_a_recurrent_weight_counts_on_both_of_its_axes() -> None:
    """An RNN's hidden state: rows and columns of weight_hh, each channel once as output and once as input."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.RNN(2, 3, batch_first=True), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    net = Supernet(Recurrent(), torch.zeros(4, 2))
    (hidden,) = channel_scores(net, {"rnn.weight_hh_l0": torch.arange(9.0).view(3, 3)})
    rows, columns = [3.0, 12.0, 21.0], [9.0, 12.0, 15.0]
    assert hidden.tolist() == [a + b for a, b in zip(rows, columns, strict=True)]


def test_a_score_that_is_not_a_number_is_an_error() -> None:
    bad = scores(**HAND) | {"2.weight": torch.full((2, 3), torch.nan)}
    for choose in (
        lambda: best_channels(two_layers(), bad, 0.5),
        lambda: best_channels_overall(two_layers(), bad, 15),
    ):
        with pytest.raises(MethodError, match=r"scores of 2\.weight are not numbers"):
            choose()


def test_a_group_of_which_nothing_is_scored_is_worth_nothing() -> None:
    """Only the last layer's score is known; the first group has no entry in it, and keeps one channel."""
    known = {"4.weight": torch.tensor([[1.0, 2.0]] * 3)}
    part = best_channels_overall(two_layers(), known, 16)
    assert [part.keep[i].tolist() for i in (0, 1)] == [[0], [0, 1]]


@pytest.mark.parametrize(("a", "b"), list(product((1, 2, 3), (1, 2))))
def test_sizes_by_hand(a: int, b: int) -> None:
    """The formula that the tests above use."""
    keep = {0: torch.arange(a), 1: torch.arange(b)}
    assert two_layers().submodel(keep).size == 3 * a + (a + 1) * b + 3 * b + 3

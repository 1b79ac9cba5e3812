"""What is counted of a client's training split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from uneven.allocation.histograms import histograms
from uneven.data import ClientData, DataOptions, Examples, Info, from_tensors, load
from uneven.errors import SpecError

IMAGES = Info(input_shape=(2, 1, 2), num_classes=3, labels=("a", "b", "c"))


def client(x: Tensor, y: list[int], name: str = "0", tokens: Tensor | None = None) -> ClientData:
    """One whose test split would change every count."""
    own = Examples(x, torch.tensor(y))
    return ClientData(0, name, own, Examples(torch.full_like(x, 255), own.y * 0 + 2), {}, tokens)


def test_labels() -> None:
    found = histograms([client(torch.zeros(4, 2, 1, 2), [0, 1, 1, 1])], IMAGES, None)
    assert (found.kind, found.per_example) == ("labels", 1)
    assert found.counts[0].tolist() == [1, 3, 0]


def test_pixels_in_sixteen_bins_a_channel() -> None:
    x = torch.tensor([[[[0, 15]], [[16, 255]]], [[[17, 31]], [[255, 240]]]], dtype=torch.uint8)
    found = histograms([client(x, [0, 1])], IMAGES, "inputs")
    assert found.per_example == 4  # two channels of two pixels
    by_hand = torch.zeros(2, 16, dtype=torch.int64)
    by_hand[0, 0], by_hand[0, 1], by_hand[1, 1], by_hand[1, 15] = 2, 2, 1, 3
    assert found.counts[0].tolist() == by_hand.flatten().tolist()


@pytest.mark.parametrize(("task", "longest"), [("classify", 5), ("next_token", 6)])
def test_tokens(task: Any, longest: int) -> None:
    """Filling, here the first id, is no token; for the next token, a text has one token more than the input."""
    info = Info((5,), 4, ("pad", "x", "y", "z"), vocab_size=4, pad_id=0, marks=(0,), task=task)
    found = histograms(
        [client(torch.zeros(1, 5, dtype=torch.int64), [0], tokens=torch.tensor([0, 2, 0, 3]))], info, None
    )
    assert (found.kind, found.per_example) == ("tokens", longest)
    assert found.counts[0].tolist() == [2, 0, 3]


def test_targets_are_labels_of_the_next_token() -> None:
    """A target that is none does not count; one example adds as many as it has positions."""
    own = Examples(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([[1, 2, -100], [1, -100, -100]]))
    info = Info((3,), 4, ("pad", "x", "y", "z"), vocab_size=4, pad_id=0, task="next_token")
    found = histograms([ClientData(0, "0", own, own)], info, "labels")
    assert (found.counts[0].tolist(), found.per_example) == ([0, 2, 1, 0], 3)


@pytest.mark.parametrize(
    ("kind", "x", "vocabulary", "says"),
    [
        ("tokens", torch.zeros(2, 2, 1, 2), None, r"counts = 'tokens': the inputs are not texts; use 'labels'"),
        ("inputs", torch.zeros(2, 2, 1, 2), None, r"counts = 'inputs': .* the inputs are numbers, not images"),
        (
            "inputs",
            torch.zeros(2, 4, dtype=torch.int64),
            9,
            r"counts = 'inputs': .* the inputs are texts; use 'tokens'",
        ),
    ],
)
def test_kinds_that_the_data_do_not_have(kind: Any, x: Tensor, vocabulary: int | None, says: str) -> None:
    info = Info(tuple(x.shape[1:]), 3, ("a", "b", "c"), vocab_size=vocabulary)
    with pytest.raises(SpecError, match=says):
        histograms([client(x, [0, 1])], info, kind)


def test_a_client_with_no_tokens_is_named() -> None:
    info = Info((5,), 4, ("pad", "x", "y", "z"), vocab_size=4, pad_id=0)
    x = torch.zeros(1, 5, dtype=torch.int64)
    both = [client(x, [0], "full", torch.tensor([0, 1, 0, 0])), client(x, [0], "Bob", torch.tensor([0, 0, 0, 0]))]
    with pytest.raises(SpecError, match="client Bob has no tokens in its training split") as told:
        histograms(both, info, "tokens")
    assert "full" not in str(told.value)


def test_training_splits_are_counted_and_no_others() -> None:
    y = torch.arange(60) % 3
    source = from_tensors(torch.zeros(60, 4), y, test=(torch.zeros(9, 4), torch.arange(9) % 3))
    federation = load(DataOptions(source=source), 4)
    found = histograms(federation.clients, federation.info, None)
    assert [int(own.sum()) for own in found.counts] == [len(c.train) for c in federation.clients]

"""Gradients of single texts: that of -log p of all that is to be predicted in one, against a loop by hand."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.scores.test_gradients import agree, by_hand
from tests.submodels.helpers import randomised
from uneven.data import Examples, Info
from uneven.data.federation import NOTHING
from uneven.models import build
from uneven.scores import batch_squares, gradients
from uneven.submodels import Network, Supernet

WORDS, LENGTH = 9, 5
TEXTS = Info((LENGTH,), WORDS, tuple("_?abcdefg"), WORDS, 0, "words", "next_token")


class Local(nn.Module):
    """Says what follows a word by the word alone: layers in the usual places, at many positions of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.head = nn.Embedding(WORDS, 4), nn.Linear(4, 5), nn.Linear(5, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(self.words(x))))  # type: ignore[no-any-return]


class Tied(nn.Module):
    """Logits by the words' own rows: a parameter that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 4), nn.Linear(4, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(x)))  # type: ignore[no-any-return]


@cache
def supernet(name: str) -> Supernet:
    options = {"embedding": 4, "hidden": 5, "layers": 2}
    models = {"lstm": lambda: build("slimmable_lstm", TEXTS, options, seed=0), "local": Local, "tied": Tied}
    return Supernet(randomised(models[name]()), torch.zeros(LENGTH, dtype=torch.int64))


def loaded(name: str) -> Network:
    return supernet(name).prefix(1.0).network().load(supernet(name).initial)


def texts() -> Examples:
    """Five texts; unknown words among them, one text without anything to predict."""
    ids = torch.randint(1, WORDS, (5, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    ids[torch.arange(LENGTH + 1) > torch.tensor([5, 3, 0, 2, 4])[:, None]] = 0
    return Examples(ids[:, :-1], torch.where(ids[:, 1:] > 1, ids[:, 1:], NOTHING))


def minus_log_p(logits: Tensor, y: Tensor) -> Tensor:
    """Of one text, written out."""
    log_p = logits[0] - logits[0].exp().sum(1, keepdim=True).log()
    terms = [-log_p[i, k] for i, k in enumerate(y[0].tolist()) if k != NOTHING]
    return torch.stack([*terms, 0 * logits.sum()]).sum()


WAYS = {"lstm": ("auto", "loop"), "local": ("auto", "layers", "vmap", "loop"), "tied": ("auto", "vmap", "loop")}


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, ways in WAYS.items() for way in ways])
def test_every_way_is_the_loop_by_hand(name: str, way: Any) -> None:
    network, data = loaded(name), texts()
    assert (data.y == NOTHING).all(1).any()
    found = gradients(network, data, method=way)
    agree(found, by_hand(network, data, minus_log_p))
    assert all(square.any() for square in found.square.values())


def test_batches_of_texts() -> None:
    """The square of the mean over a batch's texts."""
    network, data = loaded("lstm"), texts()
    squares, seen = batch_squares(network, data, 5, 3)
    batches = [by_hand(network, data[i:j], minus_log_p).mean for i, j in ((0, 3), (3, 5))]
    assert seen == 5
    for name, square in squares.items():
        expected = torch.stack([batch[name].square() for batch in batches]).mean(0)
        torch.testing.assert_close(square.double(), expected, rtol=1e-4, atol=1e-8)

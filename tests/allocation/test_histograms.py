"""What is counted of a client's training split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.allocation.world import allocate, view
from uneven.allocation.histograms import histograms
from uneven.data import ClientData, DataOptions, Examples, Federation, Info, from_tensors, from_texts, load
from uneven.errors import SpecError
from uneven.experiment import Experiment
from uneven.spec import parse

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


def test_marks_of_texts_are_no_tokens() -> None:
    """V is what is left of 6 without filling, start and end."""
    info = Info((5,), 2, ("a", "b"), vocab_size=6, pad_id=0, marks=(0, 2, 3))
    x = torch.zeros(1, 5, dtype=torch.int64)
    found = histograms([client(x, [0], tokens=torch.tensor([9, 4, 7, 7, 0, 5]))], info, None)
    assert found.counts[0].tolist() == [4, 0, 5]
    marked = client(x, [0], "Bob", tokens=torch.tensor([9, 0, 7, 7, 0, 0]))
    with pytest.raises(SpecError, match="client Bob has no tokens"):
        histograms([marked], info, None)


def of_texts(empty: str) -> Federation:
    """Clients "ann" and "cy" have texts, all those of "bob" are like ``empty``."""
    texts = ["apple bread"] * 8 + [empty] * 6 + ["cheese dates"] * 8
    names = ["ann"] * 8 + ["bob"] * 6 + ["cy"] * 8
    source = from_texts(texts, torch.arange(22) % 2, test=(["apple"], torch.zeros(1).long()), client=names)
    return load(DataOptions(source=source, partition="natural", tokenizer="bpe", max_length=6))


def test_tokens_of_texts_that_were_read() -> None:
    """All but the three marks of 'bpe': two words of each text, one of each of bob's."""
    federation = of_texts("apple")
    found = histograms(federation.clients, federation.info, None)
    assert federation.info.vocab_size is not None
    assert {len(own) for own in found.counts} == {federation.info.vocab_size - 3}
    words = [len(own.train) * each for own, each in zip(federation.clients, (2, 1, 2), strict=True)]
    assert [int(own.sum()) for own in found.counts] == words


@pytest.mark.parametrize("empty", ["", "  "])
def test_a_client_whose_texts_are_all_empty_is_named(empty: str) -> None:
    """The others have texts; through the policy."""
    federation = of_texts(empty)
    assert [client.name for client in federation.clients] == ["ann", "bob", "cy"]
    seen = replace(view([8, 6, 8]), histograms=lambda kind: histograms(federation.clients, federation.info, kind))
    with pytest.raises(SpecError, match=r"^allocation\.counts = 'tokens': client bob has no tokens") as told:
        allocate("hasa", seen)
    assert len(told.value.problems) == 1


def test_data_of_one_label_have_no_labels_to_score() -> None:
    """Through a policy; their inputs can be counted."""
    x = torch.arange(24 * 16).reshape(24, 1, 4, 4).remainder(256).to(torch.uint8)
    test = (x[:4], torch.zeros(4).long())
    source = from_tensors(x, torch.zeros(24).long(), test=test, client=torch.arange(24) // 8)
    federation = load(DataOptions(source=source, partition="natural"))
    assert federation.info.num_classes == 1
    with pytest.raises(SpecError, match=r"^allocation\.counts = 'labels': the data have but one value") as told:
        histograms(federation.clients, federation.info, None)
    assert len(told.value.problems) == 1
    found = histograms(federation.clients, federation.info, "inputs")
    assert [int(own.sum()) for own in found.counts] == [len(c.train) * 16 for c in federation.clients]
    spec: dict[str, Any] = {
        "data": {"source": source, "partition": "natural"},
        "model": {"name": "mlp", "hidden": [10]},
        "cohort": 2,
    }
    with pytest.raises(SpecError, match=r"^allocation\.counts = 'labels': the data have but one value"):
        Experiment(parse(spec | {"allocation": "hasa"}))
    by_inputs = Experiment(parse(spec | {"allocation": {"name": "hasa", "counts": "inputs"}}))
    assert by_inputs.allocation.exact == pytest.approx(0.5)


def test_training_splits_are_counted_and_no_others() -> None:
    y = torch.arange(60) % 3
    source = from_tensors(torch.zeros(60, 4), y, test=(torch.zeros(9, 4), torch.arange(9) % 3))
    federation = load(DataOptions(source=source), 4)
    found = histograms(federation.clients, federation.info, None)
    assert [int(own.sum()) for own in found.counts] == [len(c.train) for c in federation.clients]

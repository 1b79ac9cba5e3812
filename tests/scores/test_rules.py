"""Scores worked out by hand, and what is refused."""

from __future__ import annotations

import pytest
import torch

from tests.scores.models import examples, loaded, supernet
from uneven.errors import MethodError
from uneven.scores import NEEDS_GRADIENTS, SCORES, Gradients, gradients, score
from uneven.submodels.ranking import best_channels

X = {"a": torch.tensor([[-2.0, 0.5]]), "b": torch.tensor([0.0])}
FOUND = Gradients(
    mean={"a": torch.tensor([[0.5, -1.0]]), "b": torch.tensor([3.0])},
    square={"a": torch.tensor([[4.0, 0.25]]), "b": torch.tensor([9.0])},
    examples=2,
)
BY_HAND = {
    "magnitude": ([[2.0, 0.5]], [0.0]),
    "fisher": ([[4.0, 0.25]], [9.0]),
    "weighted": ([[64.0, 1 / 64]], [0.0]),  # 16 * 4, 1/16 * 1/4
    "gradient_norm": ([[0.5, 1.0]], [3.0]),
    "taylor": ([[1.0, 0.25]], [0.0]),  # (-1)^2, (-1/2)^2
    "obd": ([[8.0, 1 / 32]], [0.0]),  # 4 * 4 / 2, 1/4 * 1/4 / 2
}


def test_every_score_is_known_by_hand() -> None:
    assert {*BY_HAND, "random"} == {*SCORES}


@pytest.mark.parametrize("rule", BY_HAND)
def test_scores_by_hand(rule: str) -> None:
    found = score(rule, X, FOUND)
    assert (found["a"].tolist(), found["b"].tolist()) == BY_HAND[rule]


def test_random_scores_are_uniform_draws_in_the_order_of_the_tensors() -> None:
    draws = torch.Generator().manual_seed(3)
    expected = [torch.rand(1, 2, generator=draws), torch.rand(1, generator=draws)]
    found = score("random", X, None, torch.Generator().manual_seed(3))
    assert [found["a"].tolist(), found["b"].tolist()] == [tensor.tolist() for tensor in expected]


@pytest.mark.parametrize("rule", sorted(NEEDS_GRADIENTS))
def test_a_score_reads_what_it_needs_and_nothing_else(rule: str) -> None:
    with pytest.raises(MethodError, match=f"score = '{rule}': needs gradients"):
        score(rule, X)
    mean = rule in ("gradient_norm", "taylor")
    half = Gradients(FOUND.mean if mean else {}, {} if mean else FOUND.square, 2)
    assert score(rule, X, half)["a"].tolist() == BY_HAND[rule][0]
    with pytest.raises(MethodError, match="no gradient is known of c"):
        score(rule, X | {"c": torch.zeros(1)}, FOUND)


def test_what_needs_no_gradients_does_without() -> None:
    assert {"magnitude", "random"} == {*SCORES} - NEEDS_GRADIENTS
    assert score("magnitude", X, Gradients({}, {}, 0))["b"].tolist() == [0.0]
    with pytest.raises(MethodError, match="score = 'random': needs a generator"):
        score("random", X)


def test_squares_of_small_numbers_keep_their_order() -> None:
    """F^2 x^2 = 1e-52 and 4e-52: both are zero in single precision."""
    small = Gradients({}, {"a": torch.tensor([[1e-20, 2e-20]])}, 1)
    low, high = score("weighted", {"a": torch.full((1, 2), 1e-6)}, small)["a"][0].tolist()
    assert high == pytest.approx(4 * low, rel=1e-5)
    assert low > 0


@pytest.mark.parametrize("rule", SCORES)
def test_every_score_chooses_channels(rule: str) -> None:
    """Of 5 inner units: what is summed are a unit's row, bias and column, single precision or double."""
    net, data = supernet("rows"), examples("rows")
    weights = {name: net.initial[name] for name in net.parameters}
    scores = score(rule, weights, gradients(loaded("rows"), data), torch.Generator().manual_seed(0))
    rows = scores["0.weight"].sum(1) + scores["0.bias"] + scores["2.weight"].sum(0)
    assert best_channels(net, scores, 0.4).keep[0].tolist() == sorted(rows.topk(2).indices.tolist())


NAN = torch.tensor([[float("nan"), 1.0]])


@pytest.mark.parametrize(
    ("x", "square", "cause"),
    [
        (NAN, torch.ones(1, 2), "that tensor itself is not finite"),
        (torch.ones(1, 2), NAN, "its gradients are not finite"),
    ],
)
def test_a_score_that_is_not_a_number_names_tensor_and_cause(
    x: torch.Tensor, square: torch.Tensor, cause: str
) -> None:
    with pytest.raises(MethodError) as error:
        score("weighted", {"a": x}, Gradients({}, {"a": square}, 1))
    message = str(error.value)
    assert message.startswith("score = 'weighted': 1 of 2 scores of a are not numbers (NaN), since " + cause)


def test_a_weight_that_is_not_a_number_has_no_size() -> None:
    with pytest.raises(MethodError, match="scores of a are not numbers"):
        score("magnitude", {"a": NAN})


def test_an_unknown_score_is_named_with_the_nearest() -> None:
    with pytest.raises(MethodError, match=r"score = 'fischer': did you mean 'fisher'\?"):
        score("fischer", X, FOUND)

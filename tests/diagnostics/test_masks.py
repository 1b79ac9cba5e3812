"""Masks and what they lose, against values worked out by hand."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from uneven.data import Examples
from uneven.diagnostics.comparison import mean
from uneven.diagnostics.masks import (
    dominant,
    fisher_facts,
    fisher_of_first,
    flat,
    held,
    mask,
    masking_errors,
    overlap,
)
from uneven.errors import MethodError
from uneven.scores import gradients
from uneven.submodels import State, Supernet

W = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
B = torch.tensor([0.25, -0.75])


@cache
def linear() -> Supernet:
    """A linear model of two inputs and two classes: 4 weights that can be dropped, 2 biases that cannot."""
    return Supernet(nn.Linear(2, 2), torch.zeros(2))


def at(weight: Tensor, bias: Tensor = B) -> State:
    return {"weight": weight, "bias": bias}


def examples(n: int) -> Examples:
    draws = torch.Generator().manual_seed(n)
    return Examples(torch.randn(n, 2, generator=draws), torch.randint(2, (n,), generator=draws))


def by_formula(state: State, data: Examples) -> State:
    """The gradient of the mean cross-entropy of softmax(Wx + b): (p - y) x^T and p - y, on average."""
    error = torch.softmax(data.x @ state["weight"].T + state["bias"], 1) - nn.functional.one_hot(data.y, 2)
    return {"weight": error.T @ data.x / len(data), "bias": error.mean(0)}


@pytest.mark.parametrize("n", [5, 600])  # 600 examples are three batches
def test_masking_error_by_formula(n: int) -> None:
    net, data = linear(), examples(n)
    inside = torch.tensor([[True, False], [False, True]])
    here, there = by_formula(at(W), data), by_formula(at(W * inside), data)
    weight, bias = (here[k] - there[k] for k in ("weight", "bias"))
    kept = weight[0, 0] ** 2 + weight[1, 1] ** 2 + bias.square().sum()
    whole = weight.square().sum() + bias.square().sum()
    everything = torch.ones_like(B, dtype=torch.bool)
    network = net.prefix(1.0).network()
    found = masking_errors(network, at(W), data, {"mine": {"weight": inside, "bias": everything}})
    assert found["error"]["mine"] == pytest.approx(kept.item(), rel=1e-4)
    assert found["full_error"]["mine"] == pytest.approx(whole.item(), rel=1e-4)
    assert whole > kept > 0


def test_holding_everything_loses_nothing() -> None:
    net = linear()
    found = masking_errors(net.prefix(1.0).network(), at(W), examples(5), {"all": held(net, net.prefix(1.0))})
    assert found == {"error": {"all": 0.0}, "full_error": {"all": 0.0}}


def test_what_a_channel_submodel_holds() -> None:
    net = Supernet(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)), torch.zeros(2))
    found = held(net, net.submodel({0: torch.tensor([0, 2])}))
    rows = torch.tensor([True, False, True])
    assert torch.equal(found["0.weight"], rows[:, None].expand(3, 2))
    assert torch.equal(found["0.bias"], rows)
    assert torch.equal(found["2.weight"], rows.expand(2, 3))
    assert found["2.bias"].all()


FISHER = torch.tensor([[0.1, 0.02], [0.3, 0.01]])  # |F x|: 0.1, 0.04, 0.15, 0.03


def facts(fisher: Tensor, k: int) -> dict[str, object]:
    net, x = linear(), at(W)
    full = {"weight": fisher, "bias": torch.ones(2)}
    masks = {rule: mask(rule, net, x, full, 2 + k) for rule in ("raw", "weighted", "magnitude")}
    return fisher_facts(net, x, full, masks, {3: masks["magnitude"]})


def test_surrogate_and_overlaps_by_hand() -> None:
    """k = 2. By F and by |F x| the first column is held, by |x| the second."""
    found = facts(FISHER, 2)
    column = [0.1**2 + 0.15**2, 0.04**2 + 0.03**2]
    assert found["epsilon"] == pytest.approx({"raw": column[1], "weighted": column[1], "magnitude": column[0]})
    assert found["overlap"] == {"raw_weighted": 1.0, "raw_magnitude": 0.0, "weighted_magnitude": 0.0}
    assert found["dominant"] is True  # 0.1 >= 0.04
    assert found["examples"] == {"3": 0.0}


def test_where_raw_misses_the_least() -> None:
    """k = 1: |F x| is 0.1, 0.08, 0.1, 0.15, so F holds the third weight, and F^2 x^2 the last."""
    found = facts(torch.tensor([[0.1, 0.04], [0.2, 0.05]]), 1)
    assert found["dominant"] is False
    assert found["overlap"]["raw_weighted"] == 0.0  # type: ignore[index]
    squares = [0.1**2, 0.08**2, 0.1**2, 0.15**2]
    missed = {"raw": sum(squares) - squares[2], "weighted": sum(squares[:3]), "magnitude": sum(squares[:3])}
    assert found["epsilon"] == pytest.approx(missed)


def test_nothing_and_everything() -> None:
    """Masks of no weight share nothing that could be counted, and miss every term; full ones miss none."""
    none, everything = facts(FISHER, 0), facts(FISHER, 4)
    assert none["overlap"] == dict.fromkeys(("raw_weighted", "raw_magnitude", "weighted_magnitude"))
    assert none["epsilon"]["raw"] == pytest.approx((FISHER * W).square().sum().item())  # type: ignore[index]
    assert everything["epsilon"] == {"raw": 0.0, "weighted": 0.0, "magnitude": 0.0}
    assert everything["overlap"]["raw_magnitude"] == 1.0  # type: ignore[index]
    assert (none["dominant"], everything["dominant"]) == (True, True)


def test_small_numbers_have_a_square() -> None:
    """F = 1e-30, and the weight missed is 0.5: F^2 x^2 is no number of single precision."""
    found = facts(torch.full((2, 2), 1e-30), 3)
    assert found["epsilon"]["raw"] == pytest.approx(0.25e-60, rel=1e-5, abs=0)  # type: ignore[index]


@pytest.mark.parametrize(
    ("terms", "chosen", "holds"),
    [
        ([3.0, 2.0, 1.0], [1, 1, 0], True),
        ([3.0, 2.0, 2.0], [1, 1, 0], True),  # equal is enough
        ([3.0, 1.0, 2.0], [1, 1, 0], False),
        ([3.0, 1.0, 2.0], [1, 0, 0], True),
    ],
)
def test_dominance(terms: list[float], chosen: list[int], holds: bool) -> None:
    assert dominant(torch.tensor(terms), torch.tensor(chosen).bool()) is holds


def test_overlap_is_a_share_of_the_first() -> None:
    a, b = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]]).bool()
    assert (overlap(a, b), overlap(b, a)) == (2 / 3, 2 / 4)


SMALL = st.lists(st.floats(0.0625, 4, width=32), min_size=4, max_size=4, unique=True)


@given(SMALL, st.integers(0, 4))
def test_rules_that_agree(numbers: list[float], k: int) -> None:
    """The paper: with constant F, weighted and magnitude are one (and raw, by its ties); with constant |x|, raw
    and weighted are."""
    net = linear()
    varied, flat_ones = torch.tensor(numbers).view(2, 2), torch.full((2, 2), 0.5)

    def chosen(rule: str, x: Tensor, fisher: Tensor) -> list[bool]:
        full = {"weight": fisher, "bias": torch.ones(2)}
        return flat(net, mask(rule, net, at(x), full, 2 + k)).tolist()

    constant = [chosen(rule, varied, flat_ones) for rule in ("magnitude", "weighted", "raw")]
    assert constant[0] == constant[1] == constant[2]
    assert chosen("raw", flat_ones, varied) == chosen("weighted", flat_ones, varied)
    assert sum(constant[0]) == k


@given(SMALL, SMALL, st.integers(0, 4))
def test_weighted_is_the_least_and_so_is_raw_where_it_dominates(x: list[float], f: list[float], k: int) -> None:
    net, state, fisher = linear(), at(torch.tensor(x).view(2, 2)), torch.tensor(f).view(2, 2)
    full = {"weight": fisher, "bias": torch.ones(2)}
    masks = {rule: mask(rule, net, state, full, 2 + k) for rule in ("raw", "weighted", "magnitude")}
    found = fisher_facts(net, state, full, masks, {})
    epsilon = found["epsilon"]
    assert epsilon["weighted"] <= min(epsilon.values()) * (1 + 1e-6)
    if found["dominant"]:
        assert epsilon["raw"] == pytest.approx(epsilon["weighted"])


def test_random_masks_are_drawn() -> None:
    net, x = Supernet(nn.Linear(20, 2), torch.zeros(20)), {"weight": torch.ones(2, 20), "bias": torch.ones(2)}
    one, again, other = (mask("random", net, x, {}, 12, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert int(one["weight"].sum()) == 10
    assert torch.equal(one["weight"], again["weight"])
    assert not torch.equal(one["weight"], other["weight"])


def test_a_size_that_is_too_small() -> None:
    with pytest.raises(MethodError, match="a capacity of 1 of 6 parameters"):
        mask("magnitude", linear(), at(W), {}, 1)


@pytest.mark.parametrize("n", [31, 32, 100])
def test_fisher_of_the_first_examples(n: int) -> None:
    """From 10, 32 and all of the examples: as if each had been asked alone, and once where that is all."""
    net, data = linear(), examples(n)
    network = net.prefix(1.0).network().load(at(W)).eval()
    found = dict(fisher_of_first(network, data, (10, 32)))
    assert list(found) == [10, *([32] if n > 32 else []), n]
    for count, fisher in found.items():
        alone = gradients(network, data, limit=count).square
        for name, values in alone.items():
            torch.testing.assert_close(fisher[name], values, rtol=1e-5, atol=1e-8)


def test_fisher_by_formula() -> None:
    """((p - y) x^T)^2 of each example, on average."""
    net, data = linear(), examples(7)
    ((_, fisher),) = fisher_of_first(net.prefix(1.0).network().load(at(W)).eval(), data, ())
    each = [by_formula(at(W), data[i : i + 1])["weight"].square() for i in range(7)]
    torch.testing.assert_close(fisher["weight"], torch.stack(each).mean(0))


def test_means_leave_out_what_is_missing() -> None:
    rows = [{"a": 1.0, "b": {"c": True}}, {"a": None, "b": {"c": False, "d": 5.0}}]
    assert mean(rows) == {"a": 1.0, "b": {"c": 0.5, "d": 5.0}}
    assert mean([{"a": None}]) == {"a": None}
    assert mean([]) is None

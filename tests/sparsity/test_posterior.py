"""What the server believes of links, against values worked out by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uneven.sparsity.posterior import Average, Posterior, restore, saved

SHAPES = {"w": torch.Size((2, 2)), "v": torch.Size((3,))}
X = torch.tensor([[1.0, 0.0], [0.25, 0.5]])
SEEN = torch.tensor([[True, True], [True, False]])


def tables(belief: Posterior | Average, name: str = "w") -> list[list[list[float]]]:
    return [table[name].tolist() for table in belief.tables.values()]


def test_starts_even() -> None:
    assert tables(Posterior(SHAPES, 10.0)) == [[[1, 1], [1, 1]]] * 2
    assert tables(Average(SHAPES, 0.9)) == [[[0.5, 0.5], [0.5, 0.5]]]


def test_update_by_hand() -> None:
    """lambda = 10: alpha + 10 X, beta + 10 (1 - X), where it was seen; twice."""
    belief = Posterior(SHAPES, 10.0)
    belief.update("w", X, SEEN)
    assert tables(belief) == [[[11, 1], [3.5, 1]], [[1, 11], [8.5, 1]]]
    belief.update("w", X, SEEN)
    assert tables(belief) == [[[21, 1], [6, 1]], [[1, 21], [16, 1]]]
    assert tables(belief, "v") == [[1, 1, 1], [1, 1, 1]]


def test_forgetting_by_hand() -> None:
    """Half of alpha - 1 = 10 and of beta - 1 = 0 is left, then 10 X comes. What is not seen is not forgotten."""
    belief = Posterior(SHAPES, 10.0, forget=0.5)
    belief.update("w", X, torch.ones_like(SEEN))
    assert tables(belief) == [[[11, 1], [3.5, 6]], [[1, 11], [8.5, 6]]]
    belief.update("w", 1 - X, SEEN)
    assert tables(belief) == [[[6, 11], [9.75, 6]], [[11, 6], [7.25, 6]]]


def test_an_update_replaces_the_table() -> None:
    """A checkpoint that was taken before does not change with it."""
    belief = Posterior(SHAPES, 1.0)
    before = saved(belief)
    belief.update("w", X, SEEN)
    assert before["belief/alpha/w"].tolist() == [[1, 1], [1, 1]]


def test_average_by_hand() -> None:
    """.5 -> .9 * .5 + .1 X."""
    belief = Average(SHAPES, 0.9)
    belief.update("w", X, SEEN)
    torch.testing.assert_close(belief.score("w", 0), torch.tensor([[0.55, 0.45], [0.475, 0.5]]))
    belief.update("w", X, SEEN)
    torch.testing.assert_close(belief.score("w", 1), torch.tensor([[0.595, 0.405], [0.4525, 0.5]]))


def test_draws_are_of_the_beta_distribution() -> None:
    """Mean a / (a + b) and variance mean (1 - mean) / (a + b + 1), over 20,000 draws each, within four standard
    errors of the mean, and 10 % of the variance."""
    n, pairs = 20_000, [(1.0, 1.0), (11.0, 1.0), (3.5, 8.5), (40.0, 61.0)]
    belief = Posterior({"w": torch.Size((len(pairs), n))}, 1.0)
    for kind, column in zip(("alpha", "beta"), zip(*pairs, strict=True), strict=True):
        belief.tables[kind]["w"] = torch.tensor(column)[:, None].expand(-1, n).contiguous()
    xi = belief.score("w", 7)
    for (a, b), row in zip(pairs, xi, strict=True):
        mean = a / (a + b)
        variance = mean * (1 - mean) / (a + b + 1)
        assert row.mean().item() == pytest.approx(mean, abs=4 * (variance / n) ** 0.5)
        assert row.var().item() == pytest.approx(variance, rel=0.1)
        assert 0 <= row.min() <= row.max() <= 1


def test_draws_are_seeded() -> None:
    belief = Posterior({"w": torch.Size((5, 7))}, 1.0)
    assert torch.equal(belief.score("w", 3), belief.score("w", 3))
    assert not torch.equal(belief.score("w", 3), belief.score("w", 4))
    assert belief.score("w", 3).unique().numel() == 35


def test_the_mean_is_no_draw() -> None:
    belief = Posterior(SHAPES, 10.0, sampled=False)
    belief.update("w", X, SEEN)
    expected = torch.tensor([[11 / 12, 1 / 12], [3.5 / 12, 0.5]])
    for seed in (0, 1):
        torch.testing.assert_close(belief.score("w", seed), expected)


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), max_size=8), st.floats(0.1, 20), st.floats(0.1, 1)
)
def test_evidence_is_conserved(outcomes: list[list[float]], strength: float, forget: float) -> None:
    """alpha + beta - 2 grows by lambda at each update, whatever X was, and fades alike; both stay at least 1."""
    belief = Posterior(SHAPES, strength, forget)
    evidence = 0.0
    for x in outcomes:
        belief.update("v", torch.tensor(x), torch.ones(3, dtype=torch.bool))
        evidence = forget * evidence + strength
    alpha, beta = belief.tables["alpha"]["v"], belief.tables["beta"]["v"]
    torch.testing.assert_close(alpha + beta, torch.full((3,), 2 + evidence), rtol=1e-4, atol=1e-4)
    assert min(alpha.min(), beta.min()) >= 1 - 1e-5


@pytest.mark.parametrize("make", [lambda: Posterior(SHAPES, 2.0), lambda: Average(SHAPES, 0.5)])
def test_taken_up_again(make: type[Posterior] | type[Average]) -> None:
    one, other = make(), make()  # type: ignore[call-arg]
    one.update("w", X, SEEN)
    restore(other, saved(one))
    assert saved(one).keys() == saved(other).keys()
    assert all(torch.equal(a, b) for a, b in zip(saved(one).values(), saved(other).values(), strict=True))
    one.update("v", torch.ones(3), torch.ones(3, dtype=torch.bool))
    assert tables(other, "v") == tables(make(), "v")  # type: ignore[call-arg]

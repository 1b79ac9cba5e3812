"""Scores of divergence against formulas written out here, and who sees what."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from tests.allocation.world import allocate, view
from uneven.allocation.divergence import Report, Scorer, Scoring, js, scored, smoothed
from uneven.allocation.ranked import places
from uneven.errors import SpecError
from uneven.spec import parse

PLAIN = Scoring(alpha=1.0, draws=20, noise=0.0, seed=0)


def scores(counts: Any, scoring: Scoring = PLAIN) -> list[Report]:
    return scored([Scorer(n, own, scoring) for n, own in enumerate(counts)])


def test_scores_by_hand() -> None:
    """Counts 9, 1 with alpha 1 are 10/12, 2/12; the pool 15, 15 is a half each; m = 2/3, 1/3."""
    by_hand = 0.5 * (10 / 12 * math.log(10 / 12 / (2 / 3)) + 2 / 12 * math.log(2 / 12 / (1 / 3)))
    by_hand += 0.5 * (0.5 * math.log(0.5 / (2 / 3)) + 0.5 * math.log(0.5 / (1 / 3)))
    found = [report.score for report in scores([[9, 1], [1, 9], [5, 5]])]
    assert found == pytest.approx([by_hand, by_hand, 0.0], abs=1e-15)


distributions = st.lists(st.integers(0, 50), min_size=5, max_size=5).map(lambda c: np.array(c) + 0.0)


@given(distributions, distributions)
def test_the_divergence_is_that_of_scipy(p: Any, q: Any) -> None:
    p, q = smoothed(p, 0.5), smoothed(q, 0.5)
    assert js(p, q) == pytest.approx(jensenshannon(p, q) ** 2, abs=1e-12)
    assert -1e-15 <= js(p, q) <= math.log(2)


def test_what_has_nothing_in_common() -> None:
    assert js(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == pytest.approx(math.log(2))
    assert js(np.array([1.0, 0.0]), np.array([1.0, 0.0])) == 0


@pytest.mark.parametrize("alpha", [0.0, 0.1, 3.0])
def test_smoothing(alpha: float) -> None:
    found = smoothed(np.array([3.0, 0.0, 1.0]), alpha)
    assert found == pytest.approx(
        [(3 + alpha) / (4 + 3 * alpha), alpha / (4 + 3 * alpha), (1 + alpha) / (4 + 3 * alpha)]
    )


# The null.


def test_the_null_is_the_score_of_as_many_counts_of_the_pool() -> None:
    """Its mean over many draws is the expectation: here of two cells, so of a binomial, exactly."""
    counts = [[9, 1], [1, 9], [25, 15]]
    found = scores(counts, replace(PLAIN, draws=20_000))
    pool = np.array([35.0, 25.0])
    for own, report in zip(counts, found, strict=True):
        n = sum(own)
        ways = [math.comb(n, k) * (35 / 60) ** k * (25 / 60) ** (n - k) for k in range(n + 1)]
        each = [js(smoothed(np.array([k, n - k]), 1.0), smoothed(pool, 1.0)) for k in range(n + 1)]
        assert report.null == pytest.approx(np.dot(ways, each), rel=0.03)


def test_clients_of_one_size_have_one_null_and_small_ones_a_larger() -> None:
    found = scores([[30, 10, 20], [20, 20, 20], [3, 2, 1]])
    assert found[0].null == found[1].null < found[2].null


def test_debiased_scores_of_samples_of_the_pool_do_not_go_by_size() -> None:
    """The plain score ranks by size; less its null it does not."""
    draws = np.random.default_rng(1)
    sizes = [20 * 2**k for k in range(6)]
    shares = draws.dirichlet(np.ones(30))
    plain, rest = np.zeros(6), np.zeros(6)
    for _ in range(20):
        found = scores([draws.multinomial(n, shares) for n in sizes])
        plain += [report.score for report in found]
        rest += [report.score - report.null for report in found]
    assert list(plain) == sorted(plain, reverse=True)
    assert plain[0] > 10 * abs(rest).max()


# Privacy.


def test_noise_is_drawn_once_and_all_that_is_sent_comes_from_the_noised_counts() -> None:
    scoring = replace(PLAIN, noise=2.0)
    counts = [[30, 0, 10], [5, 5, 50]]
    clients = [Scorer(n, own, scoring) for n, own in enumerate(counts)]
    sent = [client.contribution() for client in clients]
    assert all((client.contribution() == own).all() for client, own in zip(clients, sent, strict=True))
    assert all((own >= 0).all() and (own != np.array(c)).any() for own, c in zip(sent, counts, strict=True))
    pooled = np.sum(sent, axis=0)
    for client, own in zip(clients, sent, strict=True):
        by_hand = js(smoothed(own, 1.0), smoothed(pooled, 1.0))
        assert client.report(pooled).score == pytest.approx(float(by_hand))
    kept = [value for client in clients for value in vars(client).values() if isinstance(value, np.ndarray)]
    assert len(kept) == 2, "the exact counts are forgotten"
    assert not any((value == np.array(own)).all() for value, own in zip(kept, counts, strict=True))


def test_the_noise_is_laplaces_of_its_scale() -> None:
    """Of zero counts, half is clipped; of large ones, the mean distance is the scale b, the variance 2 b^2."""
    large = np.full(20_000, 1000)
    noise = Scorer(0, large, replace(PLAIN, noise=3.0)).contribution() - large
    assert abs(noise).mean() == pytest.approx(3.0, rel=0.03)
    assert noise.var() == pytest.approx(18.0, rel=0.06)
    assert noise.mean() == pytest.approx(0.0, abs=0.1)
    zero = Scorer(0, np.zeros(20_000), replace(PLAIN, noise=3.0)).contribution()
    assert (zero == 0).mean() == pytest.approx(0.5, abs=0.02)


def test_the_null_is_noised_like_the_scores() -> None:
    """Clients drawn from the pool: with noise their scores grow, and so does the null."""
    counts = [[40, 40, 20], [44, 36, 20], [36, 44, 20], [40, 38, 22]]
    exact, noised = scores(counts), [scores(counts, replace(PLAIN, noise=10.0, seed=seed)) for seed in range(40)]
    score = np.mean([[report.score for report in found] for found in noised])
    null = np.mean([[report.null for report in found] for found in noised])
    assert null > 3 * np.mean([report.null for report in exact])
    assert score == pytest.approx(null, rel=0.35)


def test_the_scale_is_the_counts_of_an_example_over_epsilon() -> None:
    """Through a policy: of examples that add up to three counts each."""
    counts = [[9, 1], [1, 9], [5, 5]]
    given = allocate("hasa", view([10, 10, 10], counts, seed=4, per_example=3), noise=0.5)
    by_hand = scores(counts, Scoring(alpha=1.0, draws=20, noise=6.0, seed=4))
    assert given.columns["score"] == [report.score for report in by_hand]


def test_noise_that_leaves_nothing_is_told() -> None:
    """Of a client with two counts of 1 under noise of 1000, both fall below 0 by one seed of four."""
    drowned = []
    for seed in range(12):
        noised = Scorer(0, [1, 1], replace(PLAIN, noise=1000.0, seed=seed)).contribution()
        one = view([2], [[1, 1]], seed=seed)
        drowned.append(not noised.any())
        if not drowned[-1]:
            assert allocate("hasa", one, noise=1e-3).ratios == pytest.approx([0.5])
            continue
        with pytest.raises(SpecError, match=r"^allocation\.noise: the noise leaves nothing of all counts") as told:
            allocate("hasa", one, noise=1e-3)
        assert len(told.value.problems) == 1
    assert 0 < sum(drowned) < 12


@pytest.mark.parametrize("policy", ["hasa", "inverse", "random"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"noise": 9e-7}, r"allocation\.noise = 9e-07: input should be greater than or equal to 0\.000001"),
        ({"noise": 0}, r"allocation\.noise = 0: input should be greater than or equal to 0\.000001"),
        ({"noise": math.inf}, r"allocation\.noise = inf: input should be a finite number"),
        ({"noise": 1.0, "alpha": 0}, r"allocation: alpha = 0: noise may leave a client no counts"),
    ],
)
def test_noise_that_cannot_be(policy: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says) as told:
        parse({"allocation": {"name": policy, **options}})
    assert len(told.value.problems) == 1
    parse({"allocation": {"name": policy, "noise": 1e-6}})
    parse({"allocation": {"name": policy, "alpha": 0}})


# Ranks.


@settings(max_examples=80)
@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4]), min_size=1, max_size=9))
def test_places_share_average_ranks(numbers: list[float]) -> None:
    k = len(numbers)
    for number, h in zip(numbers, places(numbers), strict=True):
        less, equal = sum(x < number for x in numbers), numbers.count(number)
        rank = less + (equal + 1) / 2
        assert h == pytest.approx((rank - 1) / (k - 1) if k > 1 else 0)


@settings(max_examples=100)
@given(st.permutations([7, 3, 3, 0, 12]), st.permutations(range(5)))
def test_ties_do_not_hang_on_the_order_of_sums(counts: list[int], order: list[int]) -> None:
    """A pool that is the same for every word: clients with the same counts of other words score the same."""
    rows = [[counts[(k + shift) % 5] for k in range(5)] for shift in range(5)]
    found = scores([rows[n] for n in order])
    assert set(places([report.score for report in found])) == {0.5}

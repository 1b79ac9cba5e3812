"""Who gets more than whom, under each policy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import uneven
from tests.allocation.world import allocate, view
from uneven.allocation import POLICIES, BudgetOptions, Policy, policy_class
from uneven.errors import SpecError
from uneven.spec import parse

COUNTS = [[9, 1, 0], [1, 9, 2], [5, 5, 5], [0, 0, 8]]
SIZES = [10, 12, 15, 8]


def ratios(policy: str, counts: Any = COUNTS, sizes: Any = SIZES, seed: int = 0, **options: Any) -> list[float]:
    given = allocate(policy, view(sizes, counts, seed=seed), **options).ratios
    assert given is not None
    return list(given)


def ranks(numbers: list[float]) -> list[int]:
    return [sorted(numbers).index(number) for number in numbers]


def test_uniform() -> None:
    assert ratios("uniform", budget=0.3) == pytest.approx([0.3] * 4)


def test_the_further_from_the_pool_the_wider() -> None:
    """The pool is 15, 15, 15: the last client is furthest, the third nearest."""
    scores = allocate("hasa", view(SIZES, COUNTS)).columns["score"]
    assert ranks(list(scores))[2:] == [0, 3]
    assert ranks(ratios("hasa")) == ranks(list(scores))


def test_inverse_turns_the_order_around() -> None:
    assert ranks(ratios("inverse")) == [3 - rank for rank in ranks(ratios("hasa"))]


def test_size_gives_the_smallest_most() -> None:
    """Places 2/3, 1/3, 0, 1; by hand .6, .4, .2, .8 before the budget."""
    found = ratios("size", sizes=[11, 12, 15, 8], r_min=0.2, r_max=0.8, budget=0.4)
    a = 0.4 / ((11 * 0.6 + 12 * 0.4 + 15 * 0.2 + 8 * 0.8) / 46)
    first = [a * r for r in (0.6, 0.4, 0.2, 0.8)]
    assert first[2] < 0.2, "the third is clipped, so the others get a little less"
    b = (0.4 * 46 - 15 * 0.2) / (11 * 0.6 + 12 * 0.4 + 8 * 0.8)
    assert found == pytest.approx([b * 0.6, b * 0.4, 0.2, b * 0.8])


def test_random_deals_hasas_ratios_by_the_seed() -> None:
    """With equal sizes they are the same ratios; with other seeds they go to others; scores are reported."""
    sizes = [10] * 4
    plain = ratios("hasa", sizes=sizes)
    dealt = [ratios("random", sizes=sizes, seed=seed) for seed in range(8)]
    assert all(sorted(own) == sorted(plain) for own in dealt)
    assert len({tuple(own) for own in dealt}) > 3
    assert ratios("random", sizes=sizes, seed=3) == dealt[3]
    assert set(allocate("random", view(sizes, COUNTS)).columns) == {"score", "null"}


def test_ties_share_a_rank() -> None:
    found = ratios("hasa", [[9, 1], [1, 9], [5, 5], [9, 1]], [10] * 4)
    assert found[0] == found[3]
    found = ratios("size", [[1, 1]] * 3, [10, 10, 30])
    assert found[0] == found[1] > found[2]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 40), min_size=3, max_size=3), st.integers(1, 99)), min_size=2, max_size=5
    ),
    st.permutations(range(5)),
    st.sampled_from(["uniform", "hasa", "inverse", "size"]),
    st.sampled_from(["js", "debiased"]),
)
def test_the_order_of_clients_changes_nothing(clients: Any, order: list[int], policy: str, score: Any) -> None:
    order = [n for n in order if n < len(clients)]
    options = {"score": score} if policy in ("hasa", "inverse") else {}
    moved = [clients[n] for n in order]
    first, second = (
        allocate(policy, view([n for _, n in own], [counts for counts, _ in own]), **options)
        for own in (clients, moved)
    )
    assert first.ratios is not None
    assert second.ratios == [first.ratios[n] for n in order]
    assert sorted(second.capacities) == sorted(first.capacities)
    for name, column in first.columns.items():
        assert second.columns[name] == [column[n] for n in order]


def test_debiased_scores_rank_by_what_is_not_chance() -> None:
    """The small client is like the pool, the large one is not; the plain score takes the small for the odd one."""
    counts = [[4, 1, 2, 3, 0, 2, 1, 3], [190, 110, 150, 150, 150, 150, 150, 150], [1500] * 8]
    sizes = [10] * 3
    plain, debiased = (allocate("hasa", view(sizes, counts), score=score) for score in ("js", "debiased"))
    assert plain.columns == debiased.columns
    score, null = plain.columns["score"], plain.columns["null"]
    assert score[0] > score[1] > score[2]
    assert score[1] - null[1] > max(score[0] - null[0], score[2] - null[2])
    assert plain.ratios is not None
    assert debiased.ratios is not None
    assert plain.ratios[0] > plain.ratios[1]
    assert debiased.ratios[1] > debiased.ratios[0]


def test_what_was_counted_is_written_down() -> None:
    assert allocate("hasa", view(SIZES, COUNTS)).options.counts == "labels"  # type: ignore[attr-defined]


def test_every_option_says_what_it_is() -> None:
    for policy in POLICIES.values():
        assert policy.__doc__
        assert all(field.description for field in policy.Options.model_fields.values())


def test_names_of_policies() -> None:
    assert policy_class("uneven.allocation.hasa:Hasa") is POLICIES["hasa"]
    with pytest.raises(SpecError, match=r"allocation\.name"):
        policy_class("uneven.allocation:nothing")


def test_a_policy_that_does_not_say_how() -> None:
    with pytest.raises(TypeError, match=r"Policy must define allocate\(view\)"):
        Policy(BudgetOptions()).allocate(view([1]))


# Specs.


def test_another_policy_keeps_the_options_that_both_have() -> None:
    base = {"allocation": {"name": "hasa", "budget": 0.3, "alpha": 2.0, "cost": "macs"}}
    assert parse(base, [{"allocation": "inverse"}]).allocation.options == {
        "budget": 0.3,
        "alpha": 2.0,
        "cost": "macs",
    }
    assert parse(base, [{"allocation": "size"}]).allocation.options == {"budget": 0.3, "cost": "macs"}
    assert parse(base, [{"allocation": {"name": "size", "budget": 0.4}}]).allocation.options["budget"] == 0.4
    assert parse(base, [{"allocation": "tiers"}]).allocation.options == {}
    assert parse(base, [{"allocation": {"budget": 0.6}}]).allocation_options.alpha == 2.0


def test_specs_are_written_without_capacities_that_have_no_effect() -> None:
    spec = parse({"allocation": {"name": "hasa", "budget": 0.3}})
    assert "capacities" not in spec.to_toml({})
    assert "capacities" in uneven.Spec().to_toml({})

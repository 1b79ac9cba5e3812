"""Budgets are met: exactly before rounding, and from below in whole channels."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.allocation.world import allocate, channels, supernet, view
from uneven.allocation import Allocation, Budgeted, BudgetOptions, Targets, View
from uneven.allocation.scale import Cost
from uneven.errors import SpecError
from uneven.spec import parse
from uneven.submodels.cost import widths

NEAR = 1e-9
COSTS = ["width", "width2", "params", "macs", "bytes", "memory"]
HIDDEN = (12, 7)


class Given(Budgeted):
    """The targets that it is given."""

    def __init__(self, options: BudgetOptions, targets: list[float]) -> None:
        super().__init__(options)
        self._targets = targets

    def targets(self, view: View) -> Targets:
        return Targets(self._targets)


def spend(
    targets: list[float], examples: list[int], hidden: tuple[int, ...] = HIDDEN, **options: Any
) -> Allocation:
    return Given(BudgetOptions(**options), targets).allocate(view(examples, hidden=hidden))


def mean_cost(ratios: Any, examples: list[int], cost: Cost, hidden: tuple[int, ...] = HIDDEN) -> float:
    """Sum of P_n cost(r_n)."""
    scale = channels(cost, *hidden)
    return math.fsum(n * scale.cost(r) for n, r in zip(examples, ratios, strict=True)) / sum(examples)


# The checks that come with the method.


@pytest.mark.parametrize(
    ("examples", "passes", "ratios", "spent"),
    [
        ([10, 10, 10], "exact", [0.65, 0.65, 0.2], 0.5),
        ([10, 10, 10], 2, [0.65, 0.65, 0.2], 0.5),
        ([10, 10, 80], "exact", [0.8, 0.8, 0.425], 0.5),
        # a = .5 / .29; clip: .8, .8, .3448; a = .5 / .4359; .8, .8, .3956
        ([10, 10, 80], 2, [0.8, 0.8, 0.5 / (0.16 + 0.8 * 0.1 / 0.29) * 0.1 / 0.29], 0.4765),
    ],
)
def test_three_clients_by_hand(examples: list[int], passes: Any, ratios: list[float], spent: float) -> None:
    given = allocate("hasa", view(examples, [[9, 1], [1, 9], [5, 5]]), passes=passes)
    assert given.ratios == pytest.approx(ratios, abs=1e-9)
    assert given.exact == pytest.approx(spent, abs=5e-5 if passes == 2 else 1e-12)


@pytest.mark.parametrize("passes", ["exact", 2])
@pytest.mark.parametrize("policy", ["uniform", "hasa", "inverse", "random", "size"])
def test_one_client_gets_the_budget(policy: str, passes: Any) -> None:
    given = allocate(policy, view([7], [[3, 4]]), budget=0.6, passes=passes)
    assert given.ratios == pytest.approx([0.6])
    assert given.capacities == [0.6]  # 24 of 40 channels


# Properties.

ratio = st.floats(0.05, 1)
clients = st.integers(1, 6).flatmap(
    lambda k: st.tuples(
        st.lists(st.floats(0.01, 10), min_size=k, max_size=k),
        st.lists(st.integers(1, 500), min_size=k, max_size=k),
        st.none() | st.lists(st.floats(0.4, 1), min_size=k, max_size=k),
    )
)
bounds = st.tuples(st.floats(0.1, 0.4), st.floats(0.4, 1))


@settings(max_examples=80)
@given(clients, bounds, st.floats(0, 1), st.sampled_from(COSTS))
def test_any_feasible_budget_is_met(clients: Any, bounds: Any, place: float, cost: Cost) -> None:
    (targets, examples, caps), (r_min, r_max) = clients, bounds
    highest = [min(r_max, cap) for cap in caps or [1.0] * len(examples)]
    lo, hi = (mean_cost(r, examples, cost) for r in ([r_min] * len(examples), highest))
    budget = min(lo + place * (hi - lo), 1.0)
    options = {"budget": budget, "r_min": r_min, "r_max": r_max, "cost": cost, "caps": caps}
    try:
        given = spend(targets, examples, **options)
    except SpecError as error:  # only in whole channels: every client needs one, and caps may be below a step
        message = str(error)
        assert "whole channels" in message or "the narrowest part" in message
        assume(False)
    assert given.ratios is not None
    assert given.exact is not None
    assert mean_cost(given.ratios, examples, cost) == pytest.approx(budget, abs=NEAR)
    assert given.exact == pytest.approx(budget, abs=NEAR)
    for own, high, target in zip(given.ratios, highest, targets, strict=True):
        assert r_min <= own <= high
        for other, limit, wish in zip(given.ratios, highest, targets, strict=True):
            if target <= wish:
                assert own <= other or other == limit, "who is to get more gets more, up to its bound"
    _nearest_below(given, examples, cost, budget, caps)


def _nearest_below(given: Allocation, examples: list[int], cost: Cost, budget: float, caps: Any) -> None:
    """Each client has the step below or above its ratio, and no choice of these comes nearer from below."""
    steps, reachable = channels(cost, *HIDDEN), widths(supernet(*HIDDEN))
    options = []
    for own, cap in zip(given.ratios or [], caps or [1.0] * len(examples), strict=True):
        below, above = (
            [w for w in reachable if w <= own + NEAR][-1:],
            [w for w in reachable if w >= own - NEAR][:1],
        )
        options.append([w for w in {*below, *above} if w <= cap + NEAR])
    costs = (mean_cost(choice, examples, cost) for choice in itertools.product(*options))
    best = max(c for c in costs if c <= budget + 2 * NEAR)
    for own, choices in zip(given.capacities, options, strict=True):
        assert own in choices
        assert steps.steps(own) == [own]
    assert mean_cost(given.capacities, examples, cost) == pytest.approx(best, abs=1e-12)


@settings(max_examples=60)
@given(clients, bounds, ratio, st.sampled_from(COSTS))
def test_what_is_not_feasible_is_refused_with_the_range(
    clients: Any, bounds: Any, budget: float, cost: Cost
) -> None:
    (targets, examples, caps), (r_min, r_max) = clients, bounds
    highest = [min(r_max, cap) for cap in caps or [1.0] * len(examples)]
    lo, hi = (mean_cost(r, examples, cost) for r in ([r_min] * len(examples), highest))
    assume(not lo - NEAR <= budget <= hi + NEAR)
    with pytest.raises(
        SpecError, match="cannot be met within r_min, r_max and caps: the feasible range is"
    ) as told:
        spend(targets, examples, budget=budget, r_min=r_min, r_max=r_max, cost=cost, caps=caps)
    found = re.search(r"range is (\S+) to (\S+)", str(told.value))
    assert found is not None
    assert [float(number) for number in found.groups()] == pytest.approx([lo, hi], rel=1e-4)


@settings(max_examples=100)
@given(clients, st.floats(0.25, 0.75), st.permutations(range(6)))
def test_the_order_of_clients_changes_nothing(clients: Any, budget: float, order: list[int]) -> None:
    targets, examples, caps = clients
    order = [n for n in order if n < len(targets)]
    caps = caps or [1.0] * len(targets)
    assume(0.2 <= budget <= mean_cost([min(0.8, cap) for cap in caps], examples, "width"))
    given, moved = (
        spend(
            [targets[n] for n in places],
            [examples[n] for n in places],
            hidden=(40,),
            budget=budget,
            caps=[caps[n] for n in places],
        )
        for places in (list(range(len(targets))), order)
    )
    assert given.ratios is not None
    assert moved.ratios == [given.ratios[n] for n in order]
    assert _by_client(moved, [examples[n] for n in order]) == _by_client(given, examples)


def _by_client(given: Allocation, examples: list[int]) -> list[tuple[int, float, float]]:
    """Clients of one size and ratio may change places."""
    return sorted(zip(examples, given.ratios or [], given.capacities, strict=True))


def test_many_clients_come_within_a_channel() -> None:
    """200 clients: the budget is missed by much less than the smallest client's one channel."""
    examples = [10 + 7 * n % 90 for n in range(200)]
    given = spend([1 + n % 5 for n in range(200)], examples, hidden=(40,))
    missed = 0.5 - mean_cost(given.capacities, examples, "width", (40,))
    assert -NEAR <= missed < min(examples) / sum(examples) / 40 / 10


def test_whole_parameters() -> None:
    """Of 7 parameters a half is 3 or 4; 4 for those that are at most half of all examples: 3 + 5 of 17."""
    given = allocate("uniform", view([3, 5, 9], parameters=7), budget=0.5, cost="params")
    assert [7 * c for c in given.capacities] == pytest.approx([4, 4, 3])
    given = allocate("uniform", view([3, 5, 9], parameters=10), budget=0.5, cost="params")
    assert (given.capacities, given.unit) == ([0.5] * 3, "params")
    given = allocate("size", view([3, 5, 9], parameters=1000), cost="params")
    assert [1000 * c for c in given.capacities] == pytest.approx([round(1000 * c) for c in given.capacities])
    assert sum(n * c for n, c in zip([3, 5, 9], given.capacities, strict=True)) / 17 == pytest.approx(
        0.5, abs=1e-3
    )


def test_a_width_of_a_channel_of_every_group_is_the_least() -> None:
    """Of 2 channels .2 is one, a half, so that three tenths cannot be had."""
    with pytest.raises(SpecError, match=r"budget = 0\.3: cannot be met in whole channels .* the least is 0\.5"):
        spend([1.0, 1.0], [1, 1], hidden=(2,), budget=0.3)


def test_two_passes_may_spend_more_than_the_budget_and_say_so() -> None:
    """A client that is raised to r_min each time costs what the factor did not reckon with."""
    given = spend([0.01, 1.0], [1, 1], hidden=(40,), budget=0.3, passes=2)
    # a = .3/.505: .2 (clipped), .594; a = .3/.397: .2 (clipped), .449
    second = 0.3 / ((0.2 + 0.3 / 0.505) / 2) * 0.3 / 0.505
    assert given.ratios == pytest.approx([0.2, second])
    assert given.exact == pytest.approx((0.2 + second) / 2)
    assert given.exact > 0.3
    # .2 is 8 channels, .449 between 17 and 18: not below .3, so both at the step below
    assert given.capacities == pytest.approx([0.2, 17 / 40])


def test_two_passes_above_the_budget_are_rounded_to_it_where_that_can_be() -> None:
    """Clients of 1, 1, 1, 2 of 5 examples, and steps of .1.

    a = .35/.406: .25 thrice, .8; a = .35/.47: .25 thrice, .596, which is .388. At the steps below it is
    .2 * .6 + .5 * .4 = .32; .02 more for one at .3, .04 more for the last at .6: .34 is the nearest below .35.
    """
    given = spend([0.01, 0.01, 0.01, 1.0], [1, 1, 1, 2], hidden=(10,), budget=0.35, r_min=0.25, passes=2)
    last = 0.35 / 0.47 * 0.8
    assert given.ratios == pytest.approx([0.25, 0.25, 0.25, last])
    assert given.exact == pytest.approx(0.15 + 0.4 * last)
    assert sorted(given.capacities[:3]) == pytest.approx([0.2, 0.2, 0.3])
    assert given.capacities[3] == pytest.approx(0.5)
    assert mean_cost(given.capacities, [1, 1, 1, 2], "width", (10,)) == pytest.approx(0.34)


def test_two_passes_above_the_budget_are_rounded_down_where_it_cannot_be_met() -> None:
    """HASA's targets of four clients. a = .42: .2, .2, .252, .336; a = .21/.247: .2, .2, .214, .286.

    Their steps of 1/40 below are .2, .2, .2, .275, a mean of .21875.
    """
    given = spend([0.2, 0.4, 0.6, 0.8], [10] * 4, hidden=(40,), budget=0.21, passes=2)
    assert given.ratios == pytest.approx([0.2, 0.2, 0.252 * 0.21 / 0.247, 0.336 * 0.21 / 0.247])
    assert given.exact == pytest.approx((0.4 + 0.588 * 0.21 / 0.247) / 4)
    assert given.capacities == pytest.approx([0.2, 0.2, 0.2, 0.275])


def test_two_passes_that_no_narrower_part_could_meet() -> None:
    """Of two channels the first is .5, above B and above what the passes come to."""
    with pytest.raises(SpecError, match=r"budget = 0\.3: cannot be met in whole channels .* the least is 0\.5"):
        spend([0.01, 1.0], [1, 1], hidden=(2,), budget=0.3, passes=2)


def test_two_passes_below_the_budget_are_rounded_up_to_it() -> None:
    """a = .5/.24: .8, .8, .208; a = .5/.327: .8, .8, .319, which is .415. Of .3 and .4 the wider: .16 + .32."""
    given = spend([0.8, 0.8, 0.1], [10, 10, 80], hidden=(10,), passes=2)
    assert given.ratios == pytest.approx([0.8, 0.8, 0.1 / 0.24 * 0.5 * 0.5 / (0.16 + 0.4 / 2.4)])
    assert given.exact == pytest.approx(0.4151, abs=5e-5)
    assert given.capacities == pytest.approx([0.8, 0.8, 0.4])


def test_two_passes_keep_to_a_cap() -> None:
    """a = 1: .2, .5, .6 (capped); a = .5/.4333: .2308, .5769, .6 (capped). Two steps above are .25, .6: .4833."""
    given = spend([0.2, 0.5, 0.8], [10] * 3, hidden=(40,), caps=[1.0, 1.0, 0.6], passes=2)
    assert given.ratios == pytest.approx([0.2 * 1.5 / 1.3, 0.5 * 1.5 / 1.3, 0.6])
    assert given.exact == pytest.approx((0.7 * 1.5 / 1.3 + 0.6) / 3)
    assert given.capacities == pytest.approx([0.25, 0.6, 0.6])


# What is wrong is told.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"r_min": 0.9}, r"allocation: r_min = 0\.9 is above r_max = 0\.8"),
        ({"budget": 0}, r"allocation\.budget = 0: .*greater than 0"),
        ({"budget": 1.5}, r"allocation\.budget = 1\.5: .*less than or equal to 1"),
        ({"r_max": 1.5}, r"allocation\.r_max = 1\.5"),
        ({"passes": 2, "cost": "macs"}, r"passes = 2 is a rule for cost = 'width', not 'macs'"),
        ({"passes": 3}, r"allocation\.passes = 3"),
        ({"cost": "time"}, r"allocation\.cost = 'time'"),
        ({"budgte": 0.5}, r"allocation\.budgte = 0\.5: no such key; did you mean 'budget'"),
        ({"name": "hassa"}, r"allocation\.name = 'hassa': did you mean 'hasa'"),
        ({"name": "builtins:int"}, r"allocation\.name = 'builtins:int': must be a class that extends"),
        ({"name": "tiers", "budget": 0.5}, r"allocation\.budget = 0\.5: no such key"),
    ],
)
def test_wrong_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says) as told:
        parse({"allocation": {"name": "uniform", **options}})
    assert len(told.value.problems) == 1


def test_capacities_beside_another_policy_have_no_effect() -> None:
    with pytest.raises(SpecError, match=r"clients\.capacities: has no effect with allocation 'hasa'"):
        parse({"allocation": "hasa", "clients": {"capacities": 0.5}})
    assert parse({"allocation": "tiers", "clients": {"capacities": 0.5}}).clients.capacities.levels == (0.5,)


@pytest.mark.parametrize(
    ("caps", "says"),
    [
        ([0.5], r"allocation\.caps: 1 values for 2 clients"),
        ([0.5, 0.1], r"^allocation\.caps: client b can hold 0\.1, less than r_min = 0\.2$"),
        ([0.4, 0.4], r"feasible range is 0\.2 to 0\.4"),
        ("memory", r"allocation\.caps = 'memory': did you mean 'memry'"),
        ("wrong", r"allocation\.caps = 'wrong': client b has 3, not in \(0, 1\]"),
    ],
)
def test_caps_that_do_not_fit(caps: Any, says: str) -> None:
    attributes = [{"memry": 0.4, "wrong": 0.5}, {"memry": 0.7, "wrong": 3.0}]
    with pytest.raises(SpecError, match=says):
        allocate("uniform", view([1, 1], attributes=attributes), caps=caps)


def test_a_cap_below_the_first_channel_is_told() -> None:
    with pytest.raises(
        SpecError, match=r"client a can hold 0\.3, less than the narrowest part of this model, 0\.5"
    ):
        spend([1.0, 1.0], [1, 1], hidden=(2,), caps=[0.3, 1.0])


def test_caps_from_a_column() -> None:
    given = allocate("uniform", view([1, 1], attributes=[{"cap": 0.4}, {"cap": 0.7}]), caps="cap")
    assert given.ratios == pytest.approx([0.4, 0.6])


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ([1.0], "Given gives 1 ratios for 2 clients"),
        ([1.0, 0.0], "Given gives client b the ratio 0, not positive"),
        ([math.nan, 1.0], "Given gives client a the ratio nan, not positive"),
        ([math.inf, 1.0], "Given gives client a the ratio inf, not positive"),
    ],
)
def test_targets_of_a_policy_that_are_none(targets: list[float], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        spend(targets, [1, 1])

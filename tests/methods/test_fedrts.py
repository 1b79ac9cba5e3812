"""FedRTS step by step on one layer of 6 links and 4 free places, with 2 clients, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.methods import sparse
from tests.methods.sparse import LINKS, MEAN, NAMED, NET, ONE, OTHER, answers, places, plan, update, weights
from tests.sparsity.models import three
from uneven.errors import MethodError
from uneven.methods import ClientCard, Context, Update
from uneven.methods.base import Candidates
from uneven.methods.fedrts import FedRTS
from uneven.rng import subseed

SEED = 3

# With swap = 2, so kappa = 4: is it among the 4 largest of the mean; for which share of the clients among theirs?
AGGREGATE = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]
OWN = [0.25, 0.25, 1.0, 1.0, 0.75, 0.75, 0.25, 1.0, 0.0, 0.75]
HALF = [0.625, 0.125, 1.0, 0.5, 0.875, 0.875, 0.375, 0.75, 0.25, 0.625]


def made(**options: Any) -> FedRTS:
    method: FedRTS = sparse.made("fedrts", **options)
    return method


def round_(
    method: FedRTS, t: int, clients: Sequence[int] = (0, 1), named: Sequence[Sequence[int]] = NAMED
) -> None:
    """A round in which these clients' updates are accepted."""
    pairs = answers(method, t, named)
    method.merge(t, [pairs[n] for n in clients])
    method.adjust(t)


def alpha(method: FedRTS) -> list[float]:
    return method.belief.tables["alpha"]["weight"].flatten().tolist()


def beta(method: FedRTS) -> list[float]:
    return method.belief.tables["beta"]["weight"].flatten().tolist()


@pytest.mark.parametrize(
    ("gamma", "x", "topology"),
    [
        (0.0, OWN, {2, 3, 4, 5, 7, 9}),
        (0.5, HALF, {0, 2, 4, 5, 7, 9}),
        (1.0, AGGREGATE, None),
    ],
)
def test_one_adjustment_by_the_mean(gamma: float, x: list[float], topology: set[int] | None) -> None:
    """X, alpha = 1 + 10 X, beta = 1 + 10 (1 - X); then the six highest X. With gamma = 1 two of the free places
    come, of which nothing is known. What comes starts at 0, what goes is lost."""
    method = made(gamma=gamma, decision="mean", evidence="adjust")
    round_(method, 2)
    assert alpha(method) == pytest.approx([1 + 10 * value for value in x])
    assert beta(method) == pytest.approx([1 + 10 * (1 - value) for value in x])
    if topology is None:
        assert places(method) >= {0, 2, 4, 5}
        assert len(places(method)) == 6
        assert not places(method) & {1, 3}
    else:
        assert places(method) == topology
    stayed = {i: pytest.approx(MEAN[i]) for i in places(method) & set(range(6))}
    assert weights(method) == [stayed.get(i, 0.0) for i in range(10)]


def test_growth_is_random_where_only_the_aggregate_counts() -> None:
    """With gamma = 1 clients are not asked, and another seed may choose other places."""
    found = set()
    for seed in range(12):
        method = made(gamma=1.0, decision="mean")
        method.context = Context(NET, method.context.clients, 10, seed)
        plan = method.plan(2, method.context.clients)
        assert all(assignment.growth is None for assignment in plan)
        round_(method, 2)
        found |= {tuple(sorted(places(method) - {0, 2, 4, 5}))}
    assert len(found) > 2
    assert {place for pair in found for place in pair} == {6, 7, 8, 9}


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_one_adjustment_by_draws(gamma: float) -> None:
    """xi ~ Beta(1 + 10 X, 1 + 10 (1 - X)), after the update: numpy's draws for the round and the tensor."""
    method = made(gamma=gamma, evidence="adjust")
    round_(method, 2)
    x = np.array({0.0: OWN, 0.5: HALF, 1.0: AGGREGATE}[gamma], dtype=np.float32).reshape(2, 5)
    draws = np.random.default_rng(subseed(SEED, "thompson", 2, "weight"))
    xi = draws.beta(np.float32(1) + np.float32(10) * x, np.float32(1) + np.float32(10) * (1 - x)).flatten()
    assert places(method) == set(np.argsort(xi)[4:].tolist())


class Fixed:
    """Draws of a belief, fixed: what is asked of links is taken down."""

    def __init__(self, xi: Sequence[float]) -> None:
        self.xi = torch.tensor(xi).view(2, 5)

    def score(self, name: str, seed: int) -> Tensor:
        return self.xi


def with_draws(method: FedRTS, xi: Sequence[float]) -> FedRTS:
    method.belief.score = Fixed(xi).score  # type: ignore[method-assign]
    return method


XI = [0.9, 0.1, 0.2, 0.3, 0.4, 0.8, 0.7, 0.6, 0.5, 0.95]


def test_the_highest_draws_whatever_the_schedule_says() -> None:
    """2 are scheduled; 9, 0, 5, 6, 7, 8 are drawn, 4 of them new."""
    method = with_draws(made(), XI)
    round_(method, 2)
    assert places(method) == {0, 5, 6, 7, 8, 9}


def test_cap_swaps_exchanges_what_is_scheduled() -> None:
    """The best 4 links stay, the best 2 free places come."""
    method = with_draws(made(cap_swaps=True), XI)
    round_(method, 2)
    assert places(method) == {0, 5, 4, 3, 9, 6}


def test_cap_swaps_where_the_draws_would_keep_all() -> None:
    method = with_draws(made(cap_swaps=True), [0.9, 0.8, 0.7, 0.65, 0.63, 0.61, 0.1, 0.2, 0.3, 0.4])
    round_(method, 2)
    assert places(method) == {0, 1, 2, 3, 8, 9}


def test_the_next_adjustment_knows_the_new_links() -> None:
    """After the first, {0, 2, 4, 5, 7, 9}. What clients send is of these six, in order, so that 7 has (2, 6.5), 9
    (1, -8) and 2 (5, -2). Means: 0 2.5, 2 1.5, 4 4, 5 1, 7 4.25, 9 -3.5. Named are 1 and 6, and 6 and 8."""
    method = made(decision="mean", evidence="adjust")
    round_(method, 2)
    round_(method, 4, named=([1, 6], [6, 8]))
    # X_agg: 7, 4, 9, 0. One: 0, 2, 4, 5 (6, 5, 4, 3). Other: 9, 7, 5, 4. Of free places: 1 .25, 3 0, 6 1, 8 .75.
    second = {0: 0.625, 2: 0.125, 4: 1.0, 5: 0.5, 7: 0.875, 9: 0.875, 1: 0.375, 3: 0.25, 6: 0.75, 8: 0.625}
    assert alpha(method) == pytest.approx([1 + 10 * (HALF[i] + second[i]) for i in range(10)])
    assert beta(method) == pytest.approx([21 - 10 * (HALF[i] + second[i]) for i in range(10)])


@pytest.mark.parametrize(("evidence", "seen"), [("every_round", 1), ("adjust", 0)])
def test_between_adjustments_only_links_are_observed(evidence: str, seen: int) -> None:
    """In round 1 nobody is asked for places, and the topology stays."""
    method = made(evidence=evidence)
    assert method.plan(1, method.context.clients)[0].growth is None
    round_(method, 1)
    assert alpha(method) == pytest.approx([1 + 10 * seen * x for x in HALF[:6]] + [1] * 4)
    assert beta(method) == pytest.approx([1 + 10 * seen * (1 - x) for x in HALF[:6]] + [1] * 4)
    assert places(method) == set(range(6))


def test_between_adjustments_places_are_not_observed_with_gamma_1_either() -> None:
    method = made(gamma=1.0)
    round_(method, 1)
    assert alpha(method) == pytest.approx([11, 1, 11, 1, 11, 11, 1, 1, 1, 1])


def test_the_last_adjustment_is_the_end() -> None:
    """T_end is 6: after that nothing is asked, learnt or changed."""
    method = made()
    for t in range(1, 7):
        round_(method, t)
    before = alpha(method), beta(method), places(method)
    for t in (7, 8):
        assert method.plan(t, method.context.clients)[0].growth is None
        round_(method, t)
    assert (alpha(method), beta(method), places(method)) == before


def test_strength_and_forgetting() -> None:
    """lambda = 2 in two rounds, of the first of which a quarter is left."""
    method = made(strength=2.0, forget=0.25)
    round_(method, 1)
    round_(method, 2)
    links = [1 + 2 * x / 4 + 2 * x for x in HALF[:6]]
    assert alpha(method) == pytest.approx(links + [1 + 2 * x for x in HALF[6:]])


def test_only_accepted_updates_count() -> None:
    """Of one client alone the aggregate and the own outcome are the same."""
    method = made(evidence="adjust")
    round_(method, 2, clients=[0])
    assert alpha(method) == pytest.approx([11, 11, 11, 11, 1, 1, 8.5, 8.5, 3.5, 3.5])


def test_momentum() -> None:
    """The paper's ablation: .5 -> .9 * .5 + .1 X with X the aggregate's; links 1 and 3 fall below the free places'
    .5, two of which come."""
    method = made(decision="momentum", evidence="adjust")
    assert (method.options.gamma, method.options.momentum) == (1.0, 0.9)
    round_(method, 2)
    average = method.belief.tables["average"]["weight"].flatten()
    torch.testing.assert_close(average, torch.tensor([0.55, 0.45, 0.55, 0.45, 0.55, 0.55, 0.5, 0.5, 0.5, 0.5]))
    assert places(method) > {0, 2, 4, 5}
    assert not places(method) & {1, 3}


def test_momentum_of_clients_outcomes() -> None:
    """gamma = 0, momentum .5: .25 + .5 X. Twice the same."""
    method = made(decision="momentum", gamma=0.0, momentum=0.5, evidence="every_round")
    round_(method, 1)
    round_(method, 2)
    average = method.belief.tables["average"]["weight"].flatten().tolist()
    links = [0.125 + 0.75 * x for x in OWN[:6]]
    assert average == pytest.approx(links + [0.25 + 0.5 * x for x in OWN[6:]])


def test_a_client_that_holds_half_of_the_links() -> None:
    """It holds 0, 1 and 2: of kappa = 4 its share is 2. p_n is taken over those that hold a link: 1/4 and 3/4 of
    links 0 to 2, where it has 1, 1, 0 and the other 0, 0, 1; of links 3 to 5 only the other tells."""
    method = made(gamma=0.0, sizes=(5, 10))
    method.state = {"weight": torch.arange(10, 0, -1).view(2, 5) * LINKS.float()}
    part, whole = plan(method, 1)
    method.merge(1, [(part, update(part, ONE[:3])), (whole, update(whole, OTHER))])
    method.adjust(1)
    assert alpha(method) == pytest.approx([3.5, 3.5, 8.5, 11, 11, 11, 1, 1, 1, 1])
    assert beta(method) == pytest.approx([8.5, 8.5, 3.5, 1, 1, 1, 1, 1, 1, 1])


@pytest.mark.parametrize(("gamma", "x"), [(0.0, [1, 1, 0, 1, 0, 0]), (0.5, [1, 1, 0.5, 1, 0, 0])])
def test_a_link_that_no_client_held_is_judged_by_the_aggregate_alone(gamma: float, x: list[float]) -> None:
    """The only client holds 0, 1 and 2, and brings them from 9, 8 and 7.5 to 6, 5 and 4; 3 to 5 keep 7, .5 and
    .25. The aggregate's four largest are 3, 0, 1 and 2, the client's two 0 and 1. A place without a link that
    nobody was asked about is not observed."""
    method = made(gamma=gamma, sizes=(5, 10))
    method.state = {"weight": torch.tensor([[9.0, 8.0, 7.5, 7.0, 0.5], [0.25, 0, 0, 0, 0]])}
    part = plan(method, 1)[0]
    method.merge(1, [(part, update(part, ONE[:3]))])
    method.adjust(1)
    assert alpha(method) == pytest.approx([1 + 10 * value for value in x] + [1] * 4)
    assert beta(method) == pytest.approx([1 + 10 * (1 - value) for value in x] + [1] * 4)


@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("options", [{}, {"gamma": 0.0}, {"gamma": 1.0}, {"decision": "momentum"}])
def test_a_round_without_an_update_changes_no_belief(t: int, options: dict[str, Any]) -> None:
    """Whether an adjustment is due or not."""
    method = made(**options)
    before = {kind: table["weight"].clone() for kind, table in method.belief.tables.items()}
    round_(method, t, clients=[])
    assert all(torch.equal(table["weight"], before[kind]) for kind, table in method.belief.tables.items())


def test_layers_without_a_swap_are_not_drawn_again() -> None:
    """Of 55, 25 and 8 links .03 is 1.65, .75 and .24; and the last layer has no free place."""
    cards = [ClientCard(0, 4, torch.ones(2), 1.0, 1.0, 250)]
    options = FedRTS.Options(density=90 / 250, every=1, end=5, change=0.03, decay="constant")
    method = FedRTS(Context(three(), cards, 9, SEED), options)
    before = dict(method.mask)
    assert method.swaps(1) == {"0.weight": 1, "2.weight": 0, "4.weight": 0}
    for name, mask in method.mask.items():  # nothing speaks for a link
        method.belief.tables["beta"][name] = torch.where(mask, 1e6, 1.0)
    plan = method.plan(1, cards)
    growth = plan[0].growth
    assert growth is not None
    assert growth.counts == method.swaps(1)
    free = {name: (~mask).flatten().nonzero().flatten() for name, mask in before.items()}
    named = {name: Candidates(free[name][: growth.counts[name]]) for name in before}
    payload = {"model": plan[0].gathered().payload["model"]}
    method.merge(1, [(plan[0], Update(1, 0, payload, 4, 4, 1.0, candidates=named))])
    method.adjust(1)
    assert torch.equal(method.mask["2.weight"], before["2.weight"])
    assert method.mask["4.weight"].all()
    assert not torch.equal(method.mask["0.weight"], before["0.weight"])
    assert int(method.mask["0.weight"].sum()) == 55


def test_nobody_is_asked_where_nothing_would_be_exchanged() -> None:
    """At T_end the cosine is 0."""
    method = made(decay="cosine")
    assert method.plan(2, method.context.clients)[0].growth is not None
    assert method.plan(6, method.context.clients)[0].growth is None


def test_taken_up_again_it_goes_on_alike() -> None:
    whole, cut = made(), made()
    round_(whole, 1)
    round_(whole, 2)
    saved = whole.saved()
    cut.restore({name: tensor.clone() for name, tensor in saved.items()})
    for t in (3, 4):
        round_(whole, t)
        round_(cut, t)
    assert whole.saved().keys() == cut.saved().keys()
    assert all(torch.equal(tensor, cut.saved()[name]) for name, tensor in whole.saved().items())
    assert not torch.equal(saved["belief/alpha/weight"], whole.saved()["belief/alpha/weight"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"decision": "momentum", "strength": 1.0},
            r"method.strength = 1.0: has no effect with decision 'momentum'",
        ),
        ({"decision": "momentum", "forget": 0.5}, r"method.forget = 0.5: has no effect with decision 'momentum'"),
        ({"momentum": 0.5}, r"method.momentum = 0.5: has no effect with decision 'thompson'"),
        ({"decision": "mean", "momentum": 0.5}, r"method.momentum = 0.5: has no effect with decision 'mean'"),
        (
            {"end": 1},
            r"end = 1: with decay 'constant' .* after round 1, before the first adjustment, after round 2",
        ),
        ({"end": 2, "decay": "cosine"}, r"end = 2: with decay 'cosine' the last exchange can be after round 1"),
        ({"end": None, "every": 10}, r"rounds = 10, so T_end = 6: with decay .* after round 10; use a smaller"),
    ],
)
def test_options_that_do_nothing(options: dict[str, Any], says: str) -> None:
    with pytest.raises(MethodError, match=says):
        made(**options)


@pytest.mark.parametrize("strength", [math.inf, math.nan, 2e6, 0.0])
def test_a_strength_that_is_none(strength: float) -> None:
    with pytest.raises(ValidationError, match="strength"):
        made(strength=strength)

"""What is measured of a topology, against values worked out by hand."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from tests.methods.sparse import MEAN, NAMED, NET, answers, holding, made, plan, update
from tests.run.test_result import sections
from uneven.data import ClientData, Examples, Federation, Info
from uneven.diagnostics.topology import Topology, Votes
from uneven.errors import MethodError, SpecError
from uneven.experiment import Experiment, load_model
from uneven.methods import Assignment, Update
from uneven.methods.base import Candidates, Growth
from uneven.methods.fedrts import FedRTS
from uneven.spec import parse
from uneven.submodels import Submodel, Supernet
from uneven.tracking import Line

SPARSE = {"density": 0.5, "every": 2, "change": 0.5, "decay": "constant", "end": 4}


def of(name: str, **changes: Any) -> dict[str, Any]:
    clients = {"count": 4, "capacities": {"values": [1] * 4, "unit": "params"}}
    base = {"method": {"name": name} | SPARSE, "clients": clients, "cohort": 3, "rounds": 5}
    return sections(**(base | {"diagnostics": {"every": 1, "parts": ["topology"]}} | changes))


@cache
def loaded() -> tuple[Federation, Supernet]:
    return load_model(parse(of("set")))


def experiment(name: str, **changes: Any) -> Experiment:
    """On one federation and model."""
    return Experiment(parse(of(name, **changes)), loaded())


# One layer of 6 links and 4 free places, 2 clients of 1 and 3 examples; see the tests of methods.


def federation() -> Federation:
    draws = torch.Generator().manual_seed(0)
    rows = []
    for n, examples in enumerate((1, 3)):
        part = Examples(torch.randn(examples, 5, generator=draws), torch.arange(examples) % 2)
        rows.append(ClientData(n, str(n), part, part, {}))
    return Federation(tuple(rows), rows[1].train, Info((5,), 2, ("a", "b")))


def followed(
    method: FedRTS, topology: Topology, t: int, named: tuple[list[int], list[int]] = NAMED
) -> Line | None:
    """A round of FedRTS by hand, and what is measured of it."""
    results = answers(method, t, named)
    for assignment, answer in results:
        topology.heard(assignment, answer)
    method.merge(t, results)
    topology.merged(t)
    method.adjust(t)
    trained: list[tuple[Assignment, Submodel]] = [(a, a.submodel) for a, _ in results]
    return topology.after(t, trained, measured=True)


def by_formula(data: Examples, weight: torch.Tensor) -> torch.Tensor:
    """The gradient of the mean cross-entropy of a linear model: (p - y) x^T."""
    error = torch.softmax(data.x @ weight.T, 1) - nn.functional.one_hot(data.y, 2)
    return error.T @ data.x / len(data)


def test_one_adjustment_by_hand() -> None:
    """By the mean of the belief links 1 and 3 go, and 7 and 9 come. The merged weights: 2.5, 1.5, 4, 1, 4.25 and
    -3.5, so the smallest go. Named are 6 and 7, and 7 and 9. X is worked out in the tests of FedRTS."""
    method = made("fedrts", decision="mean", evidence="adjust")
    topology = Topology(None, method, federation())
    line = followed(method, topology, 2)
    assert line is not None
    weight = torch.tensor(MEAN + [0.0] * 4).view(2, 5)
    both = torch.cat([client.train.x for client in federation().clients])
    y = torch.cat([client.train.y for client in federation().clients])
    largest = by_formula(Examples(both, y), weight).flatten()[6:].abs().topk(2).indices + 6
    x = [0.625, 0.125, 1.0, 0.5, 0.875, 0.875, 0.375, 0.75, 0.25, 0.625]
    half = {i: (1 + 10 * value) / 12 for i, value in enumerate(x)}
    links, free = ([half[i] for i in places] for places in ((0, 2, 4, 5, 7, 9), (1, 3, 6, 8)))
    assert line == {
        "dropped": 2 / 6,
        "grown": 2 / 6,
        "scheduled": 2 / 6,
        "first_kept": pytest.approx(kept(method)),
        "grown_kept": None,
        "dropped_smallest": 1.0,
        "grown_largest": len({7, 9} & set(largest.tolist())) / 2,
        "votes": {"overlap": 0.5, "by_chance": 0.5},
        "belief": {"links": quantiles(links), "free": quantiles(free)},
        "layers": {"weight": {"density": 0.6, "dropped": 2 / 6, "grown": 2 / 6, "scheduled": 2 / 6}},
        "macs": 3 * 10 * 4,
    }


def kept(method: FedRTS) -> float:
    """The share of the links that the run started from."""
    first, now = method.first["weight"], method.mask["weight"]
    return float((first & now).sum() / 6)


def quantiles(values: list[float]) -> Any:
    """The linear ones, by hand."""
    ordered = sorted(values)
    found = []
    for q in (0.05, 0.5, 0.95):
        place = q * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        found.append(ordered[low] + (place - low) * (ordered[high] - ordered[low]))
    return pytest.approx(found)


def test_grown_links_are_followed_to_the_next_adjustment() -> None:
    """7 and 9 came; fixed draws keep 9 alone. A round between is no adjustment."""
    method = made("fedrts", decision="mean", evidence="adjust")
    topology = Topology(None, method, federation())
    followed(method, topology, 2)
    assert topology.grown["weight"].flatten().nonzero().flatten().tolist() == [7, 9]
    assert followed(method, topology, 3) is None
    xi = torch.tensor([0.9, 0.1, 0.8, 0.7, 0.6, 0.5, 0.2, 0.15, 0.3, 0.95]).view(2, 5)
    method.belief.score = lambda name, seed: xi  # type: ignore[method-assign]
    line = followed(method, topology, 4, ([1, 6], [1, 8]))
    assert line is not None
    assert line["grown_kept"] == 1 / 2
    assert line["dropped"] == 1 / 6  # 3 comes for 7
    assert line["scheduled"] == 2 / 6
    assert topology.grown["weight"].flatten().nonzero().flatten().tolist() == [3]


def test_drops_that_are_not_the_smallest() -> None:
    """Links 4 and 3 go, of weights 4.25 and 1; 1 and 3 are the smallest."""
    method = made("fedrts")
    xi = torch.tensor([0.9, 0.8, 0.7, 0.1, 0.2, 0.6, 0.95, 0.3, 0.3, 0.96]).view(2, 5)
    method.belief.score = lambda name, seed: xi  # type: ignore[method-assign]
    line = followed(method, Topology(None, method, federation()), 2)
    assert line is not None
    assert line["dropped_smallest"] == 1 / 2


def by_autograd(every: list[Examples]) -> torch.Tensor:
    """Of sum p_n F_n at the merged weights, p_n the client's share of the examples."""
    weight = torch.tensor(MEAN + [0.0] * 4).view(2, 5).requires_grad_()
    total = sum(map(len, every))
    losses = [nn.functional.cross_entropy(data.x @ weight.T, data.y) * len(data) / total for data in every]
    (gradient,) = torch.autograd.grad(torch.stack(losses).sum(), weight)
    return gradient


@pytest.mark.parametrize("examples", [None, 2, 1])
def test_the_gradient_is_the_mean_over_clients_by_their_examples(examples: int | None) -> None:
    """p_n is 1/4 and 3/4 of all examples, 1/3 and 2/3 of the first two of each, and 1/2 of the first."""
    method = made("fedrts", decision="mean")
    topology = Topology(examples, method, federation())
    line = followed(method, topology, 2)
    every = [client.train[:examples] for client in federation().clients]
    (found,) = topology._gradient(every).values()
    torch.testing.assert_close(found, by_autograd(every))
    assert line is not None
    assert line["macs"] == 3 * 10 * sum(map(len, every))


@pytest.mark.parametrize("examples", [None, 1])
@pytest.mark.parametrize(("first", "share"), [(0, 1.0), (1, 0.5), (2, 0.0)])
def test_what_is_grown_is_judged_by_that_gradient(examples: int | None, first: int, share: float) -> None:
    """Drawn are the two free places of the largest gradients, those after the first, and the smallest two."""
    method = made("fedrts", cap_swaps=True)
    size = by_autograd([client.train[:examples] for client in federation().clients]).flatten().abs()
    come = sorted(range(6, 10), key=lambda i: -size[i])[first : first + 2]
    xi = torch.tensor([0.9 if i in come else 0.5 - i / 100 for i in range(10)]).view(2, 5)
    method.belief.score = lambda name, seed: xi
    line = followed(method, Topology(examples, method, federation()), 2)
    assert line is not None
    assert line["grown"] == 2 / 6
    assert line["grown_largest"] == share


def test_votes_by_counting() -> None:
    """Three clients name 3 of 12 free places: {0, 1, 2}, {1, 2, 3}, {2, 3, 4}. Two pairs share 2, one shares 1."""
    mask = {"w": torch.zeros(12, dtype=torch.bool)}
    growth = Growth(mask, {"w": 3})
    votes = Votes(mask)
    for n, named in enumerate(([0, 1, 2], [1, 2, 3], [2, 3, 4])):
        assignment = Assignment(1, n, NET.prefix(1.0), {}, growth=growth)
        votes.add(assignment, said(n, named))
        if n == 0:
            assert votes.summary() is None
    assert votes.summary() == pytest.approx({"overlap": 5 / 9, "by_chance": 3 / 12})


def said(n: int, named: list[int]) -> Update:
    return Update(1, n, {}, 1, 1, 1.0, candidates={"w": Candidates(torch.tensor(named))})


def test_links_that_clients_take_themselves_are_votes() -> None:
    """FedDST: one takes 6 and 7, the other 7 and 8, of 4 free places. The four links that both keep count nothing,
    nor does a client that exchanges none."""
    method = made("feddst")
    votes = Votes(method.mask)
    one, other = plan(method, 2)
    votes.add(one, holding(one, dict.fromkeys((0, 1, 2, 3, 6, 7), 1.0)))
    votes.add(plan(method, 1)[0], update(one, [1.0] * 6))
    assert votes.summary() is None
    votes.add(other, holding(other, dict.fromkeys((0, 1, 2, 4, 7, 8), 1.0)))
    assert votes.summary() == {"overlap": 1 / 2, "by_chance": 2 / 4}


def test_a_whole_gradient_is_no_vote() -> None:
    mask = {"w": torch.zeros(3, dtype=torch.bool)}
    votes = Votes(mask)
    for n in range(2):
        growth = Growth(mask, {}, everywhere=True)
        votes.add(Assignment(1, n, NET.prefix(1.0), {}, growth=growth), said(n, [0, 1, 2]))
    assert votes.summary() is None


# In whole runs.

METHODS = ("set", "fedrts", "fedtiny", "prunefl", "feddst", "fedsgc")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_followed_and_stays_the_same(name: str) -> None:
    """The state is the same bit for bit; at each adjustment there is a line, and it agrees with the topologies."""
    plain, watched = experiment(name, diagnostics={}), experiment(name)
    for t in range(1, 6):
        before = {n: m.clone() for n, m in plain.method.mask.items()}  # type: ignore[attr-defined]
        assert plain.round(t).diagnostics is None
        found = watched.round(t).diagnostics
        ours, theirs = plain.method.saved(), watched.method.saved()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
        assert (found is not None) == (t in (2, 4))
        if found is not None:
            line, after = found["topology"], plain.method.mask  # type: ignore[attr-defined]
            links = sum(int(mask.sum()) for mask in before.values())
            gone = sum(int((before[n] & ~after[n]).sum()) for n in before)
            come = sum(int((after[n] & ~before[n]).sum()) for n in before)
            assert (line["dropped"], line["grown"]) == (gone / links, come / links)
            assert (line["votes"] is not None) == (name in ("fedrts", "fedtiny", "feddst", "fedsgc"))
            assert (line["belief"]["links"] is not None) == (name == "fedrts")
            json.dumps(line)
            if name in ("set", "fedtiny"):
                assert line["dropped_smallest"] == 1.0
                assert line["dropped"] == line["scheduled"]


def test_resumed_it_writes_the_same_lines() -> None:
    """From round 3 on, between two adjustments."""
    whole, cut = (experiment("fedrts") for _ in range(2))
    for t in (1, 2, 3):
        whole.round(t)
    cut.restore({name: tensor.clone() for name, tensor in whole.saved().items()})
    line = whole.round(4).diagnostics
    assert line is not None
    assert line["topology"]["grown_kept"] is not None
    assert line == cut.round(4).diagnostics


def test_all_that_the_method_has_is_the_default() -> None:
    """Of a method without a topology the other parts."""
    with_topology = experiment("set", diagnostics={"every": 2})
    with_topology.round(1)
    assert with_topology.round(2).diagnostics.keys() >= {"topology", "coverage", "clients"}  # type: ignore[union-attr]
    without = Experiment(parse(sections(diagnostics={"every": 1})), loaded())
    assert "topology" not in (without.round(1).diagnostics or {"topology": None})


def normed(info: Info) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, info.num_classes))


def test_what_cannot_be_measured() -> None:
    asked = {"every": 1, "parts": ["topology"]}
    with pytest.raises(SpecError, match=r"diagnostics.parts = 'topology': the method adjusts no topology"):
        Experiment(parse(sections(diagnostics=asked)), loaded())
    with pytest.raises(SpecError, match=r"every = 3: no round .* adjustment \(method.every = 2, method.end = 4\)"):
        experiment("set", diagnostics=asked | {"every": 3})
    with pytest.raises(MethodError, match=r"diagnostics.parts = \['coverage', 'topology'\]"):
        Experiment(parse(of("set", model={"name": normed}, diagnostics={"every": 2})))

"""What all methods of one topology share: shares of it, what changes with it, what clients tell, what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uneven
from tests.laws.world import World
from tests.methods import sparse
from tests.methods.sparse import LINKS, NET
from tests.run.test_result import sections
from uneven.aggregation import ServerOptions
from uneven.data import Federation
from uneven.engines import inspect
from uneven.errors import MethodError
from uneven.experiment import Experiment, load_model
from uneven.methods import METHODS, Assignment, ClientCard, Context, Failure, Update
from uneven.methods.base import Candidates, Growth
from uneven.methods.static import Static
from uneven.methods.topology import SparseMethod, SparseOptions
from uneven.methods.topology_client import SparseClient
from uneven.spec import parse
from uneven.submodels import Supernet
from uneven.training import TrainingOptions

VALUES = torch.tensor([[6.0, -5.0, 4.0, 3.0, -2.0], [1.0, 9.0, 9.0, 9.0, 9.0]])


def sized(*sizes: int) -> Static:
    """6 links of 10 places; clients that may hold so many parameters."""
    cards = [ClientCard(n, 1, torch.ones(2), size / 10, 1.0, size) for n, size in enumerate(sizes)]
    method = Static(Context(NET, cards, 9, 0), Static.Options(density=0.6))
    method.change_to({"weight": LINKS})
    method.state = {"weight": VALUES * LINKS}
    return method


def held(method: SparseMethod, n: int) -> set[int]:
    part = method.submodel(1, method.context.clients[n])
    return set(part.select("weight", torch.arange(10).view(2, 5)).flatten().tolist())


def test_a_client_holds_its_share_of_the_links_the_largest() -> None:
    """8 of 10 places are .8 of 6 links, 4; half of them are 3; and so on. All of it is the topology."""
    method = sized(10, 8, 5, 4, 2)
    assert [held(method, n) for n in range(5)] == [{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3}, {0, 1, 2}, {0, 1}, {0}]


def test_shares_follow_the_weights() -> None:
    method = sized(10, 4)
    method.state = {"weight": torch.tensor([[1.0, 2.0, -7.0, 3.0, -2.0], [6.0, 0.0, 0.0, 0.0, 0.0]])}
    assert held(method, 1) == {2, 5}


def test_every_layer_keeps_a_link_whatever_becomes_of_the_others() -> None:
    """Two layers of 10 and 4 places; a client of 3 parameters. Of 9 links 3 * 9 // 14 = 1, but of each layer one;
    with 13 links 2; and where a layer, or each, has a single link left, that one."""
    net = Supernet(nn.Sequential(nn.Linear(5, 2, bias=False), nn.Linear(2, 2, bias=False)), torch.zeros(5))
    cards = [ClientCard(n, 1, torch.ones(2), 1.0, 1.0, size) for n, size in enumerate([14, 3])]
    method = Static(Context(net, cards, 9, 0), Static.Options(density=0.6))
    first, second = torch.ones(2, 5, dtype=torch.bool), torch.zeros(2, 2, dtype=torch.bool)
    second[1, 1] = True
    corner = torch.zeros(2, 5, dtype=torch.bool)
    corner[0, 0] = True
    for links in ((first, second), (first, ~second), (corner, second)):
        method.change_to(dict(zip(method.mask, links, strict=True)))
        part = method.submodel(1, cards[1])
        assert [int(part.select(name, links).sum()) for name, links in method.mask.items()] == [1, 1]
    with pytest.raises(MethodError, match=r"a capacity of 1 of 14 parameters is too small: .* without a link"):
        Static(Context(net, [replace(cards[0], size=1)], 9, 0), Static.Options(density=0.6))


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "yogi"])
def test_what_goes_is_lost_with_what_the_optimizer_knows_of_it(optimizer: str) -> None:
    """And what comes starts from nothing."""
    world = World(
        METHODS["set"],
        "mlp",
        [1.0] * 3,
        {"density": 0.4, "every": 2, "decay": "constant"},
        ServerOptions(optimizer=optimizer, lr=0.1),
    )
    method = world.method
    assert isinstance(method, SparseMethod)
    before = dict(method.mask)
    world.round(1)
    assert all(torch.equal(mask, before[name]) for name, mask in method.mask.items())
    knew = {key: moment for key, moment in method.optimizer.moments.items() if key.endswith("/1.weight")}
    assert all(
        moment[before["1.weight"]].any() and not moment[~before["1.weight"]].any() for moment in knew.values()
    )
    world.round(2)
    for name, mask in method.mask.items():
        new = mask & ~before[name]
        assert new.any() == (~before[name]).any()
        assert not method.state[name][~mask | new].any()
        assert method.state[name][mask & before[name]].any()
        for key in knew:
            moment = method.optimizer.moments[key.replace("1.weight", name)]
            assert not moment[~mask | new].any()
            assert moment[mask & before[name]].any()


# What clients tell.


def trained(growth: Growth) -> tuple[Assignment, Update, World]:
    world = World(METHODS["static"], "mlp", [1.0, 0.5], {"density": 0.4})
    assignment = replace(world.plan()[1], growth=growth)
    ((_, update),) = world.train([assignment])
    return assignment, update, world


def topology() -> Mapping[str, Tensor]:
    method = World(METHODS["static"], "mlp", [1.0, 0.5], {"density": 0.4}).method
    assert isinstance(method, SparseMethod)
    return method.mask


COUNTS = {"1.weight": 7, "3.weight": 2, "5.weight": 0}


def whole_gradient(assignment: Assignment, update: Update, world: World) -> dict[str, Tensor]:
    """Of the mean loss over all the client's data, at what it sent, by autograd."""
    network = world.method.supernet.prefix(1.0).network()
    submodel = assignment.submodel
    model = update.payload["model"]
    full = {name: torch.zeros_like(tensor) for name, tensor in world.method.state.items()}
    for name, values in model.items():
        submodel.add(name, full[name], values)
    network.load(full).eval()
    data = world.federation.clients[assignment.client].train
    loss = nn.functional.cross_entropy(network(data.x), data.y)
    return dict(zip(network.weights(), torch.autograd.grad(loss, list(network.weights().values())), strict=True))


@pytest.mark.parametrize("values", [True, False])
def test_a_client_names_the_places_of_the_largest_gradient_after_training(values: bool) -> None:
    """Among those without a link, also where the client does not hold all links that there are."""
    assignment, update, world = trained(Growth(topology(), COUNTS, values=values))
    gradients = whole_gradient(assignment, update, world)
    for name, candidates in update.candidates.items():
        gradient, mask = gradients[name].flatten(), topology()[name].flatten()
        best = gradient.abs().masked_fill(mask, -1.0).topk(COUNTS[name]).indices.sort().values
        assert torch.equal(candidates.places, best)
        if values:
            assert candidates.gradient is not None
            torch.testing.assert_close(candidates.gradient, gradient[best], rtol=1e-3, atol=1e-6)
        else:
            assert candidates.gradient is None
    assert update.candidates.keys() == COUNTS.keys()
    assert update.scored == len(world.federation.clients[assignment.client].train)


def test_a_client_tells_the_gradient_everywhere() -> None:
    assignment, update, world = trained(Growth(topology(), {}, everywhere=True))
    for name, gradient in whole_gradient(assignment, update, world).items():
        if name in update.candidates:
            found = update.candidates[name]
            assert torch.equal(found.places, torch.arange(gradient.numel()))
            assert found.gradient is not None
            torch.testing.assert_close(found.gradient, gradient.flatten(), rtol=1e-3, atol=1e-6)


def test_equal_gradients_go_by_a_draw_of_the_client_and_round() -> None:
    """A network whose weights are all 0 has no gradient in its first layer."""
    world = World(METHODS["static"], "mlp", [1.0] * 2, {"density": 0.4}, training=TrainingOptions(lr=1e-9))
    method, named = world.method, set()
    assert isinstance(method, SparseMethod)
    method.state = {name: torch.zeros_like(tensor) for name, tensor in method.state.items()}
    for t in (1, 2):
        plan = [replace(a, growth=Growth(method.mask, COUNTS)) for a in world.plan(t)]
        for _, update in world.train(plan):
            places = update.candidates["1.weight"].places
            assert not method.mask["1.weight"].flatten()[places].any()
            named.add(tuple(places.tolist()))
    assert len(named) == 4


def places(change: Callable[[Tensor], Any]) -> Callable[[Candidates], Candidates]:
    return lambda candidates: replace(candidates, places=change(candidates.places))


def gradient(change: Callable[[Tensor], Any]) -> Callable[[Candidates], Candidates]:
    def changed(candidates: Candidates) -> Candidates:
        assert candidates.gradient is not None
        return replace(candidates, gradient=change(candidates.gradient))

    return changed


BAD: dict[str, tuple[Callable[[Candidates], Any], str]] = {
    "too few": (places(lambda p: p[1:]), "(6,) candidates of 1.weight, where 7 were asked"),
    "no integers": (places(lambda p: p.float()), "(7,) candidates of 1.weight, where 7 were asked"),
    "twice": (places(lambda p: torch.cat([p[:1], p[:-1]])), "candidates of 1.weight that are not distinct places"),
    "out of order": (places(lambda p: p.flip(0)), "candidates of 1.weight that are not distinct places"),
    "too far": (places(lambda p: torch.cat([p[:-1], torch.tensor([768])])), "that are not distinct places of it"),
    "negative": (places(lambda p: torch.cat([torch.tensor([-1]), p[1:]])), "that are not distinct places of it"),
    "links": (
        places(lambda p: topology()["1.weight"].flatten().nonzero().flatten()[:7]),
        "that are links already",
    ),
    "no tensor": (places(lambda p: p.tolist()), "an answer that is not a tensor"),
    "nothing": (lambda c: None, "an answer that is not a tensor"),
    "no gradient": (lambda c: replace(c, gradient=None), "with gradients, or without, against what was asked"),
    "short": (gradient(lambda g: g[1:]), "whose gradients are not finite, or not one each"),
    "NaN": (gradient(lambda g: g * math.nan), "whose gradients are not finite, or not one each"),
    "a list": (gradient(lambda g: g.tolist()), "whose gradients are not finite, or not one each"),
}


@pytest.mark.parametrize("case", BAD)
def test_candidates_that_cannot_be(case: str) -> None:
    assignment, update, _ = trained(Growth(topology(), COUNTS, values=True))
    assert inspect(assignment, update) is update
    change, reason = BAD[case]
    bad = replace(update, candidates={**update.candidates, "1.weight": change(update.candidates["1.weight"])})
    failure = inspect(assignment, bad)
    assert isinstance(failure, Failure)
    assert reason in failure.reason


def test_candidates_that_nobody_asked_for_or_that_are_missing() -> None:
    assignment, update, _ = trained(Growth(topology(), COUNTS))
    for asked, told in ((replace(assignment, growth=None), update), (assignment, replace(update, candidates={}))):
        failure = inspect(asked, told)
        assert isinstance(failure, Failure)
        assert "were asked" in failure.reason


# What it costs. The model has 20 and 12 weights and 7 biases: at density 1/2 there are 20 parameters, 13 of them
# links. They are shared out as 9 to 7, which is 7.3 and 5.7: 7 and 6. Half of them, 3 and 3, are exchanged.

SPARSE = {"density": 0.5, "every": 1, "change": 0.5, "decay": "constant", "end": 3}


def bits(*subsets: tuple[int, int]) -> float:
    """To say which k of n places, for each."""
    return math.fsum(math.log2(math.comb(n, k)) for n, k in subsets)


CHANGE = bits((7, 3), (13, 3), (6, 3), (6, 3))
CANDIDATES = bits((13, 3), (6, 3))


def of(name: str, options: Mapping[str, Any] = SPARSE, **changes: Any) -> dict[str, Any]:
    clients = {"count": 4, "capacities": {"values": [1] * 4, "unit": "params"}}
    return sections(**({"method": {"name": name} | dict(options), "clients": clients} | changes))


@cache
def loaded() -> tuple[Federation, Supernet]:
    return load_model(parse(of("set")))


def experiment(name: str, options: Mapping[str, Any] = SPARSE, **changes: Any) -> Experiment:
    """On one federation and model."""
    return Experiment(parse(of(name, options, **changes)), loaded())


def in_bytes(bits: float) -> int:
    return math.ceil(round(bits / 8, 6))


def test_a_round_costs_values_and_what_is_new() -> None:
    """SET exchanges exactly what is scheduled, and clients send nothing but values: 20 of 4 bytes, and from the
    second round on the change before."""
    run = experiment("set")
    first, second = run.round(1), run.round(2)
    assert first.bytes_down == first.bytes_up == second.bytes_up == [80] * 4
    assert second.bytes_down == [80 + in_bytes(CHANGE)] * 4


def test_places_are_named_at_their_entropy() -> None:
    run = experiment("fedrts")
    assert run.round(1).bytes_up == [80 + in_bytes(CANDIDATES)] * 4


def test_gradients_are_4_bytes_each_beside_their_places() -> None:
    """FedTiny's candidates: 3 and 3 with values."""
    run = experiment("fedtiny", SPARSE | {"candidates": 1})
    assert run.round(1).bytes_up == [80 + in_bytes(CANDIDATES + 32 * 6)] * 4


@pytest.mark.parametrize("name", ["feddst", "fedsgc"])
def test_what_a_client_exchanged_is_told_at_the_entropy(name: str) -> None:
    """Beside the values, where an adjustment is due: which 3 of 7 and of 6 links it gave up, and which 3 of 13 and
    of 6 free places it took; 21.9 bits. In a round between nothing."""
    run = experiment(name, SPARSE | {"every": 2})
    assert run.round(1).bytes_up == [80] * 4
    assert run.round(2).bytes_up == [80 + math.ceil(CHANGE / 8)] * 4 == [83] * 4


def test_what_a_smaller_client_exchanged() -> None:
    """It holds 3 of 7 links and 2 of 6, so of 3 and 3 it exchanges int(9 / 7) and int(1): 1 and 1."""
    clients = {"count": 2, "capacities": {"values": [0.5, 0.5], "unit": "params"}}
    run = Experiment(parse(of("feddst", clients=clients, cohort=2)))
    exchanged = bits((3, 1), (13, 1), (2, 1), (6, 1))
    assert run.round(1).bytes_up == [48 + math.ceil(exchanged / 8)] * 2 == [50] * 2


def test_who_missed_an_adjustment_is_told_later() -> None:
    """Client 0 is told of all three at once; one that was there of the last."""
    run = experiment("set")
    method, cards = run.method, run.cards
    for t in (1, 2, 3):
        assignments = method.plan(t, cards[1:])
        method.merge(t, [(a, u) for a, u in run.engine.train(assignments) if isinstance(u, Update)])
        method.adjust(t)
    told = {a.client: a.index_bytes for a in method.plan(4, cards)}
    assert told == {0: in_bytes(3 * CHANGE), 1: in_bytes(CHANGE), 2: in_bytes(CHANGE), 3: in_bytes(CHANGE)}
    assert {a.index_bytes for a in method.plan(5, cards)} == {0}


def test_what_was_told_is_saved() -> None:
    """After round 2 all know of the first change. Two that go on from the same tensors do not share them."""
    run, others = experiment("set"), [experiment("set") for _ in range(2)]
    run.round(1)
    run.round(2)
    saved = run.saved()
    for other in (*others, run):
        if other is not run:
            other.restore(saved)
        assert other.round(3).bytes_down == [80 + in_bytes(CHANGE)] * 4


def test_a_part_of_the_topology_is_named_each_time() -> None:
    """Of 39 parameters half are 20; less 7 biases that leaves 13 of 32 places, so 5 of 13 links: 5 / 13 of 7 and 6
    is 2.7 and 2.3, 3 and 2."""
    clients = {"count": 2, "capacities": {"values": [0.5, 0.5], "unit": "params"}}
    run = Experiment(parse(of("set", clients=clients, cohort=2)))
    log = run.round(1)
    assert log.bytes_down == [48 + in_bytes(bits((7, 3), (6, 2)))] * 2
    assert log.bytes_up == [48] * 2


def test_fedrts_costs_what_the_rules_say() -> None:
    """At 20 % density: at most 1.02 times 8 density d + the entropy of what changed + that of the places named,
    which are worked out here from the topologies. A client that was not there in a round is told later."""
    options = {"density": 0.2, "every": 2, "end": 6}
    model = {"name": "mlp", "hidden": [60]}
    run = Experiment(parse(of("fedrts", options, model=model, rounds=8, cohort=3)))
    method, d = run.method, 5 * 60 + 60 + 60 * 3 + 3
    assert isinstance(method, SparseMethod)
    bound, measured, news, known = 0.0, 0, 0.0, dict.fromkeys(range(4), 0.0)
    for t in range(1, 9):
        before = {name: mask.flatten() for name, mask in method.mask.items()}
        log = run.round(t)
        after = {name: mask.flatten() for name, mask in method.mask.items()}
        measured += sum(log.bytes_down) + sum(log.bytes_up)
        due = t in (2, 4)  # at 6 the cosine is 0
        for client in log.cohort:
            bound += 8 * 0.2 * d + (news - known[client]) / 8
            known[client] = news
        for name, old in before.items():
            gone, come = int((old & ~after[name]).sum()), int((after[name] & ~old).sum())
            k, free = int(old.sum()), int((~old).sum())
            news += bits((k, gone), (free, come))
            swap = int(0.2 * (1 + math.cos(math.pi * t / 6)) * k) if due else 0
            bound += len(log.cohort) * bits((free, min(swap, free))) / 8
            assert due or (gone, come) == (0, 0)
    assert news > 0
    assert bound - 8 <= measured <= 1.02 * bound


def test_the_papers_formula_is_beside_what_was_sent() -> None:
    """2 (4 density d + d / 8) for each client and round."""
    result = uneven.run(**of("set"))
    assert result["bytes"]["reference"] == pytest.approx(3 * 4 * 2 * (4 * 0.5 * 39 + 39 / 8))
    assert "reference" not in uneven.run(**sections())["bytes"]


def test_a_checkpoint_of_another_density_is_refused() -> None:
    saved = experiment("set").saved()
    other = experiment("set", SPARSE | {"density": 0.6})
    with pytest.raises(MethodError, match=r"density = 0.6: gives 1.weight 9 links, and the checkpoint has 7"):
        other.restore(saved)


@pytest.mark.parametrize("density", [0, -0.1, 1.01])
def test_a_density_that_is_none(density: float) -> None:
    with pytest.raises(ValueError, match="density"):
        SparseOptions(density=density)


@pytest.mark.parametrize("name", ["static", "set", "fedrts"])
def test_fill_is_refused_where_all_hold_the_same(name: str) -> None:
    """Not where one holds less than another, nor where clients exchange links themselves."""
    server = ServerOptions(rule="fill")
    with pytest.raises(MethodError, match=r"server.rule = 'fill': has no effect, all clients .* the same links"):
        sparse.made(name, server=server)
    for other, sizes in ((name, (10, 5)), ("feddst", (10, 10)), ("fedsgc", (10, 10))):
        assert sparse.made(other, sizes, server=server).context.server.rule == "fill"


def test_random_links_over_the_whole_model_are_refused() -> None:
    with pytest.raises(MethodError, match=r"method.layers = 'global': compares \|x\|.*use 'magnitude'"):
        World(METHODS["static"], "mlp", [1.0], {"layers": "global"})


def test_the_client_is_that_of_all_sparse_methods() -> None:
    assert Static.Client is SparseClient

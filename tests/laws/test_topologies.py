"""Law 6 over all methods whose clients share a sparse topology: what an adjustment changes, and what it leaves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.laws.world import METHOD_FORMS, World
from uneven.aggregation import ServerOptions
from uneven.engines import inspect
from uneven.methods import METHODS
from uneven.methods.dynamic import DynamicMethod
from uneven.methods.topology import SparseMethod
from uneven.submodels import MaskSubmodel, State
from uneven.training import TrainingOptions

SPARSE = [form for form, (name, _) in METHOD_FORMS.items() if issubclass(METHODS[name], SparseMethod)]
DYNAMIC = [form for form in SPARSE if issubclass(METHODS[METHOD_FORMS[form][0]], DynamicMethod)]
DRIFTS = ("prunefl", "prunefl-fixed")  # links move between layers
EXCHANGED_BY_CLIENTS = ("feddst", "fedsgc")
BY_BELIEF = ("fedrts", "fedrts-momentum")  # as many links as the beliefs say
EXACT = [form for form in DYNAMIC if form not in (*DRIFTS, *EXCHANGED_BY_CLIENTS, *BY_BELIEF)]
FULL, MIXED = [1.0] * 4, [1.0, 0.5, 0.25, 0.5]
END = 4
models = pytest.mark.parametrize("model", ["mlp", "cnn-batch"])
TRAINING = {
    "sgd": TrainingOptions(lr=0.05, batch_size=4, epochs=1, momentum=0.9, weight_decay=0.1),
    "adamw": TrainingOptions(lr=0.05, batch_size=4, epochs=1, optimizer="adamw", weight_decay=0.1),
}


def world(form: str, model: str, capacities: list[float] = FULL, **more: object) -> World:
    """Adjustments after rounds 1 or 2 to 4 of 7."""
    name, options = METHOD_FORMS[form]
    dates = {"end": END} if form in DYNAMIC else {}
    return World(METHODS[name], model, capacities, {**options, **dates}, rounds=7, **more)  # type: ignore[arg-type]


def sparse(world: World) -> SparseMethod:
    assert isinstance(world.method, SparseMethod)
    return world.method


def changed(before: State, after: State) -> dict[str, int]:
    """Links that came, which are as many as went where K_l stays."""
    return {name: int((after[name] & ~before[name]).sum()) for name in before}


def part(submodel: object) -> MaskSubmodel:
    assert isinstance(submodel, MaskSubmodel)
    return submodel


@models
@pytest.mark.parametrize("form", EXACT)
def test_as_many_links_change_as_are_scheduled(form: str, model: str) -> None:
    """swap_l = min(int(a / 2 (1 + cos(pi t / T_end)) K_l), d_l - K_l) in each layer, up to T_end and never after.
    A round that an opening takes has none of these."""
    run = world(form, model)
    method, shares = sparse(run), {1: 0.4 * 0.8535533906, 2: 0.2, 3: 0.4 * 0.1464466094, 4: 0.0}
    for t in range(1, 8):
        before, k = method.mask, method.links
        run.round(t)
        if t == 1 and method.opening is not None:
            assert sum(method.links.values()) == sum(k.values())
            continue
        share = shares.get(t, 0.0)
        assert method.links == k
        expected = {name: min(int(share * k[name]), mask.numel() - k[name]) for name, mask in before.items()}
        assert changed(before, method.mask) == expected
        assert t >= END or any(expected.values())


@models
@pytest.mark.parametrize("form", SPARSE)
def test_each_layer_has_the_links_that_the_rule_says(form: str, model: str) -> None:
    """round(density d) parameters in all; K_l of each layer stays, or all together where they move; after T_end
    nothing changes."""
    run = world(form, model)
    method = sparse(run)
    free = method.supernet.size - sum(mask.numel() for mask in method.mask.values())
    assert sum(method.links.values()) + free == round(0.4 * method.supernet.size)
    opened = False
    for t in range(1, 8):
        before, k = method.mask, method.links
        run.round(t)
        opens = method.opening is not None and t == 1
        opened = opened or opens
        moves = bool(sum(changed(before, method.mask).values()))
        if t > END:
            assert not moves
        elif t == 2:
            assert moves == (form in DYNAMIC)
        if opens or form == "prunefl-fixed":
            assert sum(method.links.values()) == sum(k.values())
        elif form != "prunefl":
            assert method.links == k
        assert all(k > 0 for k in method.links.values())
        assert method.links == {name: int((mask != 0).sum()) for name, mask in method.mask.items()}
    assert opened == (method.opening is not None)


@models
@pytest.mark.parametrize("form", SPARSE)
def test_clients_start_from_the_servers_topology(form: str, model: str) -> None:
    """A client of capacity 1 holds it all, a smaller one a part of it; what clients exchange themselves is what
    was ordered, for places where the topology has no link, and passes for an update."""
    run = world(form, model, MIXED)
    method = sparse(run)
    for t in range(1, 4):
        results = run.train(run.plan(t))
        for assignment, update in results:
            given, held = part(assignment.submodel), part(assignment.trained(update))
            assert inspect(assignment, update) is update
            for name, links in method.mask.items():
                mine = given.holds(name)
                assert (
                    torch.equal(mine, links)
                    if run.cards[assignment.client].capacity == 1
                    else not (mine & ~links).any()
                )
                come, gone = held.holds(name) & ~mine, mine & ~held.holds(name)
                ordered = 0 if assignment.exchange is None else assignment.exchange.counts[name]
                assert int(come.sum()) == int(gone.sum()) == ordered
                assert not (come & links).any()
        exchanging = form in EXCHANGED_BY_CLIENTS
        assert any(a.exchange is not None for a, _ in results) == exchanging
        method.merge(t, results)
        method.adjust(t)


@pytest.mark.parametrize("form", EXCHANGED_BY_CLIENTS)
def test_clients_exchange_what_is_scheduled(form: str) -> None:
    run = world(form, "mlp")
    swaps = run.method.swaps(2)  # type: ignore[attr-defined]
    free = {name: int((~mask).sum()) for name, mask in sparse(run).mask.items()}
    assert swaps == {name: min(int(0.2 * k), free[name]) for name, k in sparse(run).links.items()}
    assert any(swaps.values())
    for assignment, _ in run.train(run.plan(2)):
        assert assignment.exchange is not None
        assert assignment.exchange.counts == swaps
    assert all(assignment.exchange is None for assignment in run.plan(END + 1))


@pytest.mark.parametrize("optimizer", ["average", "momentum", "adam"])
@pytest.mark.parametrize("kind", TRAINING)
@pytest.mark.parametrize("form", SPARSE)
def test_outside_the_topology_all_is_zero(form: str, kind: str, optimizer: str) -> None:
    """The server's state and its optimizer's moments, in every round, before T_end and after."""
    server = ServerOptions(optimizer=optimizer)  # type: ignore[arg-type]
    run = world(form, "mlp", MIXED, server=server, training=TRAINING[kind])
    for t in range(1, 7):
        run.round(t)
        method = sparse(run)
        for name, mask in method.mask.items():
            assert not method.state[name][~mask].any(), name
            for key, moment in method.optimizer.moments.items():
                if key.endswith(f"/{name}"):
                    assert not moment[~mask].any(), key
    kinds = {"average": 0, "momentum": 1, "adam": 2}[optimizer]
    assert len(run.method.optimizer.moments) == kinds * len(run.method.supernet.parameters)


@pytest.mark.parametrize("form", DYNAMIC)
def test_what_comes_starts_at_zero_and_is_trained(form: str) -> None:
    """Where the server grows links; where clients do, they were trained before the server chose."""
    run = world(form, "mlp")
    method = sparse(run)
    run.round(1)
    before = method.mask
    run.round(2)
    come = {name: method.mask[name] & ~before[name] for name in before}
    assert any(places.any() for places in come.values())
    trained = form in EXCHANGED_BY_CLIENTS
    values = torch.cat([method.state[name][places] for name, places in come.items()])
    assert bool(values.any()) == trained
    run.round(3)
    still = {name: places & method.mask[name] for name, places in come.items()}
    after = torch.cat([method.state[name][places] for name, places in still.items()])
    assert after.any()


@pytest.mark.parametrize("form", SPARSE)
def test_a_run_that_goes_on_has_the_same_topology(form: str) -> None:
    """What was saved after any round is all that the next ones need."""
    whole, stopped = world(form, "mlp", MIXED, seed=2), world(form, "mlp", MIXED, seed=2)
    for t in (1, 2, 3, 4, 5):
        whole.round(t)
        taken_up = world(form, "mlp", MIXED, seed=2)
        saved = {name: tensor.clone() for name, tensor in stopped.method.saved().items()}
        taken_up.method.restore(saved)
        taken_up.round(t)
        stopped = taken_up
        assert _same(sparse(whole).mask, sparse(stopped).mask)
        assert _same(sparse(whole).first, sparse(stopped).first)
        assert _same(whole.method.state, stopped.method.state)


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_every_method_is_here() -> None:
    sparse_methods = {name for name, method in METHODS.items() if issubclass(method, SparseMethod)}
    assert {METHOD_FORMS[form][0] for form in SPARSE} == sparse_methods

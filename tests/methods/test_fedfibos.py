"""FedFIbOS against values worked out by hand and against brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.laws.world import World, federation, formed
from tests.methods.test_rules import MIXED
from uneven.data import Examples
from uneven.engines import inspect
from uneven.errors import MethodError
from uneven.evaluation import evaluate
from uneven.methods import METHODS, Choice, Failure
from uneven.methods.fedfibos import client_scores
from uneven.methods.importance import pick
from uneven.submodels import State, Supernet
from uneven.submodels.masks import MaskSubmodel

FEDFIBOS = METHODS["fedfibos"]


def tiny(seed: int, sizes: tuple[int, ...], examples: int = 4) -> tuple[Supernet, Examples]:
    """A net of at most 14 parameters, and a few examples."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.Tanh()]
        net = Supernet(nn.Sequential(*layers[:-1]), torch.zeros(sizes[0]))
        y = torch.randint(sizes[-1], (examples,))
        return net, Examples(torch.randn(examples, sizes[0]), y)


def fisher_by_hand(net: Supernet, data: Examples, state: State | None = None) -> State:
    """(1/|D|) sum of squared gradients at a state, one example after the other."""
    network = net.prefix(1.0).network().load(state or net.initial).train()
    total = {name: torch.zeros_like(weight) for name, weight in network.weights().items()}
    for x, y in zip(data.x, data.y, strict=True):
        loss = nn.functional.cross_entropy(network(x[None]), y[None])
        for (name, weight), g in zip(
            network.weights().items(), torch.autograd.grad(loss, list(network.weights().values())), strict=True
        ):
            total[name] += g.square() / len(data)
            assert weight.shape == g.shape
    return total


def options(**given: Any) -> Any:
    return FEDFIBOS.Options(**({"examples": 512} | given))


def chosen(net: Supernet, data: Examples, rule: str, k: int) -> MaskSubmodel:
    scores, _ = client_scores(net.prefix(1.0).network().load(net.initial), data, options(rule=rule))
    part = pick(net, options(rule=rule), scores, Choice(1.0, k), net.initial)
    assert isinstance(part, MaskSubmodel)
    return part


def flat(net: Supernet, state: State) -> torch.Tensor:
    return torch.cat([state[name].reshape(-1) for name in net.maskable])


def dropped(net: Supernet, part: MaskSubmodel) -> torch.Tensor:
    whole = {name: torch.ones_like(net.initial[name], dtype=torch.bool) for name in net.maskable}
    return ~flat(net, whole | part.masks)


def epsilon(net: Supernet, fisher: State, out: torch.Tensor) -> float:
    """The surrogate of the masking error, sum over j not in S of F_j^2 x_j^2."""
    return (flat(net, fisher).square() * flat(net, net.initial).square())[out].sum().item()


def brute_force(net: Supernet, fisher: State, drops: int) -> float:
    n = len(flat(net, net.initial))
    costs = []
    for out in combinations(range(n), drops):
        where = torch.zeros(n, dtype=torch.bool)
        where[list(out)] = True
        costs.append(epsilon(net, fisher, where))
    return min(costs)


SHAPES = st.sampled_from([(3, 2), (2, 2, 2), (2, 1, 3), (4, 2)])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), sizes=SHAPES, share=st.floats(0.1, 0.9))
def test_weighted_is_the_minimum_over_all_subsets(seed: int, sizes: tuple[int, ...], share: float) -> None:
    """On nets of at most 14 parameters; raw attains it whenever the Fisher-dominant condition holds."""
    net, data = tiny(seed, sizes)
    assert net.size <= 14
    fisher, n = fisher_by_hand(net, data), len(flat(net, net.initial))
    drops = max(1, int(share * n))
    k = net.size - drops
    best = brute_force(net, fisher, drops)
    weighted = dropped(net, chosen(net, data, "weighted", k))
    assert int(weighted.sum()) == drops
    assert epsilon(net, fisher, weighted) == pytest.approx(best, rel=1e-4, abs=1e-12)
    raw = dropped(net, chosen(net, data, "raw", k))
    product = flat(net, fisher).square() * flat(net, net.initial).square()
    if drops < n and product[~raw].min() >= product[raw].max():
        assert epsilon(net, fisher, raw) == pytest.approx(best, rel=1e-4, abs=1e-12)


def test_raw_misses_the_minimum_where_the_condition_does_not_hold() -> None:
    """Two weights of one unit: inputs 1 and 2, so F = (c, 4c), and x = (.1, .01): raw drops the one that
    matters more."""
    net = Supernet(nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 2)), torch.zeros(2))
    names = net.maskable
    net.initial[names[0]] = torch.tensor([[0.1, 0.01]])
    net.initial[names[1]] = torch.tensor([[0.01], [-0.01]])
    data = Examples(torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
    fisher = fisher_by_hand(net, data)
    first, second = fisher[names[0]][0].tolist()
    assert second == pytest.approx(4 * first)  # the inputs are 1 and 2, and F goes with their squares
    k = net.size - 1
    raw, weighted = (dropped(net, chosen(net, data, rule, k)) for rule in ("raw", "weighted"))
    assert epsilon(net, fisher, raw) > epsilon(net, fisher, weighted) * 1.5
    assert epsilon(net, fisher, weighted) == pytest.approx(brute_force(net, fisher, 1))


def test_a_client_trains_its_own_best_parameters() -> None:
    """The mask that comes back is the top k of Fisher on the client's own data, and its values were trained."""
    world = World(FEDFIBOS, "mlp", MIXED)
    net = world.method.supernet
    results = world.train(world.plan())
    for assignment, update in results:
        card, data = world.cards[assignment.client], federation(4).clients[assignment.client].train
        assert assignment.submodel.size == net.size  # the client holds the full model to score it
        part = assignment.trained(update)
        assert part.size == card.size
        assert update.scored == len(data)
        assert isinstance(part, MaskSubmodel)
        scores = flat(net, fisher_by_hand(net, data))
        out = dropped(net, part)
        if out.any():
            assert scores[~out].min() >= scores[out].max() * (1 - 1e-4)
            for name in part.masks:
                assert update.payload["model"][name].shape == (int(part.masks[name].sum()),)
    parts = [assignment.trained(update) for assignment, update in results if assignment.client in (1, 3)]
    assert not torch.equal(dropped(net, parts[0]), dropped(net, parts[1]))  # other data, another part


def test_masks_of_a_client_are_nested() -> None:
    net, data = tiny(5, (4, 2))
    parts = [dropped(net, chosen(net, data, "raw", k)) for k in (4, 6, 8, 10)]
    assert all((larger <= smaller).all() for smaller, larger in pairwise(parts))


def test_a_choice_that_is_too_large_is_a_failure() -> None:
    world = World(FEDFIBOS, "mlp", MIXED)
    assignment, update = next((a, u) for a, u in world.train(world.plan()) if a.client == 2)
    assert not isinstance(inspect(assignment, update), Failure)
    net = world.method.supernet
    greedy = replace(update, submodel=net.prefix(1.0), payload={"model": dict(net.initial)})
    for bad, why in ((greedy, "where it may have"), (replace(update, submodel=None), "was to choose")):
        failure = inspect(assignment, bad)
        assert isinstance(failure, Failure)
        assert why in failure.reason
    uninvited = inspect(replace(assignment, choice=None), update)
    assert isinstance(uninvited, Failure)
    assert "none was asked" in uninvited.reason


def test_the_server_keeps_a_running_mean_of_squares() -> None:
    """Fbar <- .9 Fbar + .1 mean over the clients that held j; others keep theirs."""
    world = World(FEDFIBOS, "mlp", MIXED, {"scores": "server"})
    name = world.method.supernet.maskable[0]
    total = torch.zeros_like(world.method.state[name])
    holders = torch.zeros_like(total)
    for assignment, update in world.round():
        ones = torch.ones_like(update.payload["fisher"][name])
        assignment.submodel.add(name, total, update.payload["fisher"][name])
        assignment.submodel.add(name, holders, ones)
    mean = torch.where(holders > 0, total / holders.clamp(min=1), 0.0)
    first = world.method.fisher[name]  # type: ignore[attr-defined]
    torch.testing.assert_close(first, 0.1 * mean)
    assert (holders == 0).any() or world.cards[0].size == world.method.supernet.size
    before = first.clone()
    results = world.train(world.plan(2))[-1:]
    world.method.merge(2, results)
    after = world.method.fisher[name]  # type: ignore[attr-defined]
    held = results[0][0].submodel.select(name, torch.arange(before.numel()).view(before.shape))
    outside = torch.ones(before.numel(), dtype=torch.bool).index_fill_(0, held.reshape(-1), False)
    assert torch.equal(after.view(-1)[outside], before.view(-1)[outside])
    sent = results[0][1].payload["fisher"][name].reshape(-1)
    torch.testing.assert_close(
        after.view(-1)[held.reshape(-1)], 0.9 * before.view(-1)[held.reshape(-1)] + 0.1 * sent
    )


def test_a_share_of_the_servers_masks_is_drawn() -> None:
    """With eps_x = .25 a quarter of what can be dropped differs between rounds, the rest is the best by Fbar."""
    world = World(FEDFIBOS, "mlp", MIXED, {"scores": "server", "explore": 0.25})
    method, net = world.method, world.method.supernet
    draws = torch.Generator().manual_seed(0)
    method.fisher = {n: torch.rand(t.shape, generator=draws) for n, t in method.fisher.items()}  # type: ignore
    card = world.cards[2]
    one, other = (~dropped(net, method.submodel(t, card)) for t in (1, 2))  # type: ignore[arg-type]
    free = card.size - (net.size - len(one))
    scores = flat(net, method.fisher)  # type: ignore[attr-defined]
    best = torch.zeros_like(one)
    best[scores.topk(free - int(0.25 * free)).indices] = True
    assert one.sum() == other.sum() == free
    assert (one & best).sum() == (other & best).sum() == best.sum()
    assert not torch.equal(one, other)
    assert not (~dropped(net, method.evaluation_submodel(card, 1)) & ~best).sum() > int(0.25 * free)  # type: ignore


def test_channels_by_fisher_are_a_smaller_network_of_heterofls_shapes() -> None:
    world, heterofl = (
        World(FEDFIBOS, "cnn-group", MIXED, {"grain": "channel"}),
        formed("heterofl", "cnn-group", MIXED),
    )
    theirs = {a.client: a.submodel for a in heterofl.plan()}
    net = world.method.supernet
    for assignment, update in world.train(world.plan()):
        part = assignment.trained(update)
        assert (part.size, part.macs) == (theirs[assignment.client].size, theirs[assignment.client].macs)
        if part.size < net.size:
            fisher = fisher_by_hand(net, federation(4).clients[assignment.client].train)
            for group in net.groups:
                by_channel = torch.zeros(group.size)
                for name, dim in group.members:
                    if name in fisher and fisher[name].shape[dim] == group.size:
                        others = [d for d in range(fisher[name].dim()) if d != dim]
                        by_channel += fisher[name].sum(others) if others else fisher[name]
                    elif name in fisher:  # the linear layer reads channel x pixels
                        by_channel += fisher[name].view(len(fisher[name]), group.size, -1).sum((0, 2))
                kept = part.keep[group.index]  # type: ignore[attr-defined]
                rest = torch.ones(group.size, dtype=torch.bool).index_fill_(0, kept, False)
                assert by_channel[kept].min() >= by_channel[rest].max() * (1 - 1e-4)


def test_local_accuracy_is_of_the_clients_own_mask() -> None:
    world = World(FEDFIBOS, "mlp", MIXED)
    world.round()
    method, cards = world.method, world.cards
    evaluation = evaluate(method, world.federation, cards, 1)
    for card, client in zip(cards, world.federation.clients, strict=True):
        part = method.own_submodel(card, 1, client.train)
        assert isinstance(part, MaskSubmodel)
        assert part.size == card.size
        if part.masks:
            scores, out = (
                flat(method.supernet, fisher_by_hand(method.supernet, client.train, method.state)),
                dropped(method.supernet, part),
            )
            assert scores[~out].min() >= scores[out].max() * (1 - 1e-4)
        network = part.network().load(part.gather(method.state)).eval()
        right = (network(client.test.x).argmax(1) == client.test.y).double().mean().item()
        assert evaluation.local[card.id] == right
    whole = method.evaluation_submodel(cards[2], 1)
    magnitudes = flat(method.supernet, method.state).abs()
    out = dropped(method.supernet, whole)  # type: ignore[arg-type]
    assert magnitudes[~out].min() >= magnitudes[out].max()


@pytest.mark.parametrize(
    ("given_options", "model", "message"),
    [
        ({"rule": "magnitude", "scores": "client"}, "mlp", "method.scores = 'client': has no effect, rule"),
        ({"rule": "random", "examples": 5}, "mlp", "method.examples = 5: has no effect"),
        ({"explore": 0.2}, "mlp", "method.explore = 0.2: has no effect"),
        ({"scores": "server", "rule": "taylor"}, "mlp", "use grain 'parameter'"),
        ({"scores": "server", "grain": "channel"}, "mlp", "use grain 'parameter'"),
        ({}, "cnn-batch", "couples the examples of a batch"),
    ],
)
def test_bad_options(given_options: dict[str, Any], model: str, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        World(FEDFIBOS, model, MIXED, given_options)


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({"grain": "channel", "per_output": True}, "per_output"),
        ({"grain": "channel", "scope": "block"}, "scope"),
        ({"gradient": "fiarse"}, "needs a threshold on .x., which a mask by another score has not"),
    ],
)
def test_bad_options_by_themselves(given_options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FEDFIBOS.Options(**given_options)


def test_all_scores_zero_go_by_magnitude() -> None:
    """The server has no squares before the first round: its masks are those of the largest |x|."""
    world = World(FEDFIBOS, "mlp", MIXED, {"scores": "server", "explore": 0.0})
    net = world.method.supernet
    out = dropped(net, world.method.submodel(1, world.cards[2]))  # type: ignore[arg-type]
    magnitudes = flat(net, world.method.state).abs()
    assert magnitudes[~out].min() >= magnitudes[out].max()

"""The laws that the server's rule has a part in, under ``server.rule = "fill"``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.laws.test_laws import averaged
from tests.laws.world import World, formed, held, same_bits
from uneven.aggregation import ServerOptions
from uneven.errors import MethodError
from uneven.methods import METHODS

MIXED = [1.0, 0.5, 0.25, 0.5]
FILL = ServerOptions(rule="fill")
FORMS = [
    *(("heterofl", model) for model in ("mlp", "cnn-batch")),
    *((form, "cnn-group") for form in ("fedrolex", "fedbrb", "fiarse", "fedfibos", "fedfibos-channel")),
    *(("fjord", "cnn-batch"), ("fedfibos-server", "mlp"), ("fedhello", "mlp"), ("scalefl", "resnet_tiny-exits")),
]
every_form = pytest.mark.parametrize(("form", "model"), FORMS)


@pytest.mark.parametrize(("name", "model"), [("heterofl", "cnn-batch"), ("fedrolex", "mlp"), ("fiarse", "mlp")])
def test_1_full_is_fedavg(name: str, model: str) -> None:
    """Where all hold all there is nothing to fill: FedAvg's bits, running statistics and all."""
    world = World(METHODS[name], model, [1.0] * 4, METHODS[name].NEUTRAL, server=FILL)
    world.round()
    assert same_bits(world.method.state, averaged(model))


@every_form
def test_2_untouched_stays(form: str, model: str) -> None:
    world = formed(form, model, MIXED, server=FILL)
    before = world.method.state
    smallest = min(world.train(world.plan()), key=lambda result: result[0].trained(result[1]).size)
    world.method.merge(1, [smallest])
    masks = held(world, [smallest])
    for name, tensor in world.method.state.items():
        assert torch.equal(tensor[~masks[name]], before[name][~masks[name]]), name


@every_form
def test_3_extract_then_merge_changes_nothing(form: str, model: str) -> None:
    world = formed(form, model, MIXED, server=FILL)
    before = world.method.state
    results = world.train(world.plan())
    for i, (assignment, update) in enumerate(results):
        payload = {
            kind: assignment.gathered().payload[kind]
            if kind.startswith("statistics/")
            else {name: torch.zeros_like(values) for name, values in sent.items()}
            for kind, sent in update.payload.items()
        }
        payload["model"] = assignment.trained(update).gather(before)
        results[i] = (assignment, replace(update, payload=payload))
    world.method.merge(1, results)
    assert same_bits(world.method.state, before)


@every_form
def test_6_what_a_client_does_not_hold_it_leaves_unchanged(form: str, model: str) -> None:
    """Every parameter against the plain formula over all clients; running statistics against the overlap's."""
    world, overlap = formed(form, model, MIXED, server=FILL), formed(form, model, MIXED)
    before, results = world.method.state, world.train(world.plan())
    for each in (world, overlap):
        each.method.merge(1, results)
    assert not same_bits(world.method.state, before)
    for name, tensor in world.method.state.items():
        if name not in world.method.supernet.parameters:
            assert torch.equal(tensor, overlap.method.state[name]), name
            continue
        total = torch.zeros_like(tensor, dtype=torch.float64)
        positions = torch.arange(tensor.numel()).view(tensor.shape)
        for assignment, update in results:
            part, values = assignment.trained(update), update.payload["model"][name]
            change = (values - part.select(name, before[name])) * world.method.counted(assignment).get(name, 1.0)
            total.view(-1)[part.select(name, positions).reshape(-1)] += change.reshape(-1).double()
        torch.testing.assert_close(tensor.double(), before[name] + total / len(results), rtol=1e-5, atol=1e-6)


def test_6_weighted_by_examples() -> None:
    """x + sum p_n (x_n - x), p_n = n_n / sum n: of clients with 5, 6, 7 and 8 examples."""
    world = formed("heterofl", "mlp", MIXED, server=ServerOptions(rule="fill", weights="examples"))
    before, results = world.method.state, world.train(world.plan())
    world.method.merge(1, results)
    for name in world.method.supernet.parameters:
        after = before[name].double()
        positions = torch.arange(after.numel()).view(after.shape)
        for assignment, update in results:
            part, values = assignment.trained(update), update.payload["model"][name]
            change = (values - part.select(name, before[name])) * world.method.counted(assignment).get(name, 1.0)
            share = (5 + assignment.client) / 26
            after.view(-1)[part.select(name, positions).reshape(-1)] += share * change.reshape(-1).double()
        torch.testing.assert_close(world.method.state[name].double(), after, rtol=1e-5, atol=1e-6)


@every_form
def test_8_order_does_not_matter(form: str, model: str) -> None:
    one, other = formed(form, model, MIXED, server=FILL), formed(form, model, MIXED, server=FILL)
    results = one.train(one.plan())
    one.method.merge(1, results)
    other.method.merge(1, results[::-1])
    for name, tensor in one.method.saved().items():
        torch.testing.assert_close(tensor, other.method.saved()[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["fedavg-smallest", "fedprox-exclude", "scaffold-smallest"])
def test_refused_where_all_train_the_same_model(form: str) -> None:
    with pytest.raises(MethodError, match=r"server.rule = 'fill': has no effect"):
        formed(form, "mlp", MIXED, server=FILL)

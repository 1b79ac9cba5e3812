"""The laws that every method must satisfy, over every method and model here and random capacities.

Laws 7 (sparse means sparse) and 10 (the gradient named is the gradient applied) are about masks and gradient
rules, which no method here has.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.world import METHOD_FORMS, MODELS, World, formed, held, same_bits
from uneven.aggregation import ServerOptions
from uneven.methods import METHODS

MIXED = [1.0, 0.5, 0.25, 0.5]
every_method = pytest.mark.parametrize("form", METHOD_FORMS)
every_model = pytest.mark.parametrize("model", MODELS)
small_models = pytest.mark.parametrize("model", ["mlp", "cnn-group", "cnn-batch", "cnn-none"])
every_server = pytest.mark.parametrize("optimizer", ["average", "momentum", "adam", "yogi"])
few = settings(max_examples=5, deadline=None)
some_widths = st.lists(st.floats(0.05, 1), min_size=3, max_size=4).map(lambda widths: [1.0, *widths])


@every_model
@pytest.mark.parametrize("name", METHODS)
def test_1_full_is_fedavg(name: str, model: str) -> None:
    """At capacity 1 with every extra off, one round is FedAvg's, bit for bit."""
    full = [1.0] * 4
    world = World(METHODS[name], model, full, METHODS[name].NEUTRAL)
    reference = World(METHODS["fedavg"], model, full)
    world.round()
    reference.round()
    assert same_bits(world.method.state, reference.method.state)


@small_models
@pytest.mark.parametrize("weights", ["even", "examples"])
def test_1_fedavg_is_the_mean_of_its_clients(model: str, weights: str) -> None:
    """FedAvg itself against the plain formula, so that law 1 stands on something."""
    world = World(METHODS["fedavg"], model, [1.0] * 3, server=ServerOptions(weights=weights))
    start = world.method.state
    results = world.round()
    a = [float(update.examples) if weights == "examples" else 1.0 for _, update in results]
    for name, tensor in world.method.state.items():
        values = [update.payload["model"][name] for _, update in results]
        if tensor.is_floating_point():
            mean = sum(w * v.double() for w, v in zip(a, values, strict=True)) / sum(a)
            torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)
            assert not torch.equal(tensor, start[name]) or "bias" in name
        else:
            assert torch.equal(tensor, torch.stack(values).amax(dim=0))


@every_method
@every_model
def test_2_untouched_stays(form: str, model: str) -> None:
    """A coordinate that no accepted client held keeps its value, bitwise."""
    world = formed(form, model, MIXED)
    before = world.method.state
    results = world.train(world.plan())[-1:]  # the smallest client's update alone is accepted
    world.method.merge(1, results)
    masks = held(world, [assignment for assignment, _ in results])
    for name, tensor in world.method.state.items():
        assert torch.equal(tensor[~masks[name]], before[name][~masks[name]]), name


@every_server
def test_2_server_optimizers_step_only_where_held(optimizer: str) -> None:
    """Their own state too changes only there; a class's row counts as not held where the label is missing."""
    world = formed("heterofl", "cnn-group", MIXED, server=ServerOptions(optimizer=optimizer, lr=0.1))
    world.round(1)
    before, moments = world.method.state, dict(world.method.optimizer.moments)
    results = world.train(world.plan(2))[-1:]
    world.method.merge(2, results)
    masks = held(world, [assignment for assignment, _ in results])
    assert any((~mask).any() for mask in masks.values())
    for name in world.method.supernet.parameters:
        assert torch.equal(world.method.state[name][~masks[name]], before[name][~masks[name]])
        assert not torch.equal(world.method.state[name], before[name])
        for key, old in moments.items():
            if key.endswith(f"/{name}"):
                assert torch.equal(world.method.optimizer.moments[key][~masks[name]], old[~masks[name]])


@every_method
@small_models
@few
@given(widths=some_widths)
def test_3_extract_then_merge_changes_nothing(form: str, model: str, widths: list[float]) -> None:
    world = formed(form, model, widths)
    before = world.method.state
    results = world.train(world.plan())
    untrained = [
        (
            assignment,
            replace(
                update,
                payload={
                    kind: values if kind == "model" else {n: torch.zeros_like(v) for n, v in values.items()}
                    for kind, values in assignment.gathered().payload.items()
                },
            ),
        )
        for assignment, update in results
    ]
    world.method.merge(1, untrained)
    assert same_bits(world.method.state, before)


@every_method
@small_models
@few
@given(widths=some_widths, t=st.integers(1, 40))
def test_4_budget(form: str, model: str, widths: list[float], t: int) -> None:
    """A client trains and uploads no more channels of any group, and no more coordinates, than it may."""
    world = formed(form, model, widths)
    for assignment in world.plan(t):
        width = world.cards[assignment.client].width
        supernet = world.method.supernet
        allowed = supernet.channels(width)
        kept = assignment.submodel.kept  # type: ignore[attr-defined]
        assert all(kept[group.atom] <= allowed[group.index] for group in supernet.groups)
        assert assignment.submodel.size <= supernet.prefix(width).size
        for state in assignment.gathered().payload.values():
            values = [state[name] for name in supernet.parameters]
            assert sum(value.numel() for value in values) == assignment.submodel.size


@every_method
@every_model
def test_5_aligned(form: str, model: str) -> None:
    """Every submodel trains, and every member of a group kept the same channels: a marker planted in each
    channel of each member comes out at the same place in all of them."""
    world = formed(form, model, MIXED)
    world.train(world.plan(3))
    supernet = world.method.supernet
    for assignment in world.plan(3):
        submodel = assignment.submodel
        for group in supernet.groups:
            kept = submodel.keep.get(group.index, torch.arange(group.size))  # type: ignore[attr-defined]
            for name, dim in group.members:
                ids = world.method.supernet.structure.axes[name][dim]
                marks = _marks(ids, group.atom)
                shape = [-1 if d == dim else 1 for d in range(supernet.initial[name].dim())]
                full = marks.view(shape).expand(supernet.initial[name].shape)
                assert set(submodel.select(name, full).unique().tolist()) == set(kept.tolist()), name


def _marks(axis: object, atom: object) -> torch.Tensor:
    """For every entry of an axis, which channel of the atom it belongs to (the atom must make it up)."""
    from uneven.submodels.axes import ATOM, PRODUCT

    root = axis.root()  # type: ignore[attr-defined]
    if root.kind == ATOM:
        return torch.arange(root.size) if root is atom else torch.full((root.size,), -1)
    parts = [_marks(part, atom) for part in root.parts]
    if root.kind == PRODUCT:
        out = torch.full((1,), -1)
        for part in parts:
            out = torch.maximum(out[:, None], part[None]).reshape(-1)
        return out
    return torch.cat(parts)


@every_method
@every_model
def test_6_something_moves(form: str, model: str) -> None:
    world = formed(form, model, MIXED)
    before = world.method.state
    world.round()
    moved = [
        name
        for name in world.method.supernet.parameters
        if not torch.equal(world.method.state[name], before[name])
    ]
    assert len(moved) > len(world.method.supernet.parameters) / 2


@every_method
@small_models
def test_8_order_does_not_matter(form: str, model: str) -> None:
    """Another order of the updates changes the aggregate by rounding only."""
    one, other = formed(form, model, MIXED), formed(form, model, MIXED)
    results = one.train(one.plan())
    one.method.merge(1, results)
    other.method.merge(1, results[::-1])
    for name, tensor in one.method.saved().items():
        torch.testing.assert_close(tensor, other.method.saved()[name], rtol=1e-5, atol=1e-6)


@every_method
@small_models
def test_9_seeded(form: str, model: str) -> None:
    """The same seed gives the same bits; another seed gives others; the order of work changes no update."""
    runs = [formed(form, model, MIXED, seed=seed) for seed in (3, 3, 4)]
    for world in runs:
        world.round(1)
        world.round(2)
    assert same_bits(runs[0].method.saved(), runs[1].method.saved())
    assert not same_bits(runs[0].method.saved(), runs[2].method.saved())

    forward = {a.client: update for a, update in runs[0].train(runs[0].plan(3))}
    backward = {a.client: update for a, update in runs[1].train(runs[1].plan(3)[::-1])}
    assert forward.keys() == backward.keys()
    for client, update in forward.items():
        for kind, values in update.payload.items():
            assert same_bits(dict(values), dict(backward[client].payload[kind]))

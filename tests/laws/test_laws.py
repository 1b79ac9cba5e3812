"""The laws that every method must satisfy, over every method and model here and random capacities.

Law 7 (sparse means sparse) is about masks: a channel submodel has no coordinates outside. Law 10 (the gradient
named is the gradient applied) is about the methods that name one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.laws.world import METHOD_FORMS, MODELS, ONE_BY_ONE, World, formed, held, masking, same_bits, tried
from uneven.aggregation import ServerOptions
from uneven.errors import MethodError
from uneven.methods import METHODS, Client
from uneven.methods.topology import SparseMethod
from uneven.submodels import ChannelSubmodel, State
from uneven.training import TrainingOptions
from uneven.training.local import make_optimizer

MIXED = [1.0, 0.5, 0.25, 0.5]
FULL_STEP = TrainingOptions(lr=1.0, batch_size=100, steps=1, schedule="constant")
ONE_STEP = TrainingOptions(lr=0.05, batch_size=4, steps=1, schedule="constant")
SMALL_MODELS = ["mlp", "cnn-group", "cnn-batch", "cnn-none", "lstm"]
FULL_FORMS = {name: (name, method.NEUTRAL) for name, method in METHODS.items()}
every_form = pytest.mark.parametrize(("form", "model"), tried(METHOD_FORMS, MODELS))
every_form_on_small_models = pytest.mark.parametrize(
    ("form", "model"), tried(METHOD_FORMS, [*SMALL_MODELS, "resnet_tiny-exits"])
)
every_server = pytest.mark.parametrize("optimizer", ["average", "momentum", "adam", "yogi"])
few = settings(max_examples=5, deadline=None)
some_widths = st.lists(st.floats(0.05, 1), min_size=3, max_size=4).map(lambda widths: [1.0, *widths])


@pytest.mark.parametrize(("name", "model"), tried(FULL_FORMS, MODELS))
def test_1_full_is_fedavg(name: str, model: str) -> None:
    """At capacity 1 with every extra off, one round is FedAvg's, bit for bit."""
    world = World(METHODS[name], model, [1.0] * 4, METHODS[name].NEUTRAL)
    world.round()
    assert same_bits(world.method.state, averaged(model))


@cache
def averaged(model: str) -> State:
    """A model after one round of FedAvg."""
    world = World(METHODS["fedavg"], model, [1.0] * 4)
    world.round()
    return world.method.state


@pytest.mark.parametrize("model", SMALL_MODELS)
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


@every_form
def test_2_untouched_stays(form: str, model: str) -> None:
    """A coordinate that no accepted client held keeps its value, bitwise."""
    world = formed(form, model, MIXED)
    before = world.method.state
    smallest = min(world.train(world.plan()), key=lambda result: result[0].trained(result[1]).size)
    world.method.merge(1, [smallest])  # as if no other update had been accepted
    masks = held(world, [smallest])
    for name, tensor in world.method.state.items():
        assert torch.equal(tensor[~masks[name]], before[name][~masks[name]]), name


@every_server
@pytest.mark.parametrize("form", ["heterofl", "fiarse"])
def test_2_server_optimizers_step_only_where_held(form: str, optimizer: str) -> None:
    """Their own state too changes only there; a class's row counts as not held where the label is missing."""
    world = formed(form, "cnn-group", MIXED, server=ServerOptions(optimizer=optimizer, lr=0.1))
    world.round(1)
    before, moments = world.method.state, dict(world.method.optimizer.moments)
    results = world.train(world.plan(2))[-1:]
    world.method.merge(2, results)
    masks = held(world, results)
    assert any((~mask).any() for mask in masks.values())
    for name in world.method.supernet.parameters:
        assert torch.equal(world.method.state[name][~masks[name]], before[name][~masks[name]])
        assert not torch.equal(world.method.state[name], before[name])
        for key, old in moments.items():
            if key.endswith(f"/{name}"):
                assert torch.equal(world.method.optimizer.moments[key][~masks[name]], old[~masks[name]])


@every_form_on_small_models
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
                    kind: assignment.trained(update).gather(before)
                    if kind == "model"
                    else assignment.gathered().payload[kind]
                    if kind.startswith("statistics/")  # values too; all others are changes or scores
                    else {n: torch.zeros_like(v) for n, v in values.items()}
                    for kind, values in update.payload.items()
                },
            ),
        )
        for assignment, update in results
    ]
    world.method.merge(1, untrained)
    assert same_bits(world.method.state, before)


@every_form_on_small_models
@few
@given(widths=some_widths, t=st.integers(1, 40))
def test_4_budget(form: str, model: str, widths: list[float], t: int) -> None:
    """A client trains and uploads no more coordinates than it may, and no more channels of any group."""
    world = formed(form, model, widths, training=ONE_STEP)
    supernet = world.method.supernet
    for assignment, update in world.train(world.plan(t)):
        card, part = world.cards[assignment.client], assignment.trained(update)
        assert part.size <= card.size
        # A shallower network may be wider, and the best channels of all may be those of one group.
        even = getattr(world.method.options, "scope", None) != "global"
        if isinstance(part, ChannelSubmodel) and part.exit is None and even:
            allowed = supernet.channels(card.width)
            assert all(part.kept[group.atom] <= allowed[group.index] for group in supernet.groups)
        # A client that chooses its part is sent all that it chooses from.
        sent = assignment.gathered().payload if assignment.choice is None else {}
        for state in [*sent.values(), *update.payload.values()]:
            numbers = [state[name].numel() for name in supernet.parameters if name in state]
            assert sum(numbers) in (0, part.size)  # none in a set of running statistics


@every_form
def test_5_aligned(form: str, model: str) -> None:
    """Every submodel trains, and every member of a group kept the same channels: a marker planted in each
    channel of each member comes out at the same place in all of them. (A mask drops entries, not channels.)"""
    world = formed(form, model, MIXED)
    supernet = world.method.supernet
    for assignment, update in world.train(world.plan(3)):
        submodel = assignment.trained(update)
        for group in supernet.groups if isinstance(submodel, ChannelSubmodel) else ():
            kept = submodel.keep.get(group.index, torch.arange(group.size))
            for name, dim in group.members:
                if name not in supernet.reached(submodel.exit):
                    assert submodel.select(name, supernet.initial[name]).numel() == 0, name
                    continue
                ids = supernet.structure.axes[name][dim]
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


@every_form
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


SPARSE_TRAINING = {
    "sgd": TrainingOptions(lr=0.05, batch_size=4, epochs=1, momentum=0.9, weight_decay=0.1),
    "adamw": TrainingOptions(lr=0.05, batch_size=4, epochs=1, optimizer="adamw", weight_decay=0.1, clip_norm=0.1),
}


@pytest.mark.parametrize(
    "form", [form for form in masking(METHOD_FORMS) if 7 not in METHODS[METHOD_FORMS[form][0]].EXEMPT]
)
@pytest.mark.parametrize("model", SMALL_MODELS[:2])
@pytest.mark.parametrize("kind", SPARSE_TRAINING)
def test_7_sparse_means_sparse(form: str, model: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after every step weights, gradients and the optimizer's state are zero outside the mask, whatever
    the client remembers of other rounds."""
    seen: list[list[list[Tensor]]] = []  # moment, parameter, tensors

    def watched(weights: list[nn.Parameter], options: TrainingOptions, lr: float) -> torch.optim.Optimizer:
        optimizer = make_optimizer(weights, options, lr)

        def note(*_: object) -> None:
            states = ([s for s in optimizer.state[w].values() if s.shape == w.shape] for w in weights)
            now = [[w, w.grad, *state] for w, state in zip(weights, states, strict=True)]
            seen.append([[tensor.detach().clone() for tensor in tensors] for tensors in now])

        optimizer.register_step_pre_hook(note)
        optimizer.register_step_post_hook(note)
        return optimizer

    monkeypatch.setattr("uneven.training.local.make_optimizer", watched)
    world = formed(form, model, MIXED, training=SPARSE_TRAINING[kind], rounds=40)
    supernet = world.method.supernet
    weights = {name: supernet.initial[name] for name in supernet.parameters}
    world.engine.memories = {card.id: {n: torch.ones_like(w) for n, w in weights.items()} for card in world.cards}
    for assignment in world.plan(2):
        seen.clear()
        results = world.train([assignment])
        masks = held(world, results)
        given = held(world, [(a, replace(update, submodel=None)) for a, update in results])
        dropped = world.cards[assignment.client].capacity < 1 or isinstance(world.method, SparseMethod)
        assert any(not masks[name].all() for name in weights) == dropped
        assert len(seen) == 4  # two steps
        assert len(seen[-1][0]) == {"sgd": 3, "adamw": 4}[kind]
        for step, moment in enumerate(seen):
            # a client that exchanges links does so between its two steps
            now = given if assignment.exchange is not None and step < 2 else masks
            for name, tensors in zip(weights, moment, strict=True):
                assert all(not tensor[~now[name]].any() for tensor in tensors), name


@every_form_on_small_models
def test_8_order_does_not_matter(form: str, model: str) -> None:
    """Another order of the updates changes the aggregate by rounding only."""
    one, other = formed(form, model, MIXED), formed(form, model, MIXED)
    results = one.train(one.plan())
    one.method.merge(1, results)
    other.method.merge(1, results[::-1])
    for name, tensor in one.method.saved().items():
        torch.testing.assert_close(tensor, other.method.saved()[name], rtol=1e-5, atol=1e-6)


@every_form_on_small_models
def test_9_seeded(form: str, model: str) -> None:
    """The same seed gives the same bits; another seed gives others. Neither the order of work changes an update,
    nor that a new method takes up what one before it saved."""
    runs = [formed(form, model, MIXED, seed=seed) for seed in (3, 3, 4)]
    for world in runs:
        world.round(1)
        world.round(2)
    assert same_bits(runs[0].method.saved(), runs[1].method.saved())
    assert not same_bits(runs[0].method.saved(), runs[2].method.saved())

    resumed = formed(form, model, MIXED, seed=3)
    assert resumed.method.saved().keys() == runs[1].method.saved().keys()
    resumed.method.restore(runs[1].method.saved())
    resumed.engine.memories = runs[1].engine.memories
    forward = {a.client: update for a, update in runs[0].train(runs[0].plan(3))}
    backward = {a.client: update for a, update in resumed.train(resumed.plan(3)[::-1])}
    assert forward.keys() == backward.keys()
    for client, update in forward.items():
        for kind, values in update.payload.items():
            assert same_bits(dict(values), dict(backward[client].payload[kind]))


FACTORS = {1e-4: 1.5, 2e-4: 1 + 4 / 9, 3e-4: 1.375, 1e-3: 1 + 20 / 121, 0.1: 1 + 2 * 1e-5 / 0.1001**2}
"""FIARSE's factor 1 + 2 |x| theta / (|x| + theta)^2 for theta = 1e-4: 1.5 at theta, towards 1 far above it."""


@pytest.mark.parametrize(
    ("form", "kept"),
    [("fiarse", {"1.weight": 385, "3.weight": 42, "5.weight": 10}), ("fedlagc", {"3.weight": 42})],
)
def test_10_the_gradient_named_is_the_gradient_applied(form: str, kept: dict[str, int]) -> None:
    """One step of SGD against the plain gradient's, times FIARSE's factor by hand.

    At capacity 1/2 FIARSE holds 437 of the 873 weights, FedLAGC 42 of the 84 between the edges; so many of each
    tensor are given sizes at and above theta here, all others less.
    """
    world = formed(form, "mlp", [0.5] * 3, training=FULL_STEP, rounds=40)
    draws, factors = torch.Generator().manual_seed(0), {}
    state = dict(world.method.state)
    for name, k in kept.items():
        n = state[name].numel()
        sizes = torch.tensor([*FACTORS, *[0.1] * (k - len(FACTORS)), *[5e-5] * (n - k)])
        sizes = sizes[torch.randperm(n, generator=draws)].view(state[name].shape)
        factors[name] = torch.zeros_like(sizes)
        for size, factor in FACTORS.items():
            factors[name][sizes == size] = factor
        state[name] = sizes * torch.randn(sizes.shape, generator=draws).sign()
    world.method.state = state
    plain = Client(world.method.supernet, FULL_STEP, None, 40, 0)
    for assignment, update in world.train(world.plan(1)):
        part, data = assignment.submodel, world.federation.clients[assignment.client].train
        start = part.gather(state)
        straight = plain.train(assignment.gathered(), data, {})[0].payload["model"]
        for name, end in update.payload["model"].items():
            factor = part.select(name, factors.get(name, torch.ones_like(state[name])))
            step = factor * (straight[name] - start[name])
            torch.testing.assert_close(end - start[name], step, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("model", [model for model in MODELS if model.endswith("-batch")])
@pytest.mark.parametrize("form", ONE_BY_ONE)
def test_scoring_single_examples_refuses_batch_norm(form: str, model: str) -> None:
    with pytest.raises(MethodError, match="couples the examples of a batch"):
        formed(form, model, MIXED)

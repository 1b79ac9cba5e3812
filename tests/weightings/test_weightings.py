"""q-FFL and AFL: weights worked out by hand, the losses that they ask for, what they cost and keep."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

import uneven
from tests.laws.world import METHOD_FORMS, World, formed, same_bits, tried
from tests.run.helpers import tiny_data
from uneven.aggregation import ServerOptions
from uneven.engines import inspect
from uneven.errors import MethodError
from uneven.methods import METHODS, Failure
from uneven.weightings import AFL, QFFL, weighting
from uneven.weightings.afl import to_simplex

MIXED = [1.0, 0.5, 0.25, 0.5]
ASKING = {"qffl": ServerOptions(weights="qffl"), "afl": ServerOptions(weights="afl", weights_lr=0.5)}
FORMS = tried(METHOD_FORMS, ["mlp", "cnn-batch", "resnet_tiny-exits"])
losses = st.lists(st.floats(0, 10), min_size=1, max_size=6)


def test_qffl_by_hand() -> None:
    assert QFFL(2.0).weight(0, 5, 3.0) == 45
    assert QFFL(0.0).weight(0, 5, 0.0) == 5
    assert QFFL(1.0).weight(0, 5, 0.0) == 0
    assert weighting(ServerOptions(weights="qffl"), [0]).weight(0, 5, 3.0) == 15  # q = 1 by default


@pytest.mark.parametrize(
    ("loss", "size"), [(1e18, "large"), (1e300, "large"), (1e-18, "small"), (1e-200, "small")]
)
def test_qffl_out_of_range(loss: float, size: str) -> None:
    """What single precision would make infinite, or nothing."""
    with pytest.raises(
        MethodError, match=rf"server.q = 2: client 7 has a loss of 1e.*, .* power of q too {size};"
    ):
        QFFL(2.0).weight(7, 5, loss)
    assert QFFL(2.0).weight(7, 5, 1e-14) == pytest.approx(5e-28)


def test_afl_by_hand() -> None:
    """From 1/4 each, losses 1, 2, 5, eta .1, clients 2, 5, 9 of 2, 5, 7, 9, which have 3/4 together:
    .35, .45, .75 exceed it by .8, that is .8/3 each: .08333, .18333, .48333. Then 5, 0, 0 with eta .1:
    .58333, .18333, .48333, less 1/6 each: .41667, .01667, .31667."""
    afl = AFL(0.1, [2, 5, 7, 9])
    assert [afl.weight(n, 3, None) for n in (2, 5, 7, 9)] == [0.25] * 4
    afl.learn({9: 5.0, 2: 1.0, 5: 2.0})
    assert afl.state["lambda"].tolist() == pytest.approx([1 / 12, 11 / 60, 1 / 4, 29 / 60])
    afl.learn({2: 5.0, 5: 0.0, 9: 0.0})
    assert afl.state["lambda"].tolist() == pytest.approx([5 / 12, 1 / 60, 1 / 4, 19 / 60])


def test_afl_ends_in_a_corner_and_comes_back() -> None:
    """A client whose loss stays 1 above the others' has all the weight; not for ever, if theirs grow."""
    afl = AFL(0.5, [0, 1, 2])
    for _ in range(3):
        afl.learn({0: 0.0, 1: 1.0, 2: 0.0})
    assert afl.state["lambda"].tolist() == [0, 1, 0]
    afl.learn({0: 0.0, 2: 3.0})  # the two have nothing to share
    assert afl.state["lambda"].tolist() == [0, 1, 0]
    afl.learn({0: 0.0, 1: 1.0, 2: 3.0})  # .0, 1.5, 1.5: less .75 and .75, the first below 0
    assert afl.state["lambda"].tolist() == [0, 0.5, 0.5]


@given(values=losses, total=st.floats(0, 2), other=losses)
def test_the_projection_is_the_nearest_point(values: list[float], total: float, other: list[float]) -> None:
    """No point of the simplex is on the far side: (v - p) . (y - p) <= 0 for all its y (corners will do)."""
    v = torch.tensor(values, dtype=torch.float64)
    p = to_simplex(v, total)
    assert (p >= 0).all()
    assert math.isclose(p.sum(), total, abs_tol=1e-9)
    corners = total * torch.eye(len(v), dtype=torch.float64)
    assert ((corners - p) @ (v - p) <= 1e-8).all()


@pytest.mark.parametrize("weights", ASKING)
@pytest.mark.parametrize(("form", "model"), FORMS)
def test_the_loss_is_that_of_what_is_held_and_training_is_the_same(form: str, model: str, weights: str) -> None:
    """F_n against a pass over all examples at once in evaluation mode (with batch norm: only that it is there)."""
    asked, plain = formed(form, model, MIXED, server=ASKING[weights]), formed(form, model, MIXED)
    pairs = zip(asked.train(asked.plan()), plain.train(plain.plan()), strict=True)
    for (assignment, update), (_, other) in pairs:
        for kind, values in other.payload.items():
            assert same_bits(dict(values), dict(update.payload[kind]))
        assert other.start_loss is None
        assert inspect(assignment, update) is update
        assert update.start_loss is not None
        if model == "mlp":
            data, part = asked.federation.clients[update.client].train, assignment.trained(update)
            if form in ("fedhello", "feddst", "fedsgc"):  # what they do not train they held at first
                part = assignment.submodel
            network = part.network().load(part.gather(asked.method.state)).eval()
            has = torch.zeros(3).index_fill(0, data.y, 1.0) if form == "heterofl" else 1.0
            expected = cross_entropy(network(data.x) * has, data.y).item()
            assert update.start_loss == pytest.approx(expected, rel=1e-5)


def test_with_batch_norm_the_loss_is_that_of_batch_statistics() -> None:
    """As of the training pass that follows, here on all examples at once: statistics that the server has not
    filled would give another."""
    training = uneven.training.TrainingOptions(lr=0.05, batch_size=100, steps=1)
    world = formed("heterofl-plain", "cnn-batch", MIXED, server=ASKING["qffl"], training=training)
    for _, update in world.train(world.plan()):
        assert update.start_loss == pytest.approx(update.loss, rel=1e-5)


@pytest.mark.parametrize("weights", ASKING)
def test_the_average_is_by_these_weights(weights: str) -> None:
    """Two rounds against numpy's weighted mean of what the clients sent."""
    world = World(METHODS["fedavg"], "mlp", [1.0] * 3, server=ASKING[weights])
    mass = [1 / 3] * 3
    for t in (1, 2):
        results = sorted(world.round(t), key=lambda result: result[1].client)
        found = [float(update.start_loss or 0) for _, update in results]
        a = [u.examples * f for (_, u), f in zip(results, found, strict=True)] if weights == "qffl" else mass
        for name, tensor in world.method.state.items():
            values = [w * u.payload["model"][name].double() for w, (_, u) in zip(a, results, strict=True)]
            torch.testing.assert_close(tensor.double(), sum(values) / sum(a), rtol=1e-5, atol=1e-6)
        climbed = torch.tensor([m + 0.5 * f for m, f in zip(mass, found, strict=True)], dtype=torch.float64)
        mass = to_simplex(climbed, 1.0).tolist()
    assert len({round(m, 3) for m in mass}) == 3


@pytest.mark.parametrize(("form", "model"), [("heterofl", "cnn-batch"), ("fjord", "cnn-batch"), ("fiarse", "mlp")])
def test_q_0_is_by_examples(form: str, model: str) -> None:
    worlds = [
        formed(form, model, MIXED, server=ServerOptions(weights="qffl", q=0.0)),
        formed(form, model, MIXED, server=ServerOptions(weights="examples")),
    ]
    for world in worlds:
        world.round(1)
        world.round(2)
    assert same_bits(worlds[0].method.saved(), worlds[1].method.saved())


def test_afl_goes_on_where_it_was_stopped() -> None:
    straight, stopped, fresh = (formed("heterofl", "mlp", MIXED, server=ASKING["afl"]) for _ in range(3))
    for world in (straight, stopped):
        world.round(1)
        world.round(2)
    assert len(set(stopped.method.saved()["weighting/lambda"].tolist())) == 4
    fresh.method.restore(stopped.method.saved())
    for world in (straight, fresh):
        world.round(3)
    assert same_bits(straight.method.saved(), fresh.method.saved())


def test_a_round_without_weight_changes_nothing() -> None:
    world = formed("heterofl", "cnn-batch", MIXED, server=ASKING["afl"])
    world.method.weighting.state = {"lambda": torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)}
    before = world.method.saved()
    results = world.train(world.method.plan(1, world.cards[1:]))
    world.method.merge(1, results)
    assert same_bits(world.method.saved(), before)


@pytest.mark.parametrize("start", [None, math.nan, math.inf, -0.5])
def test_an_update_without_a_good_loss_is_refused(start: float | None) -> None:
    world = formed("heterofl", "mlp", MIXED, server=ASKING["qffl"])
    assignment, update = world.train(world.plan())[0]
    refused = inspect(assignment, replace(update, start_loss=start))
    assert isinstance(refused, Failure)
    assert f"a loss at the start of {start}" in refused.reason


def test_what_it_costs() -> None:
    """A forward pass of 64*8 + 8*3 multiply-accumulates for each of the 90 examples' training shares, once."""
    run: dict[str, Any] = {
        "rounds": 1,
        "cohort": 1.0,
        "clients": {"count": 6, "capacities": 1},
        "model": {"name": "mlp", "hidden": [8]},
        "data": {"source": tiny_data(), "shape": [1, 8, 8]},
        "training": {"epochs": 1},
    }
    plain, asked = (uneven.run(run, server={"weights": weights}) for weights in ("examples", "qffl"))
    assert plain["scoring_macs"] == 0
    assert asked["macs"] == plain["macs"] > 0
    assert 3 * asked["scoring_macs"] == asked["macs"]  # of one epoch: forward and back

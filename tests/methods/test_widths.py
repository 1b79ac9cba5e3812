"""FjORD and slimmable networks against values worked out by hand, and their refusals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.laws.world import INFO, MODELS, World, federation, same_bits, supernet
from uneven.data import Examples, Info
from uneven.errors import MethodError
from uneven.evaluation import evaluate
from uneven.methods import METHODS
from uneven.methods.nested import NestedNetwork, NestedOptions, up_to
from uneven.submodels import State
from uneven.training import TrainingOptions, train_locally

MIXED = [1.0, 0.5, 0.25, 0.5]
ONE_STEP = TrainingOptions(lr=0.1, batch_size=100, steps=1, schedule="constant")


def two_linear(info: Info) -> nn.Module:
    """64 inputs, 4 hidden units and no nonlinearity, 3 classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, info.num_classes))


class Joined(nn.Module):
    """A batch norm over two convolutions laid end to end: its channels at width 1/2 are 0, 1 and 4, 5 of 8."""

    def __init__(self, info: Info) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 4, 3), nn.Conv2d(1, 4, 3)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, info.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        joined: Tensor = self.norm(torch.cat([self.one(x), self.two(x)], 1))
        return self.head(torch.relu(joined).mean((2, 3)))


OWN: dict[str, Any] = {
    "two-linear": (two_linear, {}),
    "joined": (Joined, {}),
}


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models of this file among those of the small world."""
    for name, model in OWN.items():
        monkeypatch.setitem(MODELS, name, model)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def world_of(method: str, model: str, widths: list[float], training: Any = ONE_STEP, **options: Any) -> World:
    return World(METHODS[method], model, widths, options, training=training)


def by_hand(state: State, data: Examples, terms: dict[float, str]) -> tuple[State, float]:
    """The gradient of a sum of cross-entropies of a two-layer linear net at several widths, and the sum.

    ``terms``: width -> ``labels``, or ``full`` for the full net's predictions.
    """
    x, n = data.x.flatten(1), len(data)
    w1, b1, w2, b2 = (state[name] for name in ("1.weight", "1.bias", "2.weight", "2.bias"))
    labels = nn.functional.one_hot(data.y, 3).float()
    full = torch.softmax((x @ w1.T + b1) @ w2.T + b2, 1)
    g = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    total = 0.0
    for width, goal in terms.items():
        k, target = int(4 * width), labels if goal == "labels" else full
        hidden = x @ w1[:k].T + b1[:k]
        p = torch.softmax(hidden @ w2[:, :k].T + b2, 1)
        total -= (target * p.log()).sum().item() / n
        error = (p - target) / n
        g["2.weight"][:, :k] += error.T @ hidden
        g["2.bias"] += error.sum(0)
        back = error @ w2[:, :k]
        g["1.weight"][:k] += back.T @ x
        g["1.bias"][:k] += back.sum(0)
    return g, total


def assert_step(world: World, t: int, client: int, terms: dict[float, str]) -> None:
    """One full-batch step of 0.1 along the gradient by hand, and the loss reported."""
    start = world.method.state
    update = next(u for a, u in world.train(world.plan(t)) if a.client == client)
    g, total = by_hand(start, federation(len(world.cards)).clients[client].train, terms)
    for name, end in update.payload["model"].items():
        close(end, world.method.submodel(t, world.cards[client]).select(name, start[name] - 0.1 * g[name]))
    assert update.loss == pytest.approx(total, rel=1e-5)


def round_that_draws(world: World, client: int, steps: list[list[float]]) -> int:
    """The first round in which a client's steps are these."""
    method: Any = world.method
    return next(t for t in range(1, 99) if method.steps(t, world.cards[client]) == steps)


class TestFjORD:
    def test_widths_are_drawn_uniformly_from_those_up_to_the_own(self) -> None:
        """Of 3,000 draws each of three widths has a fair share of 1,000, standard deviation 26."""
        options = METHODS["fjord"].Options(draw=True)
        assert isinstance(options, NestedOptions)
        draws = options.steps([0.25, 0.5, 1.0], 3000, (0, 1, 0))
        counts = {width: draws.count([width]) for width in (0.25, 0.5, 1.0)}
        assert sum(counts.values()) == 3000
        assert all(abs(count - 1000) < 130 for count in counts.values())
        assert draws == options.steps([0.25, 0.5, 1.0], 3000, (0, 1, 0))
        others = [options.steps([0.25, 0.5, 1.0], 3000, key) for key in ((1, 1, 0), (0, 2, 0), (0, 1, 1))]
        assert all(draws != other for other in others)
        method: Any = world_of("fjord", "mlp", MIXED, TrainingOptions(steps=50)).method
        drawn = [{w for step in method.steps(1, card) for w in step} for card in method.context.clients]
        assert drawn == [{0.25, 0.5, 1.0}, {0.25, 0.5}, {0.25}, {0.25, 0.5}]

    @pytest.mark.parametrize("width", [0.25, 0.5, 1.0])
    def test_a_batch_touches_only_the_prefix_of_its_width(self, width: float) -> None:
        world = world_of("fjord", "cnn-group", [1.0, 0.25, 0.5])
        t = round_that_draws(world, 0, [[width]])
        update = next(u for a, u in world.train(world.plan(t)) if a.client == 0)
        start, prefix = world.method.state, world.method.supernet.prefix(width)
        network = prefix.network().load(prefix.gather(start)).train()
        data = federation(3).clients[0].train
        nn.functional.cross_entropy(network(data.x), data.y).backward()
        for name, end in update.payload["model"].items():
            grad, inside = network.weights()[name].grad, torch.zeros_like(end)
            assert grad is not None
            prefix.add(name, inside, torch.ones_like(grad))
            assert torch.equal(end[inside == 0], start[name][inside == 0])
            close(prefix.select(name, end), prefix.select(name, start[name]) - 0.1 * grad)

    def test_one_step_by_hand(self) -> None:
        world = world_of("fjord", "two-linear", [1.0, 0.5])
        for width in (0.5, 1.0):
            assert_step(world, round_that_draws(world, 0, [[width]]), 0, {width: "labels"})

    def test_distillation_by_hand(self) -> None:
        """CE(F_max, y) + CE(F_p, softmax(F_max)), the teacher without a gradient of the second."""
        world = world_of("fjord", "two-linear", [1.0, 0.5], distillation=True)
        assert_step(world, round_that_draws(world, 0, [[1.0, 0.5]]), 0, {1.0: "labels", 0.5: "full"})
        assert_step(world, round_that_draws(world, 0, [[1.0]]), 0, {1.0: "labels"})
        assert_step(world, 1, 1, {0.5: "labels"})

    def test_without_draws_a_client_trains_its_own_width(self) -> None:
        world = world_of("fjord", "two-linear", [1.0, 0.5], draw=False)
        for t in range(1, 5):
            assert_step(world, t, 0, {1.0: "labels"})
            assert_step(world, t, 1, {0.5: "labels"})

    @pytest.mark.parametrize(
        ("widths", "options", "message"),
        [
            ([1.0, 1.0], {"draw": True}, "method.draw = true: has no effect"),
            ([1.0, 1.0], {"distillation": True}, "method.distillation = true: has no effect"),
            (MIXED, {"distillation": True, "draw": False}, "method.distillation = true: has no effect"),
            (MIXED, {"ladder": (0.75,), "draw": False}, r"method.ladder = \[0.75\]: has no effect"),
            ([0.5, 0.25], {"ladder": (0.75,)}, "0.75 has no effect, it is wider than every client"),
            (MIXED, {"ladder": (0.24,)}, "0.24 has no effect, it comes to the channels of 0.25"),
        ],
    )
    def test_options_without_effect_are_refused(
        self, widths: list[float], options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(MethodError, match=message):
            world_of("fjord", "mlp", widths, **options)

    def test_multiply_accumulates_are_those_of_the_widths_drawn(self) -> None:
        world = world_of("fjord", "mlp", MIXED, TrainingOptions(steps=7), distillation=True)
        for assignment, update in world.train(world.plan(1)):
            steps = world.method.steps(1, world.cards[assignment.client])  # type: ignore[attr-defined]
            layers = [(math.ceil(12 * w), math.ceil(7 * w)) for step in steps for w in step]
            total = sum(64 * one + one * two + two * 3 for one, two in layers)
            assert world.method.macs(assignment, update) == pytest.approx(total / 7)


class TestLadder:
    def test_is_the_widths_of_the_clients_and_more(self) -> None:
        """Of two widths that come to the same channels there is one: of 12 and 7, 0.25 and 0.24 keep 3 and 2."""
        assert world_of("fjord", "mlp", MIXED).method.options.ladder == (0.25, 0.5, 1.0)
        assert world_of("fjord", "mlp", [1.0, 0.24, 0.25], ladder=[0.25]).method.options.ladder == (0.24, 1.0)
        assert world_of("slimmable", "mlp", [1.0], ladder=[0.75, 0.1]).method.options.ladder == (0.1, 0.75, 1.0)

    @pytest.mark.parametrize("widths", [MIXED, [1.0], [0.24, 0.25, 0.5]])
    @pytest.mark.parametrize("method", ["fedbrb", "fjord", "slimmable"])
    def test_options_as_resolved_are_options(self, method: str, widths: list[float]) -> None:
        """A run writes them down, and they can be run again."""
        once = world_of(method, "cnn-batch", widths).method.options
        assert world_of(method, "cnn-batch", widths, **once.model_dump()).method.options == once

    @pytest.mark.parametrize("own", [1.0, 0.5])
    @pytest.mark.parametrize("model", ["mlp", "cnn-batch", "resnet_tiny-group", "joined"])
    def test_narrower_networks_inside_compute_what_prefixes_do(self, model: str, own: float) -> None:
        net = supernet(model)
        outer = net.prefix(own)
        nested = NestedNetwork(net, [0.25, 0.5, 1.0][: 2 + (own == 1)], {}).load(outer.gather(net.initial)).train()
        x = federation(3).clients[0].train.x
        for width in (own, 0.25):
            prefix = net.prefix(width)
            plain = prefix.network()
            inside = nested.at(width, x).detach()
            values = nested.values()
            assert torch.equal(inside, plain.load(prefix.gather(net.initial)).train()(x))
            nested.load(outer.gather(net.initial))
            assert values.keys() == net.initial.keys()

    def test_up_to_is_a_prefix_of_the_ladder(self) -> None:
        net = supernet("mlp")
        assert up_to([0.25, 0.5, 1.0], net.prefix(0.5)) == [0.25, 0.5]
        assert up_to([0.25, 0.5, 1.0], net.prefix(0.24)) == [0.25]


class TestStatistics:
    MEAN = "0.1.running_mean"  # of the norm behind cnn's first convolution, 32 channels

    def test_a_batch_moves_those_of_its_width_alone(self) -> None:
        """One full-batch step: a tenth of the mean of the convolution's output goes in, in the prefix's channels.
        Only the set of the width drawn travels."""
        world = world_of("fjord", "cnn-batch", [1.0, 0.25, 0.5])
        t = round_that_draws(world, 0, [[0.25]])
        assignment, update = next(r for r in world.train(world.plan(t)) if r[0].client == 0)
        assert assignment.payload.keys() == update.payload.keys() == {"model", "statistics/0.25"}
        x, start = federation(3).clients[0].train.x, world.method.state
        mean = nn.functional.conv2d(x, start["0.0.weight"][:8], padding=2).mean((0, 2, 3))
        sent = update.payload["statistics/0.25"][self.MEAN]
        close(sent[:8], 0.1 * mean)
        assert torch.equal(sent[8:], torch.zeros(24))
        assert torch.equal(update.payload["model"][self.MEAN], start[self.MEAN])

    def test_channels_that_are_not_side_by_side(self) -> None:
        """At width 1/2 channels 0, 1 and 4, 5 of the joined norm run; the others keep their statistics."""
        world = world_of("fjord", "joined", [1.0, 0.5])
        t = round_that_draws(world, 0, [[0.5]])
        update = next(u for a, u in world.train(world.plan(t)) if a.client == 0)
        x, start = federation(2).clients[0].train.x, world.method.state
        means = [nn.functional.conv2d(x, start[f"{c}.weight"], start[f"{c}.bias"]) for c in ("one", "two")]
        expected = 0.1 * torch.cat(means, 1).mean((0, 2, 3))
        expected[[2, 3, 6, 7]] = 0
        close(update.payload["statistics/0.5"]["norm.running_mean"], expected)

    @pytest.mark.parametrize("method", ["fjord", "slimmable"])
    def test_are_averaged_over_the_clients_that_trained_at_the_width(self, method: str) -> None:
        world = world_of(method, "cnn-batch", MIXED)
        before: dict[str, State] = world.method.statistics  # type: ignore[attr-defined]
        results = world.round(1)
        after: dict[str, State] = world.method.statistics  # type: ignore[attr-defined]
        for width in (0.25, 0.5, 1.0):
            kind = f"statistics/{width}"
            sent = [(a, u.payload[kind][self.MEAN]) for a, u in results if kind in u.payload]
            own = world.method.supernet.prefix(width)
            now = own.select(self.MEAN, after[kind][self.MEAN])
            if sent:
                close(now, sum(values[: len(now)] for _, values in sent) / len(sent))
                assert not torch.equal(now, own.select(self.MEAN, before[kind][self.MEAN]))
            else:
                assert same_bits(after[kind], before[kind])
        holders = [len([1 for _, u in results if f"statistics/{w}" in u.payload]) for w in (0.25, 0.5, 1.0)]
        assert holders == [4, 3, 1] if method == "slimmable" else sum(holders) == 4
        full = world.method.state[self.MEAN]
        assert torch.equal(full, after["statistics/1.0"][self.MEAN])

    def test_are_what_a_width_is_evaluated_with(self) -> None:
        """Nothing is recalibrated; a width that nobody holds is not evaluated."""
        world = world_of("slimmable", "cnn-batch", [0.5, 0.25])
        world.round(1)
        method: Any = world.method
        assert not method.recalibrates
        for width, card in ((0.5, world.cards[0]), (0.25, world.cards[1])):
            part = method.evaluation_submodel(card, 1)
            own = method.statistics[f"statistics/{width}"][self.MEAN]
            assert torch.equal(method.values(part)[self.MEAN], part.select(self.MEAN, own))
        assert not torch.equal(*(method.statistics[f"statistics/{w}"][self.MEAN][:8] for w in (0.5, 0.25)))
        found = evaluate(method, world.federation, world.cards, 1)
        assert found.recalibration.macs == 0
        assert found.full == found.by_capacity[0.5]
        network = method.supernet.prefix(0.25).network().load(method.values(method.supernet.prefix(0.25))).eval()
        test = world.federation.test
        loss = nn.functional.cross_entropy(network(test.x), test.y).item()
        assert found.by_capacity[0.25].loss == pytest.approx(loss, rel=1e-5)

    @pytest.mark.parametrize("method", ["fjord", "slimmable"])
    def test_are_saved_and_restored(self, method: str) -> None:
        one, other = (world_of(method, "cnn-batch", MIXED) for _ in range(2))
        one.round(1)
        other.method.restore(one.method.saved())
        one.round(2)
        other.round(2)
        assert same_bits(one.method.saved(), other.method.saved())
        assert sum(name.startswith("statistics/") for name in one.method.saved()) == 3 * 4


class TestSlimmable:
    def test_one_step_by_hand(self) -> None:
        """The sum of the gradients of all widths up to the client's own."""
        world = world_of("slimmable", "two-linear", [1.0, 0.5, 0.25])
        assert_step(world, 1, 0, {1.0: "labels", 0.5: "labels", 0.25: "labels"})
        assert_step(world, 1, 1, {0.5: "labels", 0.25: "labels"})
        assert_step(world, 1, 2, {0.25: "labels"})

    def test_a_ladder_for_clients_of_one_width(self) -> None:
        world = world_of("slimmable", "two-linear", [1.0, 1.0], ladder=[0.5])
        assert_step(world, 1, 0, {1.0: "labels", 0.5: "labels"})

    def test_recalibrated_statistics_do_not_travel(self) -> None:
        world = world_of("slimmable", "cnn-batch", MIXED, statistics="recalibrated")
        assert world.method.recalibrates
        assert {kind for a in world.plan() for kind in a.payload} == {"model"}
        world.round(1)
        assert evaluate(world.method, world.federation, world.cards, 1).recalibration.macs > 0
        assert world_of("slimmable", "cnn-batch", MIXED).method.options.statistics == "switchable"

    @pytest.mark.parametrize("statistics", ["switchable", "recalibrated"])
    def test_statistics_of_a_model_without_batch_norm_are_refused(self, statistics: str) -> None:
        with pytest.raises(MethodError, match=f"'{statistics}': has no effect"):
            world_of("slimmable", "cnn-group", MIXED, statistics=statistics)
        assert world_of("slimmable", "cnn-group", MIXED).method.options.statistics is None

    def test_multiply_accumulates_are_those_of_all_widths(self) -> None:
        world = world_of("slimmable", "two-linear", [1.0, 0.5, 0.25])
        macs = {a.client: world.method.macs(a, u) for a, u in world.train(world.plan())}
        assert macs == {0: 7 * (64 + 3), 1: 3 * (64 + 3), 2: 64 + 3}


def test_a_step_differentiates_each_term_before_the_next_is_made() -> None:
    """So that the activations of one are in memory; the step is along the sum."""
    net = supernet("two-linear")
    network = net.prefix(1.0).network().load(net.initial)
    seen: list[float] = []

    def terms(x: Tensor, y: Tensor) -> Iterator[Tensor]:
        bias = network.weights()["2.bias"]
        for factor in (1.0, 2.0):
            seen.append(0.0 if bias.grad is None else float(bias.grad[0]))
            yield factor * bias[0]

    data = Examples(torch.zeros(1, *INFO.input_shape), torch.zeros(1, dtype=torch.int64))
    start = float(net.initial["2.bias"][0])
    report = train_locally(network, data, ONE_STEP, 0.1, torch.Generator(), terms)
    assert seen == [0.0, 1.0]
    assert report.loss == pytest.approx(3 * start)
    assert network.values()["2.bias"][0].item() == pytest.approx(start - 0.3)

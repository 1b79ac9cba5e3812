"""FedBRB, FjORD and slimmable networks against values worked out by hand, and their refusals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.laws.world import INFO, MODELS, World, federation, same_bits, supernet
from uneven.coverage import coverage
from uneven.data import Examples, Info
from uneven.errors import MethodError
from uneven.evaluation import evaluate
from uneven.methods import METHODS, ClientCard, Context
from uneven.methods.blocks import cut
from uneven.methods.fedbrb import blocks_of, colours
from uneven.methods.nested import NestedNetwork, NestedOptions, up_to
from uneven.submodels import State, Supernet
from uneven.submodels.axes import Axis, concat, fixed, product
from uneven.submodels.groups import Group
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
    "square": ("mlp", {"hidden": [16, 16]}),
    "blocks": ("mlp", {"hidden": [8, 4]}),
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


class TestFedBRB:
    def kept(self, world: World, t: int, client: int) -> list[list[int]]:
        submodel = world.method.submodel(t, world.cards[client])
        return [submodel.keep[g.index].tolist() for g in world.method.supernet.groups]  # type: ignore[attr-defined]

    def test_windows_by_hand(self) -> None:
        """Groups of 12 and 7 of colours 0 and 1. Width 1/4: R = 4, 3 and 2 channels from floor(12 u / 4) and
        floor(7 v / 4) on. Width 0.3: R = 4 too, 4 and 3 channels, and the last windows wrap."""
        world = world_of("fedbrb", "mlp", [1.0, 0.25, 0.3, 0.5])
        assert self.kept(world, 1, 1) == [[0, 1, 2], [0, 1]]
        assert self.kept(world, 2, 1) == [[3, 4, 5], [0, 1]]
        assert self.kept(world, 6, 1) == [[3, 4, 5], [1, 2]]
        assert self.kept(world, 16, 1) == [[9, 10, 11], [5, 6]]
        assert self.kept(world, 17, 1) == self.kept(world, 1, 1)
        assert self.kept(world, 16, 2) == [[0, 9, 10, 11], [0, 5, 6]]
        assert self.kept(world, 4, 3) == [[6, 7, 8, 9, 10, 11], [3, 4, 5, 6]]
        evaluated = world.method.evaluation_submodel(world.cards[1], 6)
        assert [k.tolist() for k in evaluated.keep.values()] == [[3, 4, 5], [1, 2]]  # type: ignore[attr-defined]

    def test_three_colours_where_three_groups_meet(self) -> None:
        """In a residual network a block that changes the stream ties both streams and its inside: a triangle."""
        net = supernet("resnet_tiny-group")
        chosen = colours(net)
        assert sorted(set(chosen.values())) == [0, 1, 2]
        for one, other in combinations(net.groups, 2):
            meet = any(a[0] == b[0] and a[1] != b[1] for a in one.members for b in other.members)
            assert not meet or chosen[one.index] != chosen[other.index]

    @settings(max_examples=15, deadline=None)
    @given(width=st.floats(0.08, 1))
    def test_every_pair_of_channels_is_trained_in_r_squared_rounds(self, width: float) -> None:
        world = world_of("fedbrb", "mlp", [width], blend=0.0)
        assert coverage(world.method, world.cards, blocks_of(width) ** 2).never == 0

    @pytest.mark.parametrize("width", [0.5, 0.3])
    def test_three_colours_cover_a_residual_network(self, width: float) -> None:
        world = world_of("fedbrb", "resnet_tiny-group", [width])
        assert coverage(world.method, world.cards, blocks_of(width) ** 2).never == 0

    def test_what_fedrolex_and_fedbrb_never_train_of_a_square(self) -> None:
        """16 x 16 at width 1/4. FedRolex's windows of 4 start at the same channel on both axes: entry (i, j) is
        trained if i and j are less than 4 apart around the circle, 7 of 16 columns in each row. FedBRB trains
        one of 16 blocks each round, always another."""
        worlds = {name: world_of(name, "square", [0.25]) for name in ("fedrolex", "fedbrb")}

        def never(name: str, rounds: int) -> float:
            counts = coverage(worlds[name].method, worlds[name].cards, rounds).counts["3.weight"]
            return (counts == 0).double().mean().item()

        assert never("fedrolex", 16) == never("fedrolex", 48) == 9 / 16
        assert [never("fedbrb", n) for n in (1, 4, 15, 16)] == [15 / 16, 12 / 16, 1 / 16, 0]

    def test_what_cannot_be_covered_is_measured(self) -> None:
        """Four groups that all meet have three colours, so one of six 8 x 8 tensors only sees equal offsets, half
        of its blocks at R = 2; so does the tensor that a group is on both axes of."""

        class Four(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = nn.ModuleList(nn.Linear(2, 8) for _ in range(4))
                self.pairs = nn.ModuleDict({f"{i}{j}": nn.Linear(8, 8) for i, j in combinations(range(4), 2)})
                self.again, self.last = nn.Linear(8, 8), nn.Linear(8, 2)

            def forward(self, x: Tensor) -> Tensor:
                h = [torch.relu(layer(x)) for layer in self.first]
                for i, j in combinations(range(4), 2):
                    h[j] = torch.relu(h[j] + self.pairs[f"{i}{j}"](h[i]))
                last: Tensor = self.last(h[3] + self.again(h[3]))
                return last

        net = Supernet(Four(), torch.zeros(2))
        card = ClientCard(0, 5, torch.ones(2), 0.5, 0.5, net.prefix(0.5).size)
        method = METHODS["fedbrb"](Context(net, [card], 9, 0), METHODS["fedbrb"].Options())
        counts = coverage(method, [card], 4).counts
        never = {name: (count == 0).double().mean().item() for name, count in counts.items()}
        missed = {name: share for name, share in never.items() if share}
        assert missed.pop("again.weight") == 0.5
        assert len(missed) == 1
        assert missed.popitem()[1] == 0.5

    def test_an_axis_is_cut_by_hand(self) -> None:
        """4 channels of 2 pixels in 2 blocks; queries, keys and values of 2 channels each; 3 channels in 2."""

        def group(size: int) -> Group:
            return Group(0, "", size, (), Axis(size))

        channels = group(4)
        pixels = cut(product([channels.atom, fixed(2)]), [channels], 2)
        assert pixels.block.tolist() == [0] * 4 + [1] * 4
        assert pixels.place.tolist() == [0, 1, 2, 3] * 2
        heads = cut(product([fixed(2), channels.atom]), [channels], 2)
        assert heads.block.tolist() == [0, 0, 1, 1] * 2
        assert heads.place.tolist() == [0, 2, 0, 2, 1, 3, 1, 3]
        parts = [group(2) for _ in range(3)]
        joined = cut(concat([part.atom for part in parts]), parts, 2)
        assert len(set(joined.block.tolist())) == 6
        assert (joined.place[::2] == joined.place[1::2]).all()
        assert len(set(joined.place.tolist())) == 3
        three = group(3)
        uneven = cut(three.atom, [three], 2)
        assert (uneven.block.tolist(), uneven.place.tolist()) == ([0, 1, 1], [0, 0, 1])

    def after(self, world: World, t: int) -> tuple[State, State]:
        """The state after round t's merge, and after its adjustment."""
        world.method.merge(t, world.train(world.plan(t)))
        merged = world.method.state
        world.method.adjust(t)
        return merged, world.method.state

    def test_blend_by_hand(self) -> None:
        """Widths 1/2 alone, 4 hidden units and R = 2, 5 rounds. In round 1 the first two channels were trained:
        lambda = 0.1 (1 - 1/5) = 0.08 of them goes into the other two. In round 2 it is those that were trained,
        and lambda = 0.06."""
        world = world_of("fedbrb", "two-linear", [0.5, 0.5])
        for t, share, old, new in ((1, 0.08, slice(2, 4), slice(0, 2)), (2, 0.06, slice(0, 2), slice(2, 4))):
            before, after = self.after(world, t)
            for name, dim in (("1.weight", 0), ("1.bias", 0), ("2.weight", 1)):
                b, a = before[name].movedim(dim, 0), after[name].movedim(dim, 0)
                assert torch.equal(a[new], b[new])
                close(a[old], (1 - share) * b[old] + share * b[new])
            assert torch.equal(after["2.bias"], before["2.bias"])

    def test_blend_of_two_axes_and_two_capacities_by_hand(self) -> None:
        """8 and 4 hidden units in 4 blocks, those of width 1/4. In round 2 the client of width 1/2 trains channels
        4..7 x 0..1, that is blocks 2, 3 x 0, 1, and the other one 2..3 x 0, that is 1 x 0: 5 pairs of 16.
        lambda = 0.1 (1 - 2/5)."""
        world = world_of("fedbrb", "blocks", [0.5, 0.25])
        before, after = self.after(world, 2)
        b = before["3.weight"].T.reshape(4, 2, 4)  # (block, place, block of one channel)
        trained = torch.zeros(4, 4, dtype=torch.bool)
        for pair in ((2, 0), (2, 1), (3, 0), (3, 1), (1, 0)):
            trained[pair] = True
        mean = sum(b[i, :, j] for i, j in trained.nonzero().tolist()) / 5
        a = after["3.weight"].T.reshape(4, 2, 4)
        for i in range(4):
            for j in range(4):
                close(a[i, :, j], b[i, :, j] if trained[i, j] else 0.94 * b[i, :, j] + 0.06 * mean)
        first = before["1.bias"].view(4, 2)
        close(after["1.bias"].view(4, 2)[0], 0.94 * first[0] + 0.06 * first[1:].mean(0))

    def test_a_block_without_a_trained_counterpart_stays(self) -> None:
        """7 channels in 4 blocks, 0 | 1 2 | 3 4 | 5 6. In round 1 width 1/4 trains 0 and 1, and so something of two
        blocks: 3 and 5, first in theirs, get of the mean of 0 and 1; 4 and 6, second in theirs, of 2. At width
        1/7 each channel is a block."""
        world = world_of("fedbrb", "mlp", [0.25])
        before, after = self.after(world, 1)
        b, a = before["3.bias"], after["3.bias"]
        assert torch.equal(a[:3], b[:3])
        close(a[[3, 5]], 0.92 * b[[3, 5]] + 0.08 * (b[0] + b[1]) / 2)
        close(a[[4, 6]], 0.92 * b[[4, 6]] + 0.08 * b[2])
        one = world_of("fedbrb", "mlp", [1 / 7])
        before, after = self.after(one, 1)
        close(after["3.bias"][1:], 0.92 * before["3.bias"][1:] + 0.08 * before["3.bias"][0])

    @pytest.mark.parametrize(("t", "blend"), [(1, 0.0), (5, 0.5)])
    def test_no_blend_without_lambda_or_in_the_last_round(self, t: int, blend: float) -> None:
        merged, after = self.after(world_of("fedbrb", "mlp", [0.5, 0.25], blend=blend), t)
        assert same_bits(merged, after)

    def test_a_rejected_update_trains_no_block(self) -> None:
        """Of the clients of widths 1/2 and 1/4 only the narrow one's update comes in."""
        world = world_of("fedbrb", "blocks", [0.5, 0.25])
        world.method.merge(1, [r for r in world.train(world.plan()) if r[0].client == 1])
        before = world.method.state["1.bias"]
        world.method.adjust(1)
        close(world.method.state["1.bias"][2:], 0.92 * before[2:] + 0.08 * before[:2].repeat(3))

    def test_a_blend_without_effect_is_refused(self) -> None:
        with pytest.raises(MethodError, match=r"blend = 0\.2: has no effect"):
            world_of("fedbrb", "mlp", [1.0, 1.0], blend=0.2)
        assert world_of("fedbrb", "mlp", [1.0, 1.0]).method.options.blend == 0
        assert world_of("fedbrb", "mlp", MIXED).method.options.blend == 0.1


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
        assert world_of("fjord", "mlp", [1.0, 0.24, 0.25]).method.options.ladder == (0.24, 1.0)
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

"""FedBRB against values worked out by hand: windows, colours, what is covered, the blend."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.laws.world import MODELS, World, same_bits, supernet
from tests.methods.test_widths import MIXED, close, two_linear, world_of
from uneven.coverage import coverage
from uneven.errors import MethodError
from uneven.methods import METHODS, ClientCard, Context
from uneven.methods.blocks import Blocks, cut
from uneven.methods.fedbrb import blocks_of, colours
from uneven.submodels import State, Supernet
from uneven.submodels.axes import Axis, concat, fixed, product
from uneven.submodels.groups import Group

OWN = {
    "two-linear": (two_linear, {}),
    "square": ("mlp", {"hidden": [16, 16]}),
    "blocks": ("mlp", {"hidden": [8, 4]}),
}


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models of this file among those of the small world."""
    for name, model in OWN.items():
        monkeypatch.setitem(MODELS, name, model)


def kept(world: World, t: int, client: int) -> list[list[int]]:
    submodel = world.method.submodel(t, world.cards[client])
    return [submodel.keep[g.index].tolist() for g in world.method.supernet.groups]  # type: ignore[attr-defined]


def test_windows_by_hand() -> None:
    """Groups of 12 and 7 of colours 0 and 1. Width 1/4: R = 4, 3 and 2 channels from floor(12 u / 4) and
    floor(7 v / 4) on. Width 0.3: R = 4 too, 4 and 3 channels, and the last windows wrap."""
    world = world_of("fedbrb", "mlp", [1.0, 0.25, 0.3, 0.5])
    assert kept(world, 1, 1) == [[0, 1, 2], [0, 1]]
    assert kept(world, 2, 1) == [[3, 4, 5], [0, 1]]
    assert kept(world, 6, 1) == [[3, 4, 5], [1, 2]]
    assert kept(world, 16, 1) == [[9, 10, 11], [5, 6]]
    assert kept(world, 17, 1) == kept(world, 1, 1)
    assert kept(world, 16, 2) == [[0, 9, 10, 11], [0, 5, 6]]
    assert kept(world, 4, 3) == [[6, 7, 8, 9, 10, 11], [3, 4, 5, 6]]
    evaluated = world.method.evaluation_submodel(world.cards[1], 6)
    assert [k.tolist() for k in evaluated.keep.values()] == [[3, 4, 5], [1, 2]]  # type: ignore[attr-defined]


def test_three_colours_where_three_groups_meet() -> None:
    """In a residual network a block that changes the stream ties both streams and its inside: a triangle."""
    net = supernet("resnet_tiny-group")
    chosen = colours(net)
    assert sorted(set(chosen.values())) == [0, 1, 2]
    for one, other in combinations(net.groups, 2):
        meet = any(a[0] == b[0] and a[1] != b[1] for a in one.members for b in other.members)
        assert not meet or chosen[one.index] != chosen[other.index]


@settings(max_examples=15, deadline=None)
@given(width=st.floats(0.08, 1))
def test_every_pair_of_channels_is_trained_in_r_squared_rounds(width: float) -> None:
    world = world_of("fedbrb", "mlp", [width], blend=0.0)
    assert coverage(world.method, world.cards, blocks_of(width) ** 2).never == 0


@pytest.mark.parametrize("width", [0.5, 0.3])
def test_three_colours_cover_a_residual_network(width: float) -> None:
    world = world_of("fedbrb", "resnet_tiny-group", [width])
    assert coverage(world.method, world.cards, blocks_of(width) ** 2).never == 0


def test_what_fedrolex_and_fedbrb_never_train_of_a_square() -> None:
    """16 x 16 at width 1/4. FedRolex's windows of 4 start at the same channel on both axes: entry (i, j) is
    trained if i and j are less than 4 apart around the circle, 7 of 16 columns in each row. FedBRB trains
    one of 16 blocks each round, always another."""
    worlds = {name: world_of(name, "square", [0.25]) for name in ("fedrolex", "fedbrb")}

    def never(name: str, rounds: int) -> float:
        counts = coverage(worlds[name].method, worlds[name].cards, rounds).counts["3.weight"]
        return (counts == 0).double().mean().item()

    assert never("fedrolex", 16) == never("fedrolex", 48) == 9 / 16
    assert [never("fedbrb", n) for n in (1, 4, 15, 16)] == [15 / 16, 12 / 16, 1 / 16, 0]


def test_what_cannot_be_covered_is_measured() -> None:
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


def test_an_axis_is_cut_by_hand() -> None:
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


def finished(world: World, t: int) -> tuple[State, State]:
    """The state after round t's merge, and after its adjustment."""
    world.method.merge(t, world.train(world.plan(t)))
    merged = world.method.state
    world.method.adjust(t)
    return merged, world.method.state


def test_blend_by_hand() -> None:
    """Widths 1/2 alone, 4 hidden units and R = 2, 5 rounds. In round 1 the first two channels were trained:
    lambda = 0.1 (1 - 1/5) = 0.08 of them goes into the other two. In round 2 it is those that were trained,
    and lambda = 0.06."""
    world = world_of("fedbrb", "two-linear", [0.5, 0.5])
    for t, share, old, new in ((1, 0.08, slice(2, 4), slice(0, 2)), (2, 0.06, slice(0, 2), slice(2, 4))):
        before, after = finished(world, t)
        for name, dim in (("1.weight", 0), ("1.bias", 0), ("2.weight", 1)):
            b, a = before[name].movedim(dim, 0), after[name].movedim(dim, 0)
            assert torch.equal(a[new], b[new])
            close(a[old], (1 - share) * b[old] + share * b[new])
        assert torch.equal(after["2.bias"], before["2.bias"])


def test_blend_of_two_axes_and_two_capacities_by_hand() -> None:
    """8 and 4 hidden units in 4 blocks, those of width 1/4. In round 2 the client of width 1/2 trains channels
    4..7 x 0..1, that is blocks 2, 3 x 0, 1, and the other one 2..3 x 0, that is 1 x 0: 5 pairs of 16.
    lambda = 0.1 (1 - 2/5)."""
    world = world_of("fedbrb", "blocks", [0.5, 0.25])
    before, after = finished(world, 2)
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


def test_blend_of_blocks_that_differ_in_size() -> None:
    """7 channels in 4 blocks, 0 | 1 2 | 3 4 | 5 6. In round 1 width 1/4 trains 0 and 1, and so something of two
    blocks: 3 and 5, first in theirs, get of the mean of 0 and 1; 4 and 6, second in theirs, of 2. Where only 0 is
    trained, 1, 3 and 5 get of it, and no trained block has a second channel for the others."""
    world = world_of("fedbrb", "mlp", [0.25])
    before, after = finished(world, 1)
    b, a = before["3.bias"], after["3.bias"]
    assert torch.equal(a[:3], b[:3])
    close(a[[3, 5]], 0.92 * b[[3, 5]] + 0.08 * (b[0] + b[1]) / 2)
    close(a[[4, 6]], 0.92 * b[[4, 6]] + 0.08 * b[2])

    net = supernet("mlp")
    b = before["3.bias"]
    a = Blocks(net, 4).blended(before, [net.submodel({1: torch.tensor([0])})], 0.5)["3.bias"]
    close(a[[1, 3, 5]], 0.5 * b[[1, 3, 5]] + 0.5 * b[0])
    assert torch.equal(a[[0, 2, 4, 6]], b[[0, 2, 4, 6]])


@pytest.mark.parametrize(("t", "blend"), [(1, 0.0), (5, 0.5)])
def test_no_blend_without_lambda_or_in_the_last_round(t: int, blend: float) -> None:
    merged, after = finished(world_of("fedbrb", "mlp", [0.5, 0.25], blend=blend), t)
    assert same_bits(merged, after)


def test_a_rejected_update_trains_no_block() -> None:
    """Of the clients of widths 1/2 and 1/4 only the narrow one's update comes in."""
    world = world_of("fedbrb", "blocks", [0.5, 0.25])
    world.method.merge(1, [r for r in world.train(world.plan()) if r[0].client == 1])
    before = world.method.state["1.bias"]
    world.method.adjust(1)
    close(world.method.state["1.bias"][2:], 0.92 * before[2:] + 0.08 * before[:2].repeat(3))


def test_a_blend_without_effect_is_refused() -> None:
    with pytest.raises(MethodError, match=r"blend = 0\.2: has no effect"):
        world_of("fedbrb", "mlp", [1.0, 1.0], blend=0.2)
    assert world_of("fedbrb", "mlp", [1.0, 1.0]).method.options.blend == 0
    assert world_of("fedbrb", "mlp", MIXED).method.options.blend == 0.1

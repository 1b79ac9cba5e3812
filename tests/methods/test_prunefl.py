"""PruneFL by hand: what stays, what pays for its time, and what a link of a layer costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.laws.world import MODELS, supernet
from tests.methods.sparse import MEAN, NET, ONE, OTHER, client, data, gradient, made, places, plan, update, weights
from uneven.data import Info
from uneven.engines import inspect
from uneven.errors import MethodError
from uneven.methods import ClientCard, Context
from uneven.methods.prunefl import PruneFL
from uneven.models import build
from uneven.sparsity.times import time_per_link
from uneven.submodels import Supernet
from uneven.training import TrainingOptions

# The mean over 1 and 3 examples is 1 at 0, 2, 4 and 5, and at the others as in `G`.
G = {1: 1.3, 3: 0.1, 6: -2.0, 7: 1.1, 8: 0.5, 9: -0.4}
MEAN_GRADIENT = [G.get(i, 1.0) for i in range(10)]
OF_ONE = [g + 3.0 for g in MEAN_GRADIENT]
OF_OTHER = [g - 1.0 for g in MEAN_GRADIENT]


def adjusted(**options: object) -> PruneFL:
    method: PruneFL = made("prunefl", **options)
    one, other = plan(method, 2)
    everywhere = list(range(10))
    pairs = [(one, update(one, ONE, (everywhere, OF_ONE))), (other, update(other, OTHER, (everywhere, OF_OTHER)))]
    assert all(inspect(assignment, found) is found for assignment, found in pairs)
    method.merge(2, pairs)
    method.adjust(2)
    return method


@pytest.mark.parametrize(
    ("options", "topology"),
    [
        # c = 1 for all; g^2 of the kept sums to 4, their time to 4. The rest by g^2: 4 at 6, 1.69 at 1, 1.21 at 7,
        # .25 at 8, .16 at 9, .01 at 3.
        ({"time_constant": 0.0}, {6, 1}),  # 4 > 4/4, 1.69 > 8/5, 1.21 < 9.69/6
        ({"time_constant": 0.1}, {6, 1}),  # T_const = 1: 4 > 4/5, 1.69 > 8/6, 1.21 < 9.69/7
        ({}, {6, 1}),  # .1 is the default
        ({"time_constant": 1.0}, {6, 1, 7}),  # T_const = 10: 4 > 4/14, 1.69 > 8/15, 1.21 > 9.69/16, .25 < 10.9/17
        ({"time_constant": 10.0}, {6, 1, 7, 8, 9}),  # .25 > 10.9/107, .16 > 11.15/108, .01 < 11.31/109
        ({"fixed": True}, {6, 1}),  # 2 went
        ({"fixed": True, "change": 0.5}, {6, 1, 7}),  # 3 went: 0 too, the third smallest
    ],
)
def test_what_pays_for_its_time_comes(options: dict[str, object], topology: set[int]) -> None:
    """|mean| is lowest at 3 and 1, so 0, 2, 4 and 5 stay; 1 comes back by its gradient, with its weight."""
    method = adjusted(**options)
    stays = {2, 4, 5} if "change" in options else {0, 2, 4, 5}
    assert places(method) == stays | topology
    kept = {i: MEAN[i] for i in (*stays, 1)}
    assert weights(method) == pytest.approx([kept.get(i, 0.0) for i in range(10)])
    assert method.links == {"weight": len(stays | topology)}


@pytest.mark.parametrize(
    ("options", "comes"),
    [
        ({"time_constant": 0.0}, {6}),  # 4 > 0/1, 1.69 < 4/2
        ({"fixed": True}, {1, 6, 7, 8}),
    ],
)
def test_where_all_links_of_a_layer_would_go_the_largest_stays(options: dict[str, Any], comes: set[int]) -> None:
    """5 links, all of which are due. Of |mean| 4 is the largest, where g is 0; the rest by g^2: 4 at 6, 1.69 at 1,
    1.21 at 7, 1.1 at 8, .09 or less."""
    method: PruneFL = made("prunefl", density=0.5, change=1.0, **options)
    method.change_to({"weight": torch.arange(10).view(2, 5) < 5})
    slopes = [0.1, 1.3, 0.1, 0.1, 0.0, 0.2, -2.0, 1.1, 1.05, -0.3]
    pairs = [
        (a, update(a, values[:5], (list(range(10)), slopes)))
        for a, values in zip(plan(method, 2), (ONE, OTHER), strict=True)
    ]
    method.merge(2, pairs)
    method.adjust(2)
    assert places(method) == {4} | comes
    assert weights(method)[4] == MEAN[4]


def test_what_is_equal_goes_by_a_draw() -> None:
    """All of the rest are alike and there is room for 2 of 6."""
    found = set()
    for seed in range(30):
        method: PruneFL = made("prunefl", fixed=True, seed=seed)
        one, other = plan(method, 2)
        same = (list(range(10)), [1.0] * 10)
        method.merge(2, [(one, update(one, ONE, same)), (other, update(other, OTHER, same))])
        method.adjust(2)
        found |= places(method) - {0, 2, 4, 5}
    assert found == {1, 3, 6, 7, 8, 9}


def test_a_link_that_takes_longer_has_to_be_worth_more() -> None:
    """A convolution over 4 positions, 2 weights of time 4, and a linear layer, 16 of time 1; one link of the first
    and 8 of the second. Fixed, one place is free to come of each: g^2 = 3 against 3/4 of the first's."""
    net = Supernet(
        nn.Sequential(nn.Conv1d(1, 2, 1, bias=False), nn.Flatten(), nn.Linear(8, 2, bias=False)), torch.zeros(1, 4)
    )
    assert time_per_link(net) == {"0.weight": 4.0, "2.weight": 1.0}
    cards = [ClientCard(0, 2, torch.ones(2), 1.0, 1.0, 18)]
    for worth, comes in ((3.0, "2.weight"), (5.0, "0.weight")):
        options = PruneFL.Options(density=0.5, every=1, change=0.2, decay="constant", fixed=True)
        method = PruneFL(Context(net, cards, 5, 0), options)
        first, last = torch.zeros(2, 1, 1, dtype=torch.bool), torch.zeros(2, 8, dtype=torch.bool)
        first[0], last[0] = True, True
        method.change_to({"0.weight": first, "2.weight": last})
        method.state = {"0.weight": first.float(), "2.weight": last * torch.arange(1.0, 9)}
        method.begin(1)
        method._sum["0.weight"][1] = worth**0.5
        method._sum["2.weight"][1, 7] = 1.0
        mask = method.adjusted(1)
        assert int(mask["0.weight"].sum()) + int(mask["2.weight"].sum()) == 9
        assert not mask["2.weight"][0, 0]  # the smallest of 8: int(.2 * 8) = 1 goes; int(.2 * 1) = 0 of the other
        assert bool(mask["0.weight"][1]) == (comes == "0.weight")
        assert bool(mask["2.weight"][1, 7]) == (comes == "2.weight")


def test_clients_send_the_gradient_of_every_place() -> None:
    method, examples = made("prunefl"), data()
    training = TrainingOptions(lr=0.1, batch_size=10, epochs=1, schedule="constant")
    for t, due in ((1, False), (2, True), (7, False)):
        assignment = plan(method, t)[1]
        assert (assignment.growth is not None) == due
        found, _ = client(method, training).train(assignment.gathered(), examples, {})
        assert inspect(assignment, found) is found
        if due and assignment.growth is not None:
            assert assignment.growth.nbytes("weight") == 4 * 10
            end = assignment.submodel.network().load(found.payload["model"]).weights()["weight"].detach()
            answer = found.candidates["weight"].gradient
            torch.testing.assert_close(answer.view(2, 5), gradient(end, examples))


def test_fixed_has_no_time_constant() -> None:
    with pytest.raises(MethodError, match=r"time_constant = 0.5: has no effect with fixed = True"):
        made("prunefl", fixed=True, time_constant=0.5)


def test_a_checkpoint_of_another_density_is_refused_where_the_density_stays() -> None:
    other = made("prunefl", fixed=True).saved()
    other["topology/weight"] = torch.ones(2, 5, dtype=torch.bool)
    with pytest.raises(MethodError, match="it is of another density"):
        made("prunefl", fixed=True).restore(other)
    drifted = made("prunefl")
    drifted.restore(other)
    assert drifted.links == {"weight": 10}


def test_time_of_a_link() -> None:
    """Convolutions by the positions of their output, linear layers once; all together they are the model's."""
    assert time_per_link(supernet("cnn-group")) == {"0.0.weight": 64.0, "3.0.weight": 16.0, "7.weight": 1.0}
    assert time_per_link(NET) == {"weight": 1.0}
    for model in MODELS:
        net = supernet(model)
        times = time_per_link(net)
        if all(net.initial[name].is_floating_point() for name in times) and model != "lstm":
            total = sum(time * net.initial[name].numel() for name, time in times.items())
            assert total == pytest.approx(net.prefix(1.0).macs)


def test_a_table_is_read_and_a_tied_one_counts_twice() -> None:
    """6 tokens of 10 words: each row is read .6 times, and each entry multiplied 6 times where it is the last
    layer too."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.middle, self.head = nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 10, bias=False)
            self.head.weight = self.words.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.middle(self.words(x)).relu())  # type: ignore[no-any-return]

    net = Supernet(Tied(), torch.zeros(6, dtype=torch.int64))
    assert time_per_link(net) == pytest.approx({"words.weight": 6.6, "middle.weight": 6.0})


def test_the_times_of_gpt2() -> None:
    """Every linear layer by its 5 tokens, so the head, whose table of 9 words is also read; positions once.

    The graph makes a number on the way.
    """
    info = Info((5,), 9, tuple("abcdefghi"), vocab_size=9, pad_id=0, task="next_token")
    model = build("gpt2", info, {"hidden": 8, "layers": 1, "heads": 2, "positions": 5}, seed=0)
    net = Supernet(model, torch.zeros(5, dtype=torch.int64))
    times = time_per_link(net)
    tables = {name for name in times if name.endswith(("wte.weight", "wpe.weight"))}
    assert {times[name] for name in times.keys() - tables} == {5.0}
    assert sorted(times[name] for name in tables) == pytest.approx([1.0, 5 + 5 / 9])

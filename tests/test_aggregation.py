"""The overlap average and the server's optimizers against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from uneven.aggregation import OverlapAverage, ServerOptimizer, ServerOptions
from uneven.submodels import Supernet


@pytest.fixture(scope="module")
def supernet() -> Supernet:
    """Two inputs, four hidden units, two classes: one group of four."""
    return Supernet(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2, bias=False)), torch.zeros(2))


def state(first: float) -> dict[str, torch.Tensor]:
    return {
        "0.weight": torch.full((4, 2), first),
        "0.bias": torch.full((4,), first),
        "2.weight": torch.full((2, 4), first),
    }


def test_each_coordinate_is_averaged_over_those_that_held_it(supernet: Supernet) -> None:
    """Client a holds units 0, 1 with values 3; b holds unit 1 with 9; weights 1 and 3, from 1.

    Unit 0: 1 + (3-1) = 3. Unit 1: 1 + (1*(3-1) + 3*(9-1)) / 4 = 7.5. Units 2, 3: 1.
    """
    start = state(1.0)
    average = OverlapAverage(start)
    for keep, value, weight in (([0, 1], 3.0, 1.0), ([1], 9.0, 3.0)):
        submodel = supernet.submodel({0: torch.tensor(keep)})
        average.add(submodel, submodel.gather(state(value)), weight)
    new = ServerOptimizer(ServerOptions(), start, supernet.parameters).step(start, average)
    expected = torch.tensor([3.0, 7.5, 1.0, 1.0])
    assert torch.equal(new["0.bias"], expected)
    assert torch.equal(new["0.weight"], expected[:, None].expand(4, 2))
    assert torch.equal(new["2.weight"], expected.expand(2, 4))


def test_rows_that_do_not_count_are_not_held(supernet: Supernet) -> None:
    """a and b hold everything; b's class 1 does not count: class 0 is (3+9)/2, class 1 is a's 3 alone."""
    start = state(1.0)
    average = OverlapAverage(start)
    full = supernet.prefix(1.0)
    average.add(full, state(3.0), 1.0)
    average.add(full, state(9.0), 1.0, {"2.weight": torch.tensor([[1.0], [0.0]])})
    delta, held = average.result()
    assert torch.equal(delta["2.weight"], torch.tensor([[5.0] * 4, [2.0] * 4]))
    assert held["2.weight"].all()


def test_filled_coordinates_are_averaged_over_all_updates(supernet: Supernet) -> None:
    """As above, but those that did not hold a coordinate left it as it was: over the weight 4 of the round.

    Unit 0: 1 + 1*(3-1) / 4 = 1.5. Unit 1: 7.5, both held it. Units 2, 3: 1. What is not filled: 3, 7.5, 1, 1.
    """
    start = state(1.0)
    average = OverlapAverage(start, filled=["0.weight", "2.weight"])
    for keep, value, weight in (([0, 1], 3.0, 1.0), ([1], 9.0, 3.0)):
        submodel = supernet.submodel({0: torch.tensor(keep)})
        average.add(submodel, submodel.gather(state(value)), weight)
    new = ServerOptimizer(ServerOptions(), start, supernet.parameters).step(start, average)
    expected = torch.tensor([1.5, 7.5, 1.0, 1.0])
    assert torch.equal(new["0.weight"], expected[:, None].expand(4, 2))
    assert torch.equal(new["2.weight"], expected.expand(2, 4))
    assert torch.equal(new["0.bias"], torch.tensor([3.0, 7.5, 1.0, 1.0]))


def test_rows_that_do_not_count_are_left_unchanged_where_filled(supernet: Supernet) -> None:
    """Class 1 is a's 3 alone, and b's old 1: 1 + 2/2."""
    start = state(1.0)
    average = OverlapAverage(start, filled=["2.weight"])
    full = supernet.prefix(1.0)
    average.add(full, state(3.0), 1.0)
    average.add(full, state(9.0), 1.0, {"2.weight": torch.tensor([[1.0], [0.0]])})
    assert torch.equal(average.result()[0]["2.weight"], torch.tensor([[5.0] * 4, [1.0] * 4]))


@pytest.mark.parametrize("filled", [(), ("0.weight", "0.bias", "2.weight")])
@pytest.mark.parametrize("optimizer", ["average", "adam"])
def test_an_update_of_weight_0_is_of_nothing(supernet: Supernet, optimizer: str, filled: tuple[str, ...]) -> None:
    """Unit 1, which it alone holds, stays, and the optimizer's state there; where there is no other, all stays."""
    start, zero = state(1.0), supernet.submodel({0: torch.tensor([0, 1])})
    server = ServerOptimizer(ServerOptions(optimizer=optimizer), start, supernet.parameters)
    alone = OverlapAverage(start, filled)
    alone.add(zero, zero.gather(state(9.0)), 0.0)
    assert all(torch.equal(tensor, start[name]) for name, tensor in server.step(start, alone).items())
    assert not any(moment.any() for moment in server.moments.values())
    average, other = OverlapAverage(start, filled), supernet.submodel({0: torch.tensor([0])})
    average.add(zero, zero.gather(state(9.0)), 0.0)
    average.add(other, other.gather(state(3.0)), 2.0)
    assert torch.equal(average.result()[0]["0.bias"], torch.tensor([2.0, 0.0, 0.0, 0.0]))
    assert average.result()[1]["0.bias"].tolist() == [True, False, False, False]


def test_an_update_does_not_change_what_it_is_made_of(supernet: Supernet) -> None:
    start, update = state(1.0), state(3.0)
    average = OverlapAverage(start)
    average.add(supernet.prefix(1.0), update, 1.0)
    average.add(supernet.prefix(1.0), state(9.0), 1.0)
    ServerOptimizer(ServerOptions(), start, supernet.parameters).step(start, average)
    assert torch.equal(update["0.bias"], torch.full((4,), 3.0))
    assert torch.equal(start["0.bias"], torch.ones(4))


# Two steps along delta = 0.5 from 1, worked out by hand.
# momentum: m = .5, then .9*.5 + .5 = .95; x = 1 + .5 + .95.
# adam: m = .05, v = .0025, step .01*.05/(.05+.001); then m = .095, v = .004975, step .01*.095/(.0705337+.001).
# yogi: v = 0 - .01*.25*sign(0-.25) = .0025, then .0025 - .01*.25*sign(.0025-.25) = .005; m as adam's.
EXPECTED = {
    "average": 1 + 0.5 + 0.5,
    "momentum": 1 + 0.5 + 0.95,
    "adam": 1 + 0.01 * 0.05 / 0.051 + 0.01 * 0.095 / (0.004975**0.5 + 0.001),
    "yogi": 1 + 0.01 * 0.05 / 0.051 + 0.01 * 0.095 / (0.005**0.5 + 0.001),
}


@pytest.mark.parametrize("optimizer", EXPECTED)
def test_server_optimizers_by_hand(supernet: Supernet, optimizer: str) -> None:
    now = state(1.0)
    server = ServerOptimizer(ServerOptions(optimizer=optimizer), now, supernet.parameters)
    for _ in range(2):
        average = OverlapAverage(now)
        trained = {name: tensor + 0.5 for name, tensor in now.items()}
        average.add(supernet.prefix(1.0), trained, 1.0)
        now = server.step(now, average)
    assert now["0.bias"].tolist() == pytest.approx([EXPECTED[optimizer]] * 4, abs=1e-6)


def test_server_learning_rate(supernet: Supernet) -> None:
    start = state(1.0)
    average = OverlapAverage(start)
    average.add(supernet.prefix(1.0), state(3.0), 1.0)
    new = ServerOptimizer(ServerOptions(lr=0.25), start, supernet.parameters).step(start, average)
    assert torch.equal(new["0.bias"], torch.full((4,), 1.5))


def test_running_statistics_are_averaged_and_counters_take_the_maximum() -> None:
    """Whatever the server optimizer, buffers take their mean over the clients that trained the channel."""
    supernet = Supernet(
        nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 1, 1)), torch.zeros(1, 2, 2)
    )
    start = supernet.initial
    average = OverlapAverage(start)
    for keep, mean, count in (([0, 1], 4.0, 7), ([0], 2.0, 5)):
        submodel = supernet.submodel({0: torch.tensor(keep)})
        values = submodel.gather(start)
        values["1.running_mean"].fill_(mean)
        values["1.num_batches_tracked"].fill_(count)
        average.add(submodel, values, 1.0)
    new = ServerOptimizer(ServerOptions(optimizer="adam"), start, supernet.parameters).step(start, average)
    assert new["1.running_mean"].tolist() == [3.0, 4.0]
    assert new["1.num_batches_tracked"].item() == 7


@pytest.mark.parametrize(
    "dead",
    [
        {"momentum": 0.5},
        {"beta2": 0.5},
        {"optimizer": "momentum", "tau": 0.1},
        {"q": 0.0},
        {"weights": "afl", "q": 1.0},
        {"weights": "qffl", "weights_lr": 0.1},
    ],
)
def test_options_without_effect_are_refused(dead: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="has no effect"):
        ServerOptions(**dead)

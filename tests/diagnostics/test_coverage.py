"""How often coordinates were trained, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.laws.world import World
from tests.run.test_result import sections
from uneven.coverage import Coverage
from uneven.data import Examples
from uneven.diagnostics import Diagnostics, DiagnosticsOptions
from uneven.experiment import Experiment
from uneven.methods import METHODS, Assignment, Client, Update
from uneven.methods.fedrolex import FedRolex
from uneven.spec import parse
from uneven.submodels import State, Supernet
from uneven.submodels.masks import masked

# A window of two of four channels in three rounds: {0, 1}, {1, 2}, {2, 3}; 59 parameters, four clients each time.
ROLLING: dict[str, Any] = {
    "method": {"name": "fedrolex"},
    "model": {"name": "mlp", "hidden": [4, 4]},
    "clients": {"count": 4, "capacities": 0.5},
    "diagnostics": {"every": 1, "parts": ["coverage"]},
}


def measured(**changes: Any) -> list[dict[str, Any]]:
    """The coverage after each of three rounds."""
    experiment = Experiment(parse(sections(**(ROLLING | changes))))
    found = [experiment.round(t).diagnostics for t in (1, 2, 3)]
    assert all(line is not None and line.keys() == {"coverage"} for line in found)
    return [line["coverage"] for line in found if line is not None]


def test_rounds_of_fedrolex() -> None:
    """After the first: the first two rows of 5 inputs, 2 biases, a square of 4, 2 biases, 3 x 2 and 3 biases.

    After the third, in units of four clients: a hidden channel 1, 2, 2, 1 times, a pair of them as often as both
    were in a window, so 0 for the pairs two or more apart, which are 6; the biases of the output 3 times.
    """
    first, _, third = measured()
    assert first == {
        "never": pytest.approx(1 - (10 + 2 + 4 + 2 + 6 + 3) / 59),
        "min": 0,
        "median": 0,
        "max": 4,
        "starved": {},
    }
    assert third == {"never": pytest.approx(6 / 59), "min": 0, "median": 4, "max": 12, "starved": {}}


def test_only_the_rounds_asked_for_are_told_and_all_count() -> None:
    experiment = Experiment(parse(sections(**(ROLLING | {"diagnostics": {"every": 3, "parts": ["coverage"]}}))))
    told = [experiment.round(t).diagnostics for t in (1, 2, 3)]
    assert told[:2] == [None, None]
    assert told[2] == {"coverage": measured()[2]}


class LostTwice(FedRolex):
    """Client 0 fails in the second round."""

    class Client(Client):
        def train(self, assignment: Assignment, data: Examples, memory: State) -> tuple[Update, State]:
            if (assignment.client, assignment.round) == (0, 2):
                raise OSError("battery empty")
            return super().train(assignment, data, memory)


def test_a_failed_client_trained_nothing() -> None:
    """The output's biases: 4 + 3 + 4 clients."""
    first, second, third = (found["max"] for found in measured(method={"name": LostTwice}))
    assert (first, second, third) == (4, 7, 11)


def test_rows_that_do_not_count_by_label() -> None:
    """In the laws' world client n lacks class n mod 3: of four clients 0 and 3 lack class 0."""
    world = World(METHODS["heterofl"], "mlp", [1.0] * 4)
    diagnostics = Diagnostics(DiagnosticsOptions(every=1, parts=("coverage",)), world.method, world.federation)
    diagnostics.after(1, [(assignment, assignment.submodel) for assignment in world.plan()])
    counts = diagnostics.saved()
    names = sorted(world.method.supernet.classes)
    assert len(names) == 2
    for name in names:
        count = counts[f"diagnostics/coverage/{name}"]
        assert torch.equal(count, torch.tensor([2, 3, 3]).view(-1, *[1] * (count.dim() - 1)).expand_as(count))
    others = [c for n, c in counts.items() if n.removeprefix("diagnostics/coverage/") not in names]
    assert all((count == 4).all() for count in others)


def test_starved_layers() -> None:
    """Of 200 weights 1 is less than 1 %, and 2 are not; of 20 none is."""
    net = Supernet(nn.Sequential(nn.Linear(20, 10), nn.Tanh(), nn.Linear(10, 2)), torch.zeros(20))
    counts = Coverage(net)
    first = torch.zeros(200, dtype=torch.bool)
    none = torch.zeros(2, 10, dtype=torch.bool)

    def hold(position: int) -> None:
        mine = first.clone()
        mine[position] = True
        counts.add(masked(net, {"0.weight": mine.view(10, 20), "2.weight": none}))

    hold(7)
    hold(7)
    assert counts.summary()["starved"] == {"0.weight": 1 / 200, "2.weight": 0.0}
    assert counts.counts["0.weight"].view(-1)[7] == 2
    hold(8)
    found = counts.summary()
    assert found["starved"] == {"2.weight": 0.0}
    assert found["never"] == counts.never == pytest.approx((198 + 20) / (200 + 10 + 20 + 2))
    assert (found["min"], found["median"], found["max"]) == (0, 0, 3)

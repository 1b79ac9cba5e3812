"""Models that are a little unusual: frozen or unused weights, tables of numbers, infinite masks, odd outputs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uneven
from uneven.data import Info, from_tensors
from uneven.errors import ModelError
from uneven.experiment import Experiment
from uneven.spec import parse


class Odd(nn.Module):
    """A linear network with whatever is asked for."""

    def __init__(
        self, info: Info, *, frozen: bool = False, unused: bool = False, outputs: int | None = None
    ) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, outputs or info.num_classes)
        self.norm = nn.LayerNorm(8)
        self.first.weight.requires_grad_(not frozen)
        if unused:
            self.spare = nn.Linear(3, 3)
        self.register_buffer("mask", torch.tensor([0.0, -float("inf"), 0.0, 0.0]))
        self.register_buffer("positions", torch.arange(8))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.softmax(x + self.mask, dim=1)
        return self.last(torch.relu(self.norm(self.first(x)) * (self.positions + 1)))


def experiment(method: str = "heterofl", fit: str | None = None, **model: Any) -> Experiment:
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 4, generator=draws), torch.arange(60) % 3
    spec = {
        "rounds": 2,
        "cohort": 0.6,
        "data": {"source": from_tensors(x, y), "partition": "iid"},
        "clients": {"count": 6, "capacities": {"levels": [1, 0.5]}},
        "model": {"name": Odd, **model},
        "method": {"name": method} | ({"fit": fit} if fit else {}),
    }
    return Experiment(parse(spec))


FORMS = [("heterofl", None), ("fedrolex", None), ("fedprox", "exclude"), ("scaffold", "smallest")]


@pytest.mark.parametrize(("method", "fit"), FORMS)
def test_every_client_delivers(method: str, fit: str | None) -> None:
    """An infinite mask, a table of positions along the channels and an unused layer are no one's failure."""
    run = experiment(method, fit, unused=True)
    before = dict(run.method.state)
    assert run.round(1).failures == []
    for name in ("mask", "positions", "spare.weight"):
        if name in before:
            assert torch.equal(run.method.state[name], before[name])
    assert not torch.equal(run.method.state["last.weight"], before["last.weight"])


def test_a_frozen_weight_is_not_trained_nor_counted() -> None:
    free, frozen = experiment(), experiment(frozen=True)
    assert frozen.supernet.size == free.supernet.size - 4 * 8
    before = frozen.supernet.constants["first.weight"].clone()
    log = frozen.round(1)
    assert log.failures == []
    assert torch.equal(frozen.supernet.constants["first.weight"], before)
    network = frozen.supernet.prefix(1.0).network()
    assert torch.equal(network.constants["first.weight"], before)


def test_a_frozen_weight_does_not_travel() -> None:
    free, frozen = experiment().round(1), experiment(frozen=True).round(1)
    less = [a - b for a, b in zip(free.bytes_down, frozen.bytes_down, strict=True)]
    assert less == [a - b for a, b in zip(free.bytes_up, frozen.bytes_up, strict=True)]
    assert set(less) == {4 * 4 * 4, 4 * 4 * 8}  # of width 1/2, of width 1


@pytest.mark.parametrize("outputs", [2, 12])
def test_an_output_of_another_size_than_the_classes_is_refused(outputs: int) -> None:
    with pytest.raises(ModelError, match=rf"\(batch, {outputs}\).*3 classes.*\(batch, 3\)"):
        experiment(outputs=outputs)


def test_a_norm_called_twice_cannot_be_recalibrated() -> None:
    def twice(info: Info) -> nn.Module:
        norm = nn.BatchNorm1d(8)
        return nn.Sequential(nn.Linear(4, 8), norm, nn.ReLU(), norm, nn.Linear(8, info.num_classes))

    x, y = torch.randn(60, 4), torch.arange(60) % 3
    spec = {
        "rounds": 1,
        "cohort": 2,
        "clients": {"count": 4},
        "data": {"source": from_tensors(x, y), "partition": "iid"},
    }
    with pytest.raises(ModelError, match="batch norm that the model calls twice"):
        uneven.run(spec, model=twice)
    result = uneven.run(spec, model=twice, method="fedavg", clients={"count": 4, "capacities": 1})
    assert json.dumps(result["accuracy"]) != "NaN"

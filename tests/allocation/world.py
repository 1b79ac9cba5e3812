"""Clients, described by a few numbers, and models to cut, for every policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tests.laws.world import INFO
from uneven.allocation import POLICIES, Allocation, Capacities, View
from uneven.allocation.histograms import Histograms, Kind
from uneven.allocation.scale import Channels, Cost, Parameters, Scale
from uneven.models import build
from uneven.submodels import Supernet
from uneven.training import TrainingOptions

Counts = Sequence[Sequence[int]]


@lru_cache
def supernet(*hidden: int) -> Supernet:
    model = build("mlp", INFO, {"hidden": list(hidden)}, seed=0)
    return Supernet(model, torch.zeros(INFO.input_shape))


@lru_cache
def channels(cost: Cost, *hidden: int) -> Channels:
    """The widths of an MLP; what it has counted is kept."""
    return Channels(supernet(*hidden), cost, TrainingOptions())


def view(
    examples: Sequence[int],
    counts: Counts | None = None,
    *,
    hidden: tuple[int, ...] = (40,),
    attributes: Sequence[Mapping[str, float]] | None = None,
    accuracies: Sequence[Sequence[float]] | None = None,
    parameters: int | None = None,
    per_example: int = 1,
    seed: int = 0,
) -> View:
    """Clients "a", "b", ... of these sizes and label counts (default: all alike), and an MLP, or a model of so
    many single parameters."""
    rows: list[Tensor] = [torch.tensor(own) for own in counts or [[1, 1]] * len(examples)]

    def histograms(kind: Kind | None) -> Histograms:
        return Histograms(kind or "labels", rows, per_example)

    def scale(cost: Cost) -> Scale:
        return channels(cost, *hidden) if parameters is None else Parameters(parameters)

    def measured(widths: Sequence[float]) -> Sequence[Sequence[float]]:
        assert accuracies is not None
        return accuracies

    names = [chr(ord("a") + n) for n in range(len(examples))]
    return View(
        names=names,
        examples=examples,
        attributes=attributes or [{} for _ in examples],
        seed=seed,
        histograms=histograms,
        scale=scale,
        accuracies=measured,
        device_widths=lambda seconds: [1.0] * len(examples),
        capacities=Capacities(levels=(1.0,)),
    )


def allocate(policy: str, view: View, **options: Any) -> Allocation:
    found = POLICIES[policy]
    return found(found.Options(**options)).allocate(view)

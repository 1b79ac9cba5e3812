"""How often each parameter was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from uneven.methods import ClientCard, Method
from uneven.submodels import State, Submodel, Supernet

STARVED = 0.01
"""A parameter is starved where less than this share of its coordinates was ever trained."""


class Coverage:
    """Counts, for every coordinate, the submodels that held it.

    ``counts``: parameter name -> int32, of its shape.
    """

    def __init__(self, supernet: Supernet) -> None:
        self.counts: State = {
            name: torch.zeros_like(supernet.initial[name], dtype=torch.int32) for name in supernet.parameters
        }

    def add(self, submodel: Submodel, counted: Mapping[str, Tensor] | None = None) -> None:
        """Count one submodel. ``counted``: as in `uneven.aggregation.OverlapAverage.add`."""
        for name, count in self.counts.items():
            own = torch.ones_like(submodel.select(name, count)) * (counted or {}).get(name, 1)
            submodel.add(name, count, own.int())

    @property
    def never(self) -> float:
        """The share of all coordinates that no submodel held."""
        return (self._flat() == 0).double().mean().item()

    def summary(self) -> dict[str, Any]:
        """For a line: the share never trained, how often the least, the middle and the most trained coordinate was
        (the lower middle of an even number), and the trained share of each starved parameter."""
        flat = self._flat()
        trained = {name: (count > 0).double().mean().item() for name, count in self.counts.items()}
        return {
            "never": self.never,
            "min": int(flat.min()),
            "median": int(flat.median()),
            "max": int(flat.max()),
            "starved": {name: share for name, share in trained.items() if share < STARVED},
        }

    def _flat(self) -> Tensor:
        return torch.cat([count.reshape(-1) for count in self.counts.values()])


def coverage(method: Method, clients: Sequence[ClientCard], rounds: int) -> Coverage:
    """What a method assigns to these clients if all of them train in each of the rounds 1..rounds.

    A method whose submodels depend on what training makes of the model is taken as it is now.
    """
    counts = Coverage(method.supernet)
    for t in range(1, rounds + 1):
        for client in clients:
            counts.add(method.submodel(t, client))
    return counts

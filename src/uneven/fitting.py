"""What a capacity is worth to a method: a width of the model's channels, or a number of its parameters."""

from __future__ import annotations

import math

from uneven.errors import SpecError
from uneven.spec import Spec
from uneven.submodels import Supernet
from uneven.submodels.cost import Unit, cost, masked_within, width_for

Fit = tuple[float, int, int | None]  # width, size and budget of a `ClientCard`


def fit(supernet: Supernet, spec: Spec, capacity: float) -> Fit:
    """The width r_n and the size k_n that a capacity allows the spec's method, and the budget they are matched to.

    Raises:
        SpecError: nothing of the model fits the capacity, or the unit says nothing to a method of this grain.
    """
    unit, match = spec.clients.capacities.unit, spec.match
    if spec.method_class.grain(spec.method_options) == "parameter":
        return _parameters(supernet, spec, capacity)
    width = width_for(supernet, capacity, unit, spec.training)
    budget = None if match is None else _budget(supernet, spec, capacity, match)
    if match is not None and budget is not None:
        matched = spec.method_class.widest(supernet, lambda part: cost(part, match, spec.training) <= budget)
        if matched is None:
            raise SpecError([f"match = {match!r}: no width of this method costs at most {budget:,} {match}"])
        width = matched
    return width, supernet.prefix(width).size, budget


def _parameters(supernet: Supernet, spec: Spec, capacity: float) -> Fit:
    unit = spec.match or spec.clients.capacities.unit
    if unit == "width":
        raise SpecError(
            [
                "clients.capacities.unit = 'width': this method holds single parameters, not channels; use "
                "'params' or 'bytes', or match = 'params' for as many as a width has"
            ]
        )
    budget = _budget(supernet, spec, capacity, unit)
    size = masked_within(supernet, unit, budget, spec.training)
    if size is None:
        raise SpecError(
            [
                f"clients.capacities: {capacity:g} of the {unit} cannot be reached by a mask, which saves "
                "parameters and bytes, but computes the full model; use unit or match 'params'"
            ]
        )
    return 1.0, size, budget if spec.match else None


def _budget(supernet: Supernet, spec: Spec, capacity: float, unit: Unit) -> int:
    """What a client of this capacity may cost: the share itself where it is one of this unit, else what the width
    of that capacity costs."""
    own = spec.clients.capacities.unit
    if own == unit:
        return math.ceil(round(capacity * cost(supernet.prefix(1.0), unit, spec.training), 6))
    return cost(supernet.prefix(width_for(supernet, capacity, own, spec.training)), unit, spec.training)

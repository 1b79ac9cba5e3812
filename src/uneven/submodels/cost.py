"""What a submodel costs: parameters, multiply-accumulates, bytes; and the widest that a limit allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from uneven.errors import SpecError
from uneven.submodels import Submodel, Supernet

Unit = Literal["params", "macs", "bytes"]


def cost(submodel: Submodel, unit: Unit) -> int:
    """``params``: parameters held. ``macs``: of one example's forward pass. ``bytes``: of all tensors held."""
    if unit == "params":
        return submodel.size
    if unit == "macs":
        return submodel.macs
    return submodel.nbytes


def width_for(supernet: Supernet, capacity: float, unit: Unit | Literal["width"]) -> float:
    """The largest width whose prefix costs at most ``capacity`` times the full model, in ``unit``.

    For parameters the limit is k = ceil(capacity d). ``unit = "width"`` is the width itself.

    Raises:
        SpecError: even one channel per group costs more; says what can be reached.
    """
    if unit == "width":
        return capacity
    full = cost(supernet.prefix(1.0), unit)
    width = widest(supernet, {unit: math.ceil(round(capacity * full, 6))})
    if width is None:
        least = cost(supernet.prefix(widths(supernet)[0]), unit) / full
        raise SpecError(
            [
                f"clients.capacities: {capacity:g} of the {unit} cannot be reached by a width of this model; "
                f"the reachable range is {least:.4g} to 1"
            ]
        )
    return width


def widest(supernet: Supernet, limits: Mapping[Unit, int]) -> float | None:
    """The largest width whose prefix is within every limit; None if even one channel per group is not."""
    steps = widths(supernet)
    low, high = -1, len(steps) - 1
    while low < high:  # costs grow with the width
        middle = (low + high + 1) // 2
        prefix = supernet.prefix(steps[middle])
        fits = all(cost(prefix, unit) <= limit for unit, limit in limits.items())
        low, high = (middle, high) if fits else (low, middle - 1)
    return steps[low] if low >= 0 else None


def widths(supernet: Supernet) -> list[float]:
    """Every width at which some group gains a channel, ascending; 1 is the last."""
    return sorted({k / group.size for group in supernet.groups for k in range(1, group.size + 1)} | {1.0})

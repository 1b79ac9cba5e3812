"""What a submodel costs: parameters, multiply-accumulates, bytes; and the widest that a limit allows."""

from __future__ import annotations

import math
from typing import Any, Literal

from uneven.errors import SpecError
from uneven.submodels.channels import ChannelSubmodel, Supernet

Unit = Literal["params", "macs", "bytes"]


def cost(submodel: ChannelSubmodel, unit: Unit) -> int:
    """``params``: parameters held. ``macs``: of one example's forward pass. ``bytes``: of all tensors held."""
    if unit == "params":
        return submodel.size
    if unit == "macs":
        return submodel.macs
    return submodel.nbytes


def width_for(supernet: Supernet, capacity: float, unit: Any) -> float:
    """The largest width whose prefix costs at most ``capacity`` times the full model, in ``unit``.

    For parameters the limit is k = ceil(capacity d). ``unit = "width"`` is the width itself.

    Raises:
        SpecError: even one channel per group costs more; says what can be reached.
    """
    if unit == "width":
        return capacity
    full = cost(supernet.prefix(1.0), unit)
    limit = math.ceil(round(capacity * full, 6))
    widths = _steps(supernet)
    fitting = _last_fitting(supernet, widths, unit, limit)
    if fitting is None:
        least = cost(supernet.prefix(widths[0]), unit) / full
        raise SpecError(
            [
                f"clients.capacities: {capacity:g} of the {unit} cannot be reached by a width of this model; "
                f"the reachable range is {least:.4g} to 1"
            ]
        )
    return fitting


def _steps(supernet: Supernet) -> list[float]:
    """Every width at which some group gains a channel."""
    return sorted({k / group.size for group in supernet.groups for k in range(1, group.size + 1)} | {1.0})


def _last_fitting(supernet: Supernet, widths: list[float], unit: Unit, limit: int) -> float | None:
    """Binary search: costs grow with the width."""
    low, high = -1, len(widths) - 1
    while low < high:
        middle = (low + high + 1) // 2
        fits = cost(supernet.prefix(widths[middle]), unit) <= limit
        low, high = (middle, high) if fits else (low, middle - 1)
    return widths[low] if low >= 0 else None

"""What a submodel costs: parameters, multiply-accumulates, bytes; and the widest that a limit allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from uneven.errors import SpecError
from uneven.submodels import Submodel, Supernet
from uneven.submodels.memory import predict
from uneven.training import TrainingOptions

Unit = Literal["params", "macs", "bytes", "memory"]


def cost(submodel: Submodel, unit: Unit, training: TrainingOptions) -> int:
    """``params``: parameters held. ``macs``: of one example's forward pass. ``bytes``: of all tensors held.
    ``memory``: bytes at the peak of a training step, predicted (`uneven.submodels.memory`)."""
    if unit == "params":
        return submodel.size
    if unit == "macs":
        return submodel.macs
    if unit == "bytes":
        return submodel.nbytes
    return predict(submodel, submodel.supernet.example, training).training


def width_for(
    supernet: Supernet, capacity: float, unit: Unit | Literal["width"], training: TrainingOptions
) -> float:
    """The largest width whose prefix costs at most ``capacity`` times the full model, in ``unit``.

    For parameters the limit is k = ceil(capacity d). ``unit = "width"`` is the width itself.

    Raises:
        SpecError: even one channel per group costs more; says what can be reached.
    """
    if unit == "width":
        return capacity
    full = cost(supernet.prefix(1.0), unit, training)
    limit = math.ceil(round(capacity * full, 6))
    width = widest(supernet, lambda submodel: cost(submodel, unit, training) <= limit)
    if width is None:
        least = cost(supernet.prefix(widths(supernet)[0]), unit, training) / full
        raise SpecError(
            [
                f"clients.capacities: {capacity:g} of the {unit} cannot be reached by a width of this model; "
                f"the reachable range is {least:.4g} to 1"
            ]
        )
    return width


def masked_within(supernet: Supernet, unit: Unit, limit: int, training: TrainingOptions) -> int | None:
    """The most parameters that a mask can hold at no more than ``limit``; None if no mask costs so little.

    A mask costs the multiply-accumulates and the memory of the full model, and sends a bit for every maskable
    coordinate beside its values.
    """
    full = supernet.prefix(1.0)
    if unit == "params":
        return min(limit, full.size)
    if cost(full, unit, training) <= limit:
        return full.size
    if unit != "bytes":
        return None
    bits = sum(supernet.initial[name].numel() for name in supernet.maskable)
    width = next(iter(supernet.initial.values())).element_size()
    held = (limit - (full.nbytes - width * full.size) - -(-bits // 8)) // width
    return held if held > 0 else None


def widest(supernet: Supernet, fits: Callable[[Submodel], bool], exit: int | None = None) -> float | None:
    """The largest width whose prefix fits, up to an exit where one is named; None if even one channel per group
    does not."""
    steps = widths(supernet)
    low, high = -1, len(steps) - 1
    while low < high:  # costs grow with the width
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(supernet.prefix(steps[middle], exit)) else (low, middle - 1)
    return steps[low] if low >= 0 else None


def widths(supernet: Supernet) -> list[float]:
    """Every width at which some group gains a channel, ascending; 1 is the last."""
    return sorted({k / group.size for group in supernet.groups for k in range(1, group.size + 1)} | {1.0})

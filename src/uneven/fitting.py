"""From an allocation to the clients' cards: what a capacity is worth to a method, in width or parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from uneven.allocation import Allocation, View
from uneven.allocation.histograms import histograms
from uneven.allocation.scale import Channels, Cost, Parameters, Scale
from uneven.data import Federation
from uneven.device_fit import device_widths
from uneven.errors import SpecError
from uneven.methods import ClientCard
from uneven.spec import Spec
from uneven.submodels import Supernet
from uneven.submodels.cost import Unit, cost, masked_within, widest, width_for

Fit = tuple[float, int, int | None]  # width, size and budget of a `ClientCard`
CapacityUnit = Unit | Literal["width"]


def allocate(spec: Spec, federation: Federation, supernet: Supernet) -> Allocation:
    """What the spec's policy gives each client."""
    clients = federation.clients
    view = View(
        names=[client.name for client in clients],
        examples=[len(client.train) for client in clients],
        attributes=[client.attributes for client in clients],
        seed=spec.seed,
        histograms=partial(histograms, clients, federation.info),
        scale=partial(scale, spec, supernet),
        accuracies=partial(_accuracies, spec, federation, supernet),
        device_widths=lambda seconds: device_widths(spec, federation, supernet, seconds),
        capacities=spec.clients.capacities,
    )
    return spec.allocation_class(spec.allocation_options).allocate(view)


def _accuracies(
    spec: Spec, federation: Federation, supernet: Supernet, widths: Sequence[float]
) -> Sequence[Sequence[float]]:
    from uneven.probe import accuracies  # it runs an experiment, which is made of what is here

    return accuracies(spec, federation, supernet, widths)


def scale(spec: Spec, supernet: Supernet, of: Cost) -> Scale:
    """What the method's clients can be given: widths; or parameters, where it holds single ones and nothing
    matches them to widths."""
    if not holds_parameters(spec):
        return Channels(supernet, of, spec.training)
    if of != "params":
        raise SpecError(
            [
                f"allocation.cost = {of!r}: this method holds single parameters, not channels; use cost = "
                "'params', or match = 'params' for as many as a width has"
            ]
        )
    return Parameters(supernet.size)


def holds_parameters(spec: Spec) -> bool:
    """Whether a capacity is a number of single parameters, to this method."""
    return spec.match is None and spec.method_class.grain(spec.method_options) == "parameter"


def cards(spec: Spec, federation: Federation, supernet: Supernet, allocation: Allocation) -> list[ClientCard]:
    """What the server knows of every client."""
    fits = {c: fit(supernet, spec, c, allocation.unit) for c in sorted(set(allocation.capacities))}
    classes = federation.info.num_classes
    return [
        ClientCard(client.id, len(client.train), client.label_counts(classes), capacity, *fits[capacity])
        for client, capacity in zip(federation.clients, allocation.capacities, strict=True)
    ]


@dataclass(frozen=True)
class Spent:
    """What the clients' capacities come to in whole channels or parameters, before `Spec.match`.

    ``shares``: of the full model's ``cost``, for each client. ``realised``: their mean, weighted by P_n.
    """

    cost: Cost
    shares: Sequence[float]
    realised: float


def spent(spec: Spec, federation: Federation, supernet: Supernet, allocation: Allocation) -> Spent:
    """What an allocation costs."""
    unit, given = allocation.unit, allocation.capacities
    counted = "params" if holds_parameters(spec) else allocation.cost
    if holds_parameters(spec):
        own = {c: fit(supernet, spec, c, unit)[1] / supernet.size for c in set(given)}
    else:
        scale = Channels(supernet, counted, spec.training)
        widths = {c: width_for(supernet, c, unit, spec.training) for c in set(given)}
        own = {c: scale.cost(scale.steps(width)[-1]) for c, width in widths.items()}
    shares, examples = [own[c] for c in given], [len(client.train) for client in federation.clients]
    total = math.fsum(n * share for n, share in zip(examples, shares, strict=True))
    return Spent(counted, shares, total / sum(examples))


def summary(spec: Spec, given: Allocation, spent: Spent) -> dict[str, Any]:
    """Who gave the clients their capacities, and what these cost on average: the budget asked, the exact ratios,
    and what was realised in whole channels."""
    budget = {} if given.budget is None else {"budget": given.budget, "exact": given.exact}
    return {"policy": spec.names["allocation"], "cost": spent.cost, **budget, "realised": spent.realised}


def fit(supernet: Supernet, spec: Spec, capacity: float, unit: CapacityUnit) -> Fit:
    """The width r_n and the size k_n that a capacity allows the spec's method, and the budget they are matched to.

    Raises:
        SpecError: nothing of the model fits the capacity, or the unit says nothing to a method of this grain.
    """
    match = spec.match
    if spec.method_class.grain(spec.method_options) == "parameter":
        return _parameters(supernet, spec, capacity, unit)
    width = width_for(supernet, capacity, unit, spec.training)
    budget = None if match is None else _budget(supernet, spec, capacity, unit, match)
    if match is not None and budget is not None:
        matched = widest(supernet, lambda part: cost(part, match, spec.training) <= budget)
        if matched is None:
            raise SpecError([f"match = {match!r}: no width of this method costs at most {budget:,} {match}"])
        width = matched
    return width, supernet.prefix(width).size, budget


def _parameters(supernet: Supernet, spec: Spec, capacity: float, own: CapacityUnit) -> Fit:
    unit = spec.match or own
    if unit == "width":
        raise SpecError(
            [
                "clients.capacities.unit = 'width': this method holds single parameters, not channels; use "
                "'params' or 'bytes', or match = 'params' for as many as a width has"
            ]
        )
    budget = _budget(supernet, spec, capacity, own, unit)
    size = masked_within(supernet, unit, budget, spec.training)
    if size is None:
        field = "clients.capacities" if spec.allocation_class.DEALS_CAPACITIES else "allocation"
        raise SpecError(
            [
                f"{field}: {capacity:g} of the {unit} cannot be reached by a mask, which saves parameters and "
                "bytes, but computes the full model; use unit or match 'params'"
            ]
        )
    return 1.0, size, budget if spec.match else None


def _budget(supernet: Supernet, spec: Spec, capacity: float, own: CapacityUnit, unit: Unit) -> int:
    """What a client of this capacity, in its ``own`` unit, may cost in another: the share itself where they are
    the same, else what the width of that capacity costs."""
    if own == unit:
        return math.ceil(round(capacity * cost(supernet.prefix(1.0), unit, spec.training), 6))
    return cost(supernet.prefix(width_for(supernet, capacity, own, spec.training)), unit, spec.training)

"""What ``clients.capacities`` says."""

from __future__ import annotations

from uneven.allocation.base import Allocation, Policy, View
from uneven.apportion import dealt
from uneven.errors import SpecError
from uneven.rng import generator


class Tiers(Policy):
    """``clients.capacities`` as given: levels dealt to the clients, a list, or a column of the data; no budget."""

    DEALS_CAPACITIES = True

    def allocate(self, view: View) -> Allocation:
        unit = view.capacities.unit
        return Allocation(deal(view), unit, self.options, unit)


def deal(view: View) -> list[float]:
    """The capacity of every client, in order.

    Raises:
        SpecError: a list of another length than the clients, or a column that the data do not have.
    """
    options, count = view.capacities, len(view.names)
    if options.values is not None:
        if len(options.values) != count:
            raise SpecError([f"clients.capacities: {len(options.values)} values for {count} clients"])
        return list(options.values)
    if options.column is not None:
        return view.column(options.column, "clients.capacities.column")
    assert options.levels is not None
    shares = options.shares or [1.0] * len(options.levels)
    return dealt(options.levels, shares, count, generator(view.seed, "capacities"))

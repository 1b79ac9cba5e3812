'''The contract of an allocation policy, on one page: how much of the model does each client get?

A policy turns what it may see of the clients, a `View`, into an `Allocation`: a capacity for each client. One that
spends a budget extends `Budgeted` and defines ``targets``, ratios that only say how much a client is to get
relative to the others:

>>> import uneven
>>> from uneven.allocation import Budgeted, BudgetOptions, Targets, View
>>>
>>> class RootOfSize(Budgeted):
...     """The width grows with the root of the client's size."""
...
...     class Options(BudgetOptions):
...         power: float = 0.5
...         """The power of the size."""
...
...     def targets(self, view: View) -> Targets:
...         return Targets([n**self.options.power for n in view.examples])
>>>
>>> result = uneven.run(allocation=RootOfSize, rounds=1, clients={"count": 4}, cohort=2, data={"train_limit": 200})
>>> result["allocation"]["budget"], round(result["allocation"]["exact"], 9)
(0.5, 0.5)

In a spec file the same policy is ``[allocation] name = "my_module:RootOfSize"``.
'''

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from uneven.allocation.capacities import Capacities
from uneven.allocation.histograms import Histograms, Kind
from uneven.allocation.scale import Cost, Scale
from uneven.errors import SpecError, nearest
from uneven.options import Options
from uneven.submodels.cost import Unit

Columns = Mapping[str, Sequence[float]]
"""Numbers to show beside each client, by name."""


class PolicyOptions(Options):
    """A policy's own options: typed fields, each with a description below it."""


@dataclass(frozen=True)
class View:
    """What a policy may see. Sequences are in the clients' order.

    ``examples``: n_n, of the training splits. ``attributes``: numeric columns that are constant within a client.
    ``histograms``: what the clients' training splits are made of, by kind; None is the data's usual one. A policy
    must not look into those of single clients, but hand each to the client's side, `Scorer`. ``scale``: the ratios
    that there are in this model, and what they cost. ``accuracies``: for some widths, each client's accuracy at
    each of them on training examples held out, (clients, widths); it trains a federation. ``device_widths``: the
    widest part that each client's device has memory for, and time, where so many seconds of a round are a limit.
    ``capacities``: ``clients.capacities``, which `Tiers` deals out.
    """

    names: Sequence[str]
    examples: Sequence[int]
    attributes: Sequence[Mapping[str, float]]
    seed: int
    histograms: Callable[[Kind | None], Histograms]
    scale: Callable[[Cost], Scale]
    accuracies: Callable[[Sequence[float]], Sequence[Sequence[float]]]
    device_widths: Callable[[float | None], Sequence[float]]
    capacities: Capacities

    @property
    def weights(self) -> list[float]:
        """P_n = n_n / sum of n over all clients."""
        total = sum(self.examples)
        return [n / total for n in self.examples]

    def column(self, column: str, field: str) -> list[float]:
        """A numeric column of the data that is one number in (0, 1] per client; ``field`` names who asks."""
        known = sorted({name for own in self.attributes for name in own})
        if not all(column in own for own in self.attributes):
            hint = nearest(column, known) if known else "the data have no numeric column of one value per client"
            raise SpecError([f"{field} = {column!r}: {hint}"])
        values = [own[column] for own in self.attributes]
        bad = [(name, v) for name, v in zip(self.names, values, strict=True) if not 0 < v <= 1]
        if bad:
            raise SpecError([f"{field} = {column!r}: client {name} has {v:g}, not in (0, 1]" for name, v in bad])
        return values


@dataclass(frozen=True)
class Allocation:
    """What each client gets.

    ``capacities``: shares in (0, 1] of what ``unit`` names. ``options``: of the policy, with what it decided.
    ``cost``: what a share of the full model is counted in. Of a policy with a budget: ``budget``, the mean cost
    asked, weighted by P_n; ``exact``, that of ``ratios``, which are the capacities before they were rounded.
    """

    capacities: Sequence[float]
    unit: Unit | Literal["width"]
    options: PolicyOptions
    cost: Cost
    budget: float | None = None
    exact: float | None = None
    ratios: Sequence[float] | None = None
    columns: Columns = field(default_factory=dict)


class Policy:
    """How much of the model each client gets. A new one defines `allocate`, or extends `Budgeted`."""

    Options: ClassVar[type[PolicyOptions]] = PolicyOptions
    DEALS_CAPACITIES: ClassVar[bool] = False
    """Whether ``clients.capacities`` has an effect."""

    def __init__(self, options: PolicyOptions) -> None:
        self.options: Any = options

    def allocate(self, view: View) -> Allocation:
        """A capacity for every client. Must be defined."""
        raise TypeError(f"{type(self).__name__} must define allocate(view)")

"""Policies that spend a budget: ratios scaled so that they cost the budget on average, in whole channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from uneven.allocation.base import Allocation, Columns, Policy, PolicyOptions, View
from uneven.allocation.rounding import choose
from uneven.allocation.scale import NEAR, Cost, Scale
from uneven.errors import SpecError
from uneven.options import Many, Share

DEVICES = "devices"


class BudgetOptions(PolicyOptions):
    """Options of every policy with a budget."""

    budget: Share = 0.5
    """B, the mean of what the clients' parts cost, each weighted by its share of all training examples."""
    r_min: Share = 0.2
    """The least ratio, before it is rounded to whole channels."""
    r_max: Share = 0.8
    """The largest ratio, before it is rounded."""
    cost: Cost = "width"
    """What the budget counts: ratios (``width``) or their squares (``width2``), or a share of the full model's
    parameters, multiply-accumulates, bytes or predicted training memory."""
    passes: Literal["exact", 2] = "exact"
    """``exact``: ratios are scaled to meet the budget. 2: they are scaled and clipped twice, which may miss it."""
    caps: Many[Share] | str | None = None
    """The largest ratio that each client can hold: a list, a numeric column of the data, or ``devices``: what the
    memory of its device allows (`ByDevice`). Default: no caps."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.r_min > self.r_max:
            raise ValueError(f"r_min = {self.r_min:g} is above r_max = {self.r_max:g}")
        if self.passes == 2 and self.cost != "width":
            raise ValueError(f"passes = 2 is a rule for cost = 'width', not '{self.cost}': use passes = 'exact'")
        return self


@dataclass(frozen=True)
class Targets:
    """How much each client is to get relative to the others: positive ratios of any scale. ``columns``: what a run
    reports of each client beside it, by name."""

    ratios: Sequence[float]
    columns: Columns = field(default_factory=dict)


@dataclass(frozen=True)
class Room:
    """The clients' names, weights P_n, caps and bounds [low, high_n], and the ratios that there are."""

    names: Sequence[str]

    weights: Sequence[float]
    caps: Sequence[float]
    low: float
    high: Sequence[float]
    scale: Scale

    def spent(self, ratios: Sequence[float]) -> float:
        """The sum of P_n cost(r_n); exactly rounded, so in any order of the clients the same."""
        return fsum(p * self.scale.cost(r) for p, r in zip(self.weights, ratios, strict=True))

    def scaled(self, ratios: Sequence[float], a: float) -> list[float]:
        """clip(a r_n, low, high_n)."""
        return [min(max(a * r, self.low), high) for r, high in zip(ratios, self.high, strict=True)]


class Budgeted(Policy):
    """A policy with a budget. A new one defines `targets`.

    Rule: r_n = clip(a t_n, r_min, min(r_max, cap_n)) for the targets t_n, with the factor a at which the sum of
    P_n cost(r_n) is the budget. Then each is rounded to the step of channels below or above, such that the sum
    comes nearest to the budget without exceeding it, and no client exceeds its cap. A step may lie just outside
    r_min and r_max. Where two passes have spent so much more than the budget that no rounding meets it, all are
    rounded down.
    """

    Options: ClassVar[type[PolicyOptions]] = BudgetOptions

    def targets(self, view: View) -> Targets:
        """How much each client is to get relative to the others. Must be defined."""
        raise TypeError(f"{type(self).__name__} must define targets(view)")

    def allocate(self, view: View) -> Allocation:
        options: BudgetOptions = self.options
        room = self.room(view)
        _require_feasible(room, options.budget)
        targets = self.targets(view)
        _require_positive(targets.ratios, view, type(self).__name__)
        rescale = exact if options.passes == "exact" else two_passes
        ratios = rescale(targets.ratios, room, options.budget)
        spent = room.spent(ratios)
        return Allocation(
            capacities=_whole(ratios, options.budget, spent, room),
            unit=room.scale.unit,
            options=self.options,
            cost=options.cost,
            budget=options.budget,
            exact=spent,
            ratios=ratios,
            columns=targets.columns,
        )

    def room(self, view: View) -> Room:
        """Within what the budget is spent."""
        options: BudgetOptions = self.options
        caps = _caps(options, view)
        high = [min(options.r_max, cap) for cap in caps]
        return Room(view.names, view.weights, caps, options.r_min, high, view.scale(options.cost))


def exact(targets: Sequence[float], room: Room, budget: float) -> list[float]:
    """The ratios clip(a t_n) that cost the budget; a by bisection, to the last bit."""
    low, high = 0.0, max(high / t for high, t in zip(room.high, targets, strict=True))
    while low < (a := (low + high) / 2) < high:
        low, high = (a, high) if room.spent(room.scaled(targets, a)) <= budget else (low, a)
    return min((room.scaled(targets, a) for a in (low, high)), key=lambda ratios: abs(room.spent(ratios) - budget))


def two_passes(targets: Sequence[float], room: Room, budget: float) -> list[float]:
    """HASA's own rule: twice r_n <- clip(a r_n) with a = B / sum of P_n r_n."""
    ratios = list(targets)
    for _ in range(2):
        ratios = room.scaled(ratios, budget / fsum(p * r for p, r in zip(room.weights, ratios, strict=True)))
    return ratios


def _caps(options: BudgetOptions, view: View) -> Sequence[float]:
    """The largest ratio of each client."""
    caps = options.caps
    if caps is None:
        return [1.0] * len(view.names)
    if caps == DEVICES:
        caps = tuple(view.device_widths(None))
    elif isinstance(caps, str):
        caps = tuple(view.column(caps, "allocation.caps"))
    if len(caps) != len(view.names):
        raise SpecError([f"allocation.caps: {len(caps)} values for {len(view.names)} clients"])
    low = [
        f"allocation.caps: client {name} can hold {cap:g}, less than r_min = {options.r_min:g}"
        for name, cap in zip(view.names, caps, strict=True)
        if cap < options.r_min
    ]
    if low:
        raise SpecError(low)
    return caps


def _require_feasible(room: Room, budget: float) -> None:
    least, most = (room.spent(room.scaled([1.0] * len(room.high), a)) for a in (0.0, 2.0))
    if not least - NEAR <= budget <= most + NEAR:
        raise SpecError(
            [
                f"allocation.budget = {budget:g}: cannot be met within r_min, r_max and caps: the feasible range "
                f"is {least:.6g} to {most:.6g}"
            ]
        )


def _require_positive(ratios: Sequence[float], view: View, policy: str) -> None:
    if len(ratios) != len(view.names):
        raise SpecError([f"allocation: {policy} gives {len(ratios)} ratios for {len(view.names)} clients"])
    bad = [(n, r) for n, r in zip(view.names, ratios, strict=True) if not (isfinite(r) and r > 0)]
    if bad:
        raise SpecError([f"allocation: {policy} gives client {n} the ratio {r:g}, not positive" for n, r in bad])


def _whole(ratios: Sequence[float], budget: float, spent: float, room: Room) -> list[float]:
    """Every ratio at the step below or above, such that the cost comes nearest to the budget from below. Where
    that cannot be, since ratios have ``spent`` more: all at the step below."""
    steps = []
    for name, ratio, cap in zip(room.names, ratios, room.caps, strict=True):
        steps.append([step for step in room.scale.steps(ratio) if step <= cap + NEAR])
        if not steps[-1]:
            raise SpecError(
                [
                    f"allocation.caps: client {name} can hold {cap:g}, less than the narrowest part of this "
                    f"model, {room.scale.steps(ratio)[0]:.4g}"
                ]
            )
    costs = [[p * room.scale.cost(step) for step in own] for p, own in zip(room.weights, steps, strict=True)]
    taken = choose([[(c, c) for c in own] for own in costs], budget + NEAR)
    if taken is None:
        least = fsum(own[0] for own in costs)
        if least <= spent + NEAR:
            return [own[0] for own in steps]
        raise SpecError(
            [
                f"allocation.budget = {budget:g}: cannot be met in whole channels of this model; near these "
                f"ratios the least is {least:.6g}"
            ]
        )
    return [own[k] for own, k in zip(steps, taken, strict=True)]

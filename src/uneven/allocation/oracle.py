"""The widths that gain the most accuracy, measured: a ceiling for the other policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from uneven.allocation.base import PolicyOptions, View
from uneven.allocation.budget import Budgeted, BudgetOptions, Room, Targets
from uneven.allocation.rounding import choose
from uneven.allocation.scale import NEAR
from uneven.errors import SpecError
from uneven.options import Many, Share

Accuracy = Annotated[float, Field(ge=0, le=1)]


class OracleOptions(BudgetOptions):
    widths: Many[Share] = Field(default=(0.2, 0.35, 0.5, 0.65, 0.8), min_length=1)
    """The widths to choose from, ascending, of r_min to r_max."""
    accuracies: Many[Many[Accuracy]] | None = None
    """For each client its accuracy at each width. Default: measured by training a slimmable network first; a run
    writes them down, and does not measure them again when it is resumed."""

    @model_validator(mode="after")
    def _ladder(self) -> Self:
        widths = list(self.widths)
        if widths != sorted(set(widths)) or widths[0] < self.r_min or widths[-1] > self.r_max:
            raise ValueError(
                f"widths = {widths}: must ascend from r_min = {self.r_min:g} or more to r_max = {self.r_max:g} or "
                "less"
            )
        if self.accuracies is not None and {len(own) for own in self.accuracies} != {len(widths)}:
            raise ValueError(f"accuracies: each client needs one for each of the {len(widths)} widths")
        return self


class Oracle(Budgeted):
    """The widths at which the clients' mean accuracy is highest, of those that cost no more than the budget.

    Rule: before the run, a slimmable network is trained on the same data with the same options, without the share
    ``data.local_test_share`` of each client's training examples, which it is then evaluated on at every width. A
    multiple-choice knapsack takes a width for each client; what is left of the budget widens all in proportion.

    A ceiling for what a choice of widths can gain, as far as accuracies at one width carry over to a network that
    every client trains at its own. It costs a whole training at the widest width before the first round.
    """

    Options: ClassVar[type[PolicyOptions]] = OracleOptions

    def targets(self, view: View) -> Targets:
        options: OracleOptions = self.options
        if view.scale(options.cost).unit == "params":
            raise SpecError(
                [
                    "allocation 'oracle': measures widths, and this method gives clients shares of the "
                    "parameters; set match = 'params', which gives them as many as a width has"
                ]
            )
        measured = options.accuracies or view.accuracies(options.widths)
        if len(measured) != len(view.names):
            raise SpecError([f"allocation.accuracies: {len(measured)} rows for {len(view.names)} clients"])
        rows = tuple(tuple(own) for own in measured)
        self.options = options.model_copy(update={"accuracies": rows})
        columns = {f"accuracy_at_{w:g}": [own[k] for own in rows] for k, w in enumerate(options.widths)}
        return Targets(best(options.widths, rows, self.room(view), options.budget), columns)


def best(widths: Sequence[float], accuracies: Sequence[Sequence[float]], room: Room, budget: float) -> list[float]:
    """One of the widths for each client, of the highest mean accuracy that the budget and the caps allow; the
    cheapest of equals."""
    costs = [room.scale.cost(width) for width in widths]
    options = [
        [
            (p * cost, accuracy)
            for width, cost, accuracy in zip(widths, costs, own, strict=True)
            if width <= cap + NEAR
        ]
        for p, cap, own in zip(room.weights, room.high, accuracies, strict=True)
    ]
    taken = choose(options, budget + NEAR) if all(options) else None
    if taken is None:
        raise SpecError(
            [f"allocation.widths = {list(widths)}: even the narrowest cost more than the budget or a cap allows"]
        )
    return [widths[k] for k in taken]

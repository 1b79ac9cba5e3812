"""The same for everyone."""

from uneven.allocation.base import View
from uneven.allocation.budget import Budgeted, Targets


class Uniform(Budgeted):
    """Every client gets the ratio that costs the budget, to the channel, or its cap where that is less, for which
    others get more."""

    def targets(self, view: View) -> Targets:
        return Targets([1.0] * len(view.names))

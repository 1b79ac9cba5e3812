"""Slimmable networks: every width in every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from uneven.errors import MethodError
from uneven.methods.base import Context
from uneven.methods.nested import NestedMethod, NestedOptions, Steps


class SlimmableOptions(NestedOptions):
    statistics: Literal["switchable", "recalibrated"] | None = None
    """Running statistics of norms: one set for each width, or filled anew before an evaluation. Default
    ``switchable``, where the model has batch norm."""

    def steps(self, widths: Sequence[float], count: int, key: tuple[int, ...]) -> Steps:
        return [widths[::-1]] * count

    @property
    def apart(self) -> bool:
        return self.statistics != "recalibrated"


class Slimmable(NestedMethod):
    """A client of width r holds the first ceil(r C) channels of every group, and trains all widths inside them.

    Paper: Yu et al. 2019, Slimmable Neural Networks (arXiv 1812.08928), Algorithm 1, inside FedAvg's rounds;
    ``recalibrated`` after Yu and Huang 2019, Universally Slimmable Networks (arXiv 1903.05134).

    Rule: each step takes the gradient of the sum of CE(F_q, y) over the widths q <= r of the ladder, the distinct
    widths of the clients. Norms keep running statistics for each width, averaged over the clients that hold it.

    Deviations: the paper trains one network in one place. Its switchable batch norm has a scale and a shift for
    each width, too; here all widths share those, so that every coordinate is averaged over all that hold it. The
    loss reported is the sum. A step costs a client the multiply-accumulates of all its widths.
    """

    Options = SlimmableOptions

    def resolve(self, context: Context, options: Any) -> Any:
        normed = bool(context.supernet.running)
        if options.statistics is not None and not normed:
            raise MethodError(
                f"method.statistics = {options.statistics!r}: has no effect, the model has no batch norm"
            )
        chosen = super().resolve(context, options)
        statistics = options.statistics or ("switchable" if normed else None)
        return chosen.model_copy(update={"statistics": statistics})

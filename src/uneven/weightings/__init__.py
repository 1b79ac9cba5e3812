"""How much each client counts in the average of a round (``server.weights``): one small file each."""

from __future__ import annotations

from collections.abc import Sequence

from uneven.aggregation import ServerOptions
from uneven.weightings.afl import AFL
from uneven.weightings.base import ByExamples, Weighting
from uneven.weightings.qffl import QFFL

__all__ = ["AFL", "QFFL", "ByExamples", "Weighting", "weighting"]


def weighting(options: ServerOptions, clients: Sequence[int]) -> Weighting:
    """The weighting that a spec names, at its start. ``clients``: ids of all that can take part."""
    if options.weights == "qffl":
        return QFFL(1.0 if options.q is None else options.q)
    if options.weights == "afl":
        return AFL(0.1 if options.weights_lr is None else options.weights_lr, clients)
    return ByExamples() if options.weights == "examples" else Weighting()

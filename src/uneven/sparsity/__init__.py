"""The parts of a sparse topology that all clients share: densities, schedule, initial masks, rules, posteriors."""

from uneven.sparsity.densities import Layers, links
from uneven.sparsity.rules import Mask, Scores, drop_and_grow, held, strongest
from uneven.sparsity.schedule import Schedule

__all__ = ["Layers", "Mask", "Schedule", "Scores", "drop_and_grow", "held", "links", "strongest"]

"""Scores: how much each parameter matters, from its size and from the gradients of single examples."""

from uneven.scores.gradients import batch_squares, coupled, couples, gradients
from uneven.scores.rules import NEEDS_GRADIENTS, SCORES, score
from uneven.scores.tally import Gradients

__all__ = ["NEEDS_GRADIENTS", "SCORES", "Gradients", "batch_squares", "coupled", "couples", "gradients", "score"]

"""One client's local work: steps, losses, gradient rules."""

from uneven.training.local import Correction, Loss, Objective, Report, mean_loss, of_logits, train_locally
from uneven.training.options import TrainingOptions

__all__ = [
    "Correction",
    "Loss",
    "Objective",
    "Report",
    "TrainingOptions",
    "mean_loss",
    "of_logits",
    "train_locally",
]

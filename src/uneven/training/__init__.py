"""One client's local work: steps, losses, gradient rules."""

from uneven.training.local import Correction, Loss, Objective, Report, of_logits, train_locally
from uneven.training.options import TrainingOptions

__all__ = ["Correction", "Loss", "Objective", "Report", "TrainingOptions", "of_logits", "train_locally"]

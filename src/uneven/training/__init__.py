"""One client's local work: steps, losses, gradient rules."""

from uneven.training.local import Correction, Loss, Report, train_locally
from uneven.training.options import TrainingOptions

__all__ = ["Correction", "Loss", "Report", "TrainingOptions", "train_locally"]
